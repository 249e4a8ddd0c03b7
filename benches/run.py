"""`make bench`: the figures that the library promises, as ratios measured in one run.

Writes `target/bench/bench.json` and prints the same as a table. Sides that are compared take turns,
so that a busy machine slows both; each figure is the median of several turns.

    python benches/run.py [--pairs N] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bindings" / "python")]

import large_model  # noqa: E402
import token_profile  # noqa: E402
from parity.reference_process import THREADS, environment  # noqa: E402
from support.paths import BINDING, FAKE_LIBRARY, HEADER, REAL_LIBRARY, TARGET, smollm2  # noqa: E402
from support.reference_weights import smollm2_folder  # noqa: E402

OUT = TARGET / "bench"
#: The environment that `make bench-peers` makes.
PEERS = TARGET / "peers"
MIB = 1 << 20


@dataclass
class Figure:
    """One line of the table."""

    name: str
    value: float
    unit: str
    #: The bound and whether the value must stay under or reach it; none: only told.
    target: Optional[float] = None
    at_most: bool = False
    detail: str = ""

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        held = self.value <= self.target if self.at_most else self.value >= self.target
        return "ok" if held else "MISSED"


class Side:
    """A worker process that measures on request."""

    def __init__(
        self, script: str, arguments: List[str], variables: Dict[str, str], python: str = sys.executable
    ) -> None:
        self._process = subprocess.Popen(
            [python, str(ROOT / "benches" / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )
        self.info = self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended with code {self._process.wait()}")
        return json.loads(line)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, op: str, **arguments: Any) -> float:
        value: float = self.ask_all(op, **arguments)
        return value

    def ask_all(self, op: str, **arguments: Any) -> Any:
        """The same for answers of several values."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def ours(path: Path, threads: int = THREADS, script: str = "worker_ours.py") -> Side:
    variables = {**os.environ, "PYTHONPATH": str(BINDING)}
    variables.setdefault("MLXGEN_LIBRARY", str(REAL_LIBRARY))
    return Side(script, [str(path), str(threads)], variables)


def reference(path: Path, same_blas: bool) -> Side:
    return Side("worker_reference.py", [str(path)], environment(same_blas))


def llama(path: Path) -> Side:
    python = PEERS / "bin" / "python"
    return Side("worker_llama.py", [str(path), str(THREADS)], dict(os.environ), str(python))


def requantized() -> Path:
    """The model in Q4_0, made by llama.cpp from the Q4_1 file."""
    target = OUT / "SmolLM2-135M-Instruct.Q4_0.gguf"
    if not target.exists():
        OUT.mkdir(parents=True, exist_ok=True)
        script = str(ROOT / "benches" / "worker_llama.py")
        part = target.with_suffix(".part")
        subprocess.run(
            [str(PEERS / "bin" / "python"), script, "quantize", str(smollm2()), str(part)],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        part.rename(target)
    return target


def prompt(size: int) -> List[int]:
    """Ids without meaning, below SmolLM2's vocabulary."""
    return [1000 + i * 7919 % 40000 for i in range(size)]


def alternating(
    name: str, a: Side, b: Side, pairs: int, op: str, target: float, **arguments: Any
) -> Figure:
    """The median over pairs of a's figure divided by b's; one turn each goes before."""
    a.ask(op, **arguments)
    b.ask(op, **arguments)
    left, right = [], []
    for number in range(pairs):
        turn: List[Callable[[], None]] = [
            lambda: left.append(a.ask(op, **arguments)),
            lambda: right.append(b.ask(op, **arguments)),
        ]
        for step in turn if number % 2 == 0 else reversed(turn):
            step()
    ratio = statistics.median(x / y for x, y in zip(left, right))
    print(f"  {name}: {ratio:.3g}", file=sys.stderr, flush=True)
    unit = "s" if op == "first" else "tokens/s"
    detail = f"{statistics.median(left):.3g} against {statistics.median(right):.3g} {unit}, {pairs} pairs"
    return Figure(name, ratio, "x", target, detail=detail)


def against_mlx_lm(pairs: int) -> List[Figure]:
    """Decode and prefill of float32 weights, the same BLAS on both sides; then a stock mlx-lm."""
    folder = smollm2_folder("float32")
    mine = ours(folder)
    figures = []
    theirs = reference(folder, same_blas=True)
    figures.append(
        alternating(
            "decode, float32, against mlx-lm with the same BLAS",
            mine, theirs, pairs, "decode", 0.97, prompt=prompt(16), count=24,
        )
    )
    figures.append(
        alternating(
            "prefill of 512, float32, against mlx-lm with the same BLAS",
            mine, theirs, pairs, "prefill", 0.97, prompt=prompt(512),
        )
    )
    theirs.close()
    stock = reference(folder, same_blas=False)
    figures.append(
        alternating(
            "prefill of 64, float32, against stock mlx-lm",
            mine, stock, pairs, "prefill", 10.0, prompt=prompt(64),
        )
    )
    stock.close()
    mine.close()
    return figures


def against_llama_cpp(pairs: int) -> List[Figure]:
    """The shipped Q4_1 file here; llama.cpp on the same file and on its own Q4_0, which it repacks."""
    if not (PEERS / "bin" / "python").exists():
        print("llama.cpp is left out: `make bench-peers` installs it", file=sys.stderr)
        return []
    figures = []
    mine = ours(smollm2())
    for form, path, bounds in (
        ("Q4_1", smollm2(), (1.7, 2.3, 1.8)),
        ("Q4_0", requantized(), (1.5, 1.2, 1.8)),
    ):
        theirs = llama(path)
        decode, prefill, far = bounds
        cases: List[tuple[str, str, float, Dict[str, Any]]] = [
            ("decode at 512", "decode", decode, {"prompt": prompt(512), "count": 64}),
            ("prefill of 512", "prefill", prefill, {"prompt": prompt(512)}),
            ("decode at 4096", "decode", far, {"prompt": prompt(4096), "count": 32}),
        ]
        for what, op, target, arguments in cases:
            name = f"{what}, against llama.cpp on {form}"
            figures.append(alternating(name, mine, theirs, pairs, op, target, **arguments))
        first = alternating(
            f"time to first token of 40, against llama.cpp on {form}",
            mine, theirs, pairs, "first", 0.6, prompt=prompt(40),
        )
        first.at_most = True
        figures.append(first)
        theirs.close()
    mine.close()
    return figures


def half_precision(_pairs: int) -> List[Figure]:
    """The file's own half-precision weights in mlx-lm: one short run, for it takes minutes."""
    folder = smollm2_folder("half")
    mine, theirs = ours(folder), reference(folder, same_blas=False)
    arguments: Dict[str, Any] = {"prompt": prompt(8), "count": 4}
    mine.ask("whole", **arguments)
    here = statistics.median(mine.ask("whole", **arguments) for _ in range(5))
    there = theirs.ask("whole", **arguments)
    mine.close()
    theirs.close()
    detail = f"{here:.3g} against {there:.3g} s, 8 + 4 tokens, one run of mlx-lm"
    return [Figure("half-precision weights, against mlx-lm", there / here, "x", 300, detail=detail)]


def bandwidth(pairs: int) -> List[Figure]:
    """Decoding with dense weights is reading them: how near it comes to a plain read."""
    binary = compiled("read", None)
    figures = []
    for kind, size in (("bfloat16", 2), ("float32", 4)):
        side = ours(smollm2_folder(kind))
        weights = 134_515_008 * size
        shares, speeds = [], []
        side.ask("decode", prompt=prompt(16), count=8)
        for _ in range(pairs):
            plain = output([str(binary), str(weights), str(THREADS)])["bytes_per_second"]
            speed = side.ask("decode", prompt=prompt(16), count=24) * weights
            shares.append(speed / plain)
            speeds.append((speed / 1e9, plain / 1e9))
        side.close()
        mine, plain = (statistics.median(column) for column in zip(*speeds))
        figures.append(
            Figure(
                f"decode of {kind} weights, of a plain read", statistics.median(shares), "x", 0.75,
                detail=f"{mine:.1f} of {plain:.1f} GB/s, {pairs} pairs",
            )
        )
    return figures


def profile(_pairs: int) -> List[Figure]:
    """Where the time of a decoded token goes, bfloat16 weights and a context of 16."""
    reason = token_profile.available()
    if reason:
        print(f"no profile: {reason}", file=sys.stderr)
        return []
    side = ours(smollm2_folder("bfloat16"))
    tokens, turns = 100, 6
    side.ask("decode", prompt=prompt(16), count=8)

    def work() -> None:
        for _ in range(turns):
            side.ask("decode", prompt=prompt(16), count=tokens)

    OUT.mkdir(parents=True, exist_ok=True)
    library = Path(os.environ.get("MLXGEN_LIBRARY", REAL_LIBRARY))
    tables = Path(os.environ.get("MLXGEN_LINE_TABLES", TARGET / "release" / "libmlxgen.so"))
    found = token_profile.Profile(side.pid, library, tables, work, OUT / "perf.data")
    side.close()
    scale = 1e6 / (turns * tokens)
    figures = [Figure("a bfloat16 token", found.seconds * scale, "µs", detail=f"{turns} x {tokens} tokens")]
    for thread in ("mlxgen-owner", "mlx-stream", "mlxgen-kernel-1"):
        spent = found.threads.get(thread, {})
        spent["not running"] = max(0.0, found.seconds - sum(spent.values()))
        figures.extend(Figure(f"{thread}: {what}", seconds * scale, "µs") for what, seconds in spent.items())
    return figures


def growth(_pairs: int) -> List[Figure]:
    """Cost as work grows, GGUF Q4_1."""
    figures = []
    for threads in (1, 2):
        side = ours(smollm2(), threads)
        for context in (128, 1024, 4096, 8000):
            speed = statistics.median(
                side.ask("decode", prompt=prompt(context), count=32) for _ in range(3)
            )
            figures.append(
                Figure(f"decode at {context}, {threads} threads", 1000 / speed, "ms a token")
            )
        for size in (16, 64, 256, 512, 2048):
            speed = statistics.median(side.ask("prefill", prompt=prompt(size)) for _ in range(3))
            figures.append(Figure(f"prefill of {size}, {threads} threads", speed, "tokens/s"))
        side.close()
    return figures


def schemes(pairs: int) -> List[Figure]:
    """Cache sets with options: memory, speed and likeness to the default; forks and truncation."""
    side = ours(smollm2(), script="worker_schemes.py")
    names: List[str] = side.info["schemes"]
    bounds = {"4-bit": 0.32, "TurboQuant k8v3": 0.42}
    figures = []
    plain = side.ask("bytes", scheme="plain", prompt=prompt(4096))
    for name in names:
        size = side.ask("bytes", scheme=name, prompt=prompt(4096))
        figures.append(
            Figure(
                f"bytes of a token at 4096, {name}, of half precision", size / plain, "x",
                bounds.get(name), True, f"{size:.0f} bytes",
            )
        )
    for context, count in ((4096, 24), (512, 48)):
        tokens = prompt(context)
        for name in names[1:]:
            # Neighbours in time: the machine's speed drifts by more than schemes differ.
            sides = ("plain", name)
            speeds: Dict[str, List[float]] = {side_name: [] for side_name in sides}
            for turn in range(pairs + 1):
                for side_name in sides if turn % 2 else reversed(sides):
                    speed = side.ask("decode", scheme=side_name, prompt=tokens, count=count)
                    if turn > 0:  # the first turn reads the prompt
                        speeds[side_name].append(speed)
            ratios = [a / b for a, b in zip(speeds[name], speeds["plain"])]
            figures.append(
                Figure(
                    f"decode at {context}, {name}, against plain", statistics.median(ratios), "x",
                    1.0 if (name, context) == ("4-bit", 4096) else None,
                    detail=f"{statistics.median(speeds[name]):.3g} against "
                    f"{statistics.median(speeds['plain']):.3g} tokens/s, {pairs} pairs",
                )
            )
        if context == 4096:
            figures.extend(forks(side, prompt(4000), pairs))
        side.ask("forget")
    base = side.ask("surprise", scheme="float32", texts=4, tokens=256)
    for name in names:
        surprise = side.ask("surprise", scheme=name, texts=4, tokens=256)
        figures.append(
            Figure(
                f"perplexity, {name}, over float32 keys and values", math.exp(surprise - base), "x",
                detail=f"{math.exp(surprise):.4f} on 4 texts of 256 tokens",
            )
        )
    side.close()
    return figures


def forks(side: Side, tokens: List[int], pairs: int) -> List[Figure]:
    """Forks and truncation of a set that holds `tokens`."""
    runs = [side.ask_all("fork", prompt=tokens) for _ in range(2 * pairs)]
    taken, segments = (statistics.median(run[key] for run in runs) for key in ("seconds", "segments"))
    fork = statistics.median(run["fork_seconds"] for run in runs)
    cut = side.ask("truncate", prompt=tokens)
    before, after = [], []
    for _ in range(pairs):
        before.append(side.ask("decode", scheme="plain", prompt=tokens, count=65))
        side.ask_all("fork", prompt=tokens)
        after.append(side.ask("decode", scheme="plain", prompt=tokens, count=65))
    return [
        Figure(
            "fork of 4000 tokens and the first append on both sides", 1000 * taken, "ms", 3, True,
            f"beyond two appends; the fork alone {1e6 * fork:.0f} µs",
        ),
        Figure("new bytes after that, in segments of each layer", segments, "", 1, True),
        Figure("truncate", 1e6 * cut, "µs", 100, True, "10 of 4000 tokens, through Python"),
        Figure(
            "64 tokens after a fork, against before", statistics.median(a / b for a, b in zip(after, before)),
            "x", detail=f"{pairs} pairs",
        ),
    ]


def compiled(name: str, library: Optional[Path]) -> Path:
    """A C program of this folder, linked to the library where it lies, if it needs one."""
    OUT.mkdir(parents=True, exist_ok=True)
    binary = OUT / name
    command = [
        os.environ.get("CC", "cc"), "-std=c99", "-O3", "-Wall", "-Wextra", "-Werror", "-pthread",
        f"-I{HEADER.parent}", str(ROOT / "benches" / "c" / f"{name}.c"), "-o", str(binary),
    ]
    if library is None:
        command.append("-march=native")
    else:
        command += [f"-L{library.parent}", "-lmlxgen", f"-Wl,-rpath,{library.parent}"]
    subprocess.run(command, check=True)
    return binary


def output(command: List[str]) -> Dict[str, float]:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    values: Dict[str, float] = json.loads(done.stdout)
    return values


def boundary(pairs: int) -> List[Figure]:
    """What a token costs outside MLX, on the fake back end."""
    folder = OUT / "fake-model"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fake-model.json").write_text(json.dumps({"context_limit": 1 << 20}))
    binary = compiled("boundary", FAKE_LIBRARY)
    values = output([str(binary), str(folder), str(max(5, pairs))])
    return [
        Figure(
            "host time of a token outside MLX", values["token_microseconds"], "µs", 300, True,
            "owner thread, queue, decoder, stop texts, C boundary",
        ),
        Figure(
            "stream_next on a ready event", values["next_microseconds"], "µs", 5, True,
            f"median of {values['next_calls']:.0f} calls",
        ),
    ]


def session(pairs: int) -> List[Figure]:
    """Whole processes from their start: loading, first token, memory."""
    binary = compiled("session", REAL_LIBRARY)
    figures = []
    folder = smollm2_folder("float32")
    for label, path, size in (
        ("GGUF Q4_1", smollm2(), 512), ("GGUF Q4_1", smollm2(), 4096), ("float32 folder", folder, 512),
    ):
        runs = [output([str(binary), str(path), str(size), "16"]) for _ in range(min(pairs, 3))]
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        label += f", prompt of {size}"
        figures.append(Figure(f"load, {label}", middle["load_seconds"], "s"))
        over = middle["peak_resident_bytes"] - middle["weight_bytes"] - middle["cache_bytes"]
        figures.append(
            Figure(
                f"peak resident memory over weights and cache, {label}", over / MIB, "MiB", 80, True,
                f"{middle['weight_bytes'] / MIB:.0f} MiB of weights, "
                f"{middle['cache_bytes'] / MIB:.0f} MiB of cache",
            )
        )
    runs = [output([str(binary), str(smollm2()), "40", "2"]) for _ in range(min(pairs, 3))]
    first = statistics.median(run["first_token_seconds"] for run in runs)
    figures.append(
        Figure("process start to first token, GGUF Q4_1, prompt of 40", first, "s", 6, True)
    )
    return figures


def cancelling(pairs: int) -> List[Figure]:
    """How soon a prefill of 4096 tokens ends when it is cancelled, near its beginning and its end."""
    tokens = prompt(4096)
    chance = random.Random(4)
    latencies: List[float] = []
    side = ours(smollm2())
    for begun in (0, 2048):
        side.ask("begin", prompt=tokens[:begun])
        for _ in range(10 * max(3, pairs)):
            latencies.append(side.ask("cancel", prompt=tokens[begun:], wait=0.02 + 2 * chance.random()))
    side.close()
    latencies.sort()
    worst = latencies[math.ceil(0.99 * len(latencies)) - 1]
    return [
        Figure(
            "cancel in a 4096-token prefill, 99th percentile", 1000 * worst, "ms", 250, True,
            f"median {1000 * statistics.median(latencies):.0f} ms of {len(latencies)} cancels",
        )
    ]


def loading(pairs: int) -> List[Figure]:
    """Loads with the files in the page cache: a small GGUF file, and 2 GB of bfloat16 against a copy of memory."""
    session, copy = compiled("session", REAL_LIBRARY), compiled("copy", None)
    runs = [output([str(session), str(smollm2()), "16", "2"]) for _ in range(pairs + 1)][1:]
    small = statistics.median(run["load_seconds"] for run in runs)
    folder = OUT / "large-model"
    size = large_model.write(folder)
    loads, peaks = [], []
    copies: Dict[str, List[float]] = {"bytes": [], "fresh_bytes": [], "file_bytes": []}

    def load() -> None:
        run = output([str(session), str(folder), "16", "2"])
        loads.append(size / run["load_seconds"])
        peaks.append(run["peak_resident_bytes"] / run["weight_bytes"])

    def plain() -> None:
        speeds = output([str(copy), str(size), str(THREADS), str(folder / "model.safetensors")])
        for kind, values in copies.items():
            values.append(speeds[f"{kind}_per_second"])

    try:
        output([str(session), str(folder), "16", "2"])
        for number in range(pairs):
            for step in (load, plain) if number % 2 == 0 else (plain, load):
                step()
    finally:
        shutil.rmtree(folder)
    middle = statistics.median

    def share(what: str, kind: str, target: Optional[float]) -> Figure:
        return Figure(
            f"load of 2 GB of bfloat16, warm, of {what}",
            middle(load / copy for load, copy in zip(loads, copies[kind])), "x", target,
            detail=f"{middle(loads) / 1e9:.2f} of {middle(copies[kind]) / 1e9:.2f} GB/s, {pairs} pairs",
        )

    return [
        Figure("load of SmolLM2, GGUF Q4_1, warm", small, "s", 0.4, True, f"median of {pairs}"),
        share("a copy of memory into memory that is there", "bytes", 0.6),
        share("a copy of memory into memory that the system has to give", "fresh_bytes", 0.6),
        share("a plain read of the file into such memory", "file_bytes", None),
        Figure(
            "peak resident memory of that load, over its weights", middle(peaks), "x", 1.1, True,
            "a prompt of 16 included",
        ),
    ]


GROUPS: Dict[str, Callable[[int], List[Figure]]] = {
    "boundary": boundary,
    "session": session,
    "loading": loading,
    "cancelling": cancelling,
    "mlx-lm": against_mlx_lm,
    "half": half_precision,
    "bandwidth": bandwidth,
    "profile": profile,
    "growth": growth,
    "schemes": schemes,
    "llama.cpp": against_llama_cpp,
}


def table(figures: List[Figure]) -> str:
    rows = [["figure", "value", "target", "", "how"]]
    for figure in figures:
        bound = ""
        if figure.target is not None:
            bound = f"{'<=' if figure.at_most else '>='} {figure.target:g} {figure.unit}"
        rows.append(
            [figure.name, f"{figure.value:.3g} {figure.unit}", bound, figure.verdict, figure.detail]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="turns of each comparison")
    parser.add_argument("--only", nargs="*", choices=sorted(GROUPS), default=list(GROUPS))
    options = parser.parse_args()
    begin = time.time()
    figures: List[Figure] = []
    for name in options.only:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        figures.extend(GROUPS[name](options.pairs))
    OUT.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "seconds": round(time.time() - begin, 1),
        "figures": [{**asdict(figure), "verdict": figure.verdict} for figure in figures],
    }
    (OUT / "bench.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    print(table(figures))
    print(f"\nAlso in {(OUT / 'bench.json').relative_to(ROOT)}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
