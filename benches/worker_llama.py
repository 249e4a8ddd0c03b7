"""llama.cpp's side of the benchmarks: one JSON request a line. Started by `run.py`, in the peers' environment."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any, List

import llama_cpp


class Worker:
    """llama.cpp's own calls, without the Python package's sampling and text: the reference at its fastest."""

    def __init__(self, path: str, threads: int) -> None:
        begin = time.perf_counter()
        self._llama = llama_cpp.Llama(
            path, n_ctx=8192, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self.load_seconds = time.perf_counter() - begin

    #: The prompt in the cache, if nothing else is.
    _decoded: List[int] = []

    def _reset(self) -> None:
        self._decoded = []
        self._llama.reset()
        self._llama._ctx.kv_cache_clear()

    def decode(self, prompt: List[int], count: int) -> float:
        """Tokens per second from the first token to the last. What was read of the prompt in an earlier
        turn is kept."""
        if self._decoded != prompt:
            self._reset()
            self._llama.eval(prompt)
            self._decoded = prompt
        begin = time.perf_counter()
        token = prompt[-1]
        for _ in range(count - 1):
            # Which token it is changes nothing of the work; the choice itself is not charged to llama.cpp.
            self._llama.eval([token])
        speed = (count - 1) / (time.perf_counter() - begin)
        self._llama._ctx.kv_cache_seq_rm(-1, len(prompt), -1)
        self._llama.n_tokens = len(prompt)
        return speed

    def prefill(self, prompt: List[int]) -> float:
        """Prompt tokens per second until the scores after the last are there."""
        self._reset()
        begin = time.perf_counter()
        self._llama.eval(prompt)
        return len(prompt) / (time.perf_counter() - begin)

    def first(self, prompt: List[int]) -> float:
        """Seconds to the scores after the last token."""
        return len(prompt) / self.prefill(prompt)


def quantize(source: str, target: str) -> None:
    """Requantises a model to Q4_0, which llama.cpp repacks for its fastest kernels."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    parameters.allow_requantize = True
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)) != 0:
        raise SystemExit(f"llama.cpp could not requantise {source}")


def main() -> None:
    if sys.argv[1] == "quantize":
        quantize(sys.argv[2], sys.argv[3])
        return
    if sys.argv[1] == "check":
        print(Worker(sys.argv[2], 2).decode([1000, 2000], 4))
        return
    worker = Worker(sys.argv[1], int(sys.argv[2]))
    info = {"load_seconds": worker.load_seconds, "build": f"llama-cpp-python {llama_cpp.__version__}"}
    print(json.dumps(info), flush=True)
    for line in sys.stdin:
        request: Any = json.loads(line)
        print(json.dumps(getattr(worker, request.pop("op"))(**request)), flush=True)


if __name__ == "__main__":
    main()
