"""mlx-lm's side of the benchmarks: one JSON request a line. Started by `run.py`."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, List

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model


class Worker:
    def __init__(self, path: str) -> None:
        begin = time.perf_counter()
        self._model, _ = load_model(Path(path))
        mx.eval(self._model.parameters())
        self.load_seconds = time.perf_counter() - begin

    def _steps(self, prompt: List[int], count: int) -> Any:
        return generate_step(mx.array(prompt), self._model, max_tokens=count)

    def decode(self, prompt: List[int], count: int) -> float:
        """Tokens per second from the first token to the last."""
        times = [time.perf_counter() for _ in self._steps(prompt, count)]
        mx.synchronize()
        assert len(times) == count
        return (count - 1) / (times[-1] - times[0])

    def whole(self, prompt: List[int], count: int) -> float:
        """Seconds to read a prompt and generate."""
        begin = time.perf_counter()
        assert sum(1 for _ in self._steps(prompt, count)) == count
        mx.synchronize()
        return time.perf_counter() - begin

    def prefill(self, prompt: List[int]) -> float:
        """Prompt tokens per second until the first new token."""
        begin = time.perf_counter()
        for _ in self._steps(prompt, 1):
            seconds = time.perf_counter() - begin
        mx.synchronize()
        return len(prompt) / seconds


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker(sys.argv[1])
    info = {"load_seconds": worker.load_seconds, "build": f"mlx {mx.__version__}"}
    print(json.dumps(info), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(worker, request.pop("op"))(**request)), file=answers, flush=True)


if __name__ == "__main__":
    main()
