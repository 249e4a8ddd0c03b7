"""The Python example answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mlxgen
from support.paths import BINDING, ROOT


def chat(*arguments: object, lines: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, ROOT / "examples" / "python" / "chat.py", *map(str, arguments)],
        input=lines,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(BINDING),
            "MLXGEN_LIBRARY": str(mlxgen.find_library()),
            "PYTHONIOENCODING": "utf-8",
        },
    )


def test_a_question(smollm2: Path) -> None:
    done = chat(smollm2, "What is the capital of France?")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "The capital of France is Paris.\n"


def test_a_conversation(smollm2: Path) -> None:
    done = chat("-v", "-n", "30", smollm2, lines="What is the capital of France?\nAnd of Italy?\n")
    first, second = done.stdout.splitlines()[:2]
    assert "Paris" in first and "Rome" in second
    assert "(0 reused)" in done.stderr.splitlines()[1]
    assert "(0 reused)" not in done.stderr.splitlines()[2]


def test_a_missing_model(tmp_path: Path) -> None:
    done = chat(tmp_path / "absent.gguf", "Hello")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("chat: ") and str(tmp_path) in done.stderr
