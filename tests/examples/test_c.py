"""The C examples on the library's fake build, where every answer is known beforehand.

`cargo xtask test` also builds them with CMake and asks the real model.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest

from support.paths import FAKE_LIBRARY, ROOT

SOURCES = ROOT / "examples" / "c"
ANSWER = "Grüße aus Paris! 🎉"
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both programs, with the Makefile; a warning is an error."""
    product, out = FAKE_LIBRARY.parents[1], tmp_path_factory.mktemp("c")
    words = [f"MLXGEN={product}", f"BUILD={out}", "CFLAGS=-O1 -g -Werror"]
    subprocess.run(["make", "-s", "-C", SOURCES, *words], check=True)
    return out


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """Makes a model of the fake library from the keys of its file."""

    def make(**keys: Any) -> Path:
        (tmp_path / "fake-model.json").write_text(json.dumps(keys))
        return tmp_path

    return make


def run(*words: object, text: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(word) for word in words], input=text, capture_output=True, encoding="utf-8", timeout=60
    )


def outcome(done: "subprocess.CompletedProcess[str]") -> List[object]:
    return [done.stdout, done.stderr, done.returncode]


def test_minimal_prints_the_answer(programs: Path, model: Callable[..., Path]) -> None:
    assert outcome(run(programs / "minimal", model(script={"text": ANSWER}))) == [f"{ANSWER}\n", "", 0]


def test_minimal_prints_the_error(programs: Path) -> None:
    done = run(programs / "minimal", "/no/such/model")
    assert "/no/such/model" in done.stderr
    assert done.stdout == "" and done.returncode == 1


def test_chat_answers_one_question(programs: Path, model: Callable[..., Path]) -> None:
    done = run(programs / "chat", model(script={"text": ANSWER}), QUESTION)
    assert outcome(done) == [f"{ANSWER}\n", "", 0]


def test_chat_tells_what_it_does(programs: Path, model: Callable[..., Path]) -> None:
    done = run(programs / "chat", "-v", model(script={"text": ANSWER}, weight_bytes=1 << 20), QUESTION)
    assert done.stdout == f"{ANSWER}\n"
    assert "loading 100 %" in done.stderr
    assert re.search(r"^prefill (\d+)/\1$", done.stderr, re.M)
    size = len(ANSWER.encode()) + 1
    assert re.search(rf"^\[end of answer; prompt \d+ tokens, 0 of them reused; generated {size}; ", done.stderr, re.M)
    assert re.search(r"first token \d+\.\d\d s, prefill \d+\.\d\d s, decode \d+\.\d\d s", done.stderr)


def test_chat_limits_the_answer(programs: Path, model: Callable[..., Path]) -> None:
    done = run(programs / "chat", "-v", "-n", 2, model(script={"text": ANSWER}), QUESTION)
    assert done.stdout == "Gr\n"
    assert "[token limit; " in done.stderr and "generated 2;" in done.stderr


def test_chat_keeps_a_conversation(programs: Path, model: Callable[..., Path]) -> None:
    text = 'first "quoted" \\ question\n\n\tsecond\n'
    done = run(programs / "chat", "-v", "-s", "Be brief.", model(script={"text": ANSWER}), text=text)
    assert done.stdout == f"{ANSWER}\n{ANSWER}\n"
    assert done.returncode == 0
    turns = re.findall(r"prompt (\d+) tokens, (\d+) of them reused", done.stderr)
    (first, nothing), (second, reused) = [(int(prompt), int(part)) for prompt, part in turns]
    assert nothing == 0
    # All of the first turn but, at most, its end is there already.
    assert first <= reused < second


def test_a_seed_makes_random_answers_repeatable(programs: Path, model: Callable[..., Path]) -> None:
    def answer(seed: int) -> str:
        done = run(programs / "chat", "-t", 1, "-n", 30, "-r", seed, model(), QUESTION)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


@pytest.fixture
def start(programs: Path) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    running: List["subprocess.Popen[bytes]"] = []

    def start(*words: object) -> "subprocess.Popen[bytes]":
        pipe = subprocess.PIPE
        command = [str(programs / "chat"), *map(str, words)]
        running.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_ctrl_c_ends_one_answer(start: Callable[..., Any], model: Callable[..., Path]) -> None:
    process = start("-v", model(step_micros=2000, context_limit=1 << 20), QUESTION)
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out.endswith(b"\n") and b"[cancelled; " in err


def test_ctrl_c_leaves_the_conversation_going(start: Callable[..., Any], model: Callable[..., Path]) -> None:
    process = start("-v", "-n", 40, model(step_micros=20_000))
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(b"two\n", timeout=20)
    assert process.returncode == 0
    assert err.count(b"[cancelled; ") == 1 and err.count(b"[token limit; ") == 1


def test_ctrl_c_stops_a_load(start: Callable[..., Any], model: Callable[..., Path]) -> None:
    slow = model(weight_bytes=64 << 20, piece_bytes=64 << 10, piece_micros=20_000)
    process = start("-v", slow, QUESTION)
    assert process.stderr.read(8) == b"\rloading"
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    out, err = process.communicate(timeout=20)
    assert time.monotonic() - begun < 2
    assert process.returncode == 130
    assert out == b"" and b"(MLXGEN_CANCELLED)" in err


def test_chat_says_what_failed(programs: Path, model: Callable[..., Path]) -> None:
    done = run(programs / "chat", "/no/such/model", QUESTION)
    assert done.stdout == "" and done.returncode == 1
    assert re.fullmatch(r"chat: cannot load the model: .*/no/such/model.* \(MLXGEN_NOT_FOUND\)\n", done.stderr)

    failing = model(script={"text": ANSWER}, faults=[{"at": "read", "after": 3, "code": 8}])
    done = run(programs / "chat", failing, QUESTION)
    assert done.returncode == 1
    assert re.fullmatch(r"chat: cannot go on: .* \(MLXGEN_OUT_OF_MEMORY\)\n", done.stderr)


@pytest.mark.parametrize("words", [[], ["-x", "model"], ["a", "b", "c"]])
def test_wrong_use_is_explained(programs: Path, words: List[str]) -> None:
    done = run(programs / "chat", *words)
    assert done.stdout == "" and done.returncode == 2
    assert "usage: chat " in done.stderr
