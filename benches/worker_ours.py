"""The library's side of the benchmarks: one JSON request a line. Started by `run.py`."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any, Dict, List, Optional

import mlxgen


class Worker:
    #: A cache set that holds the prompt of the last decoding but its last token.
    _decoded: Optional[mlxgen.CacheSet] = None
    #: A cache set that holds the beginning of the prompt whose prefills are cancelled.
    _begun: mlxgen.CacheSet

    def __init__(self, path: str, threads: int) -> None:
        self._engine = mlxgen.Engine(threads=threads)
        begin = time.perf_counter()
        self._model = self._engine.load_model(path)
        self.load_seconds = time.perf_counter() - begin

    def decode(self, prompt: List[int], count: int) -> float:
        """Tokens per second from the first token to the last. What was read of the prompt in an earlier
        turn is kept."""
        times: List[float] = []
        if self._decoded is None or self._decoded.tokens != prompt[:-1]:
            self._decoded = self._model.new_cache()
            self._decoded.append(prompt[:-1])
        stream = self._model.generate(prompt, cache=self._decoded, max_tokens=count, ignore_eos=True)
        for event in stream:
            if isinstance(event, mlxgen.TextEvent):
                times.extend([time.perf_counter()] * len(event.tokens))
        assert len(times) == count
        self._decoded.truncate(len(prompt) - 1)
        return (count - 1) / (times[-1] - times[0])

    def prefill(self, prompt: List[int]) -> float:
        """Prompt tokens per second until the first new token."""
        begin = time.perf_counter()
        for event in self._model.generate(prompt, max_tokens=1, ignore_eos=True):
            if isinstance(event, mlxgen.TextEvent) and event.tokens:
                return len(prompt) / (time.perf_counter() - begin)
        raise AssertionError("no token came")

    def first(self, prompt: List[int]) -> float:
        """Seconds to the first new token."""
        return len(prompt) / self.prefill(prompt)

    def whole(self, prompt: List[int], count: int) -> float:
        """Seconds to read a prompt and generate."""
        begin = time.perf_counter()
        tokens = 0
        for event in self._model.generate(prompt, max_tokens=count, ignore_eos=True):
            tokens += len(event.tokens) if isinstance(event, mlxgen.TextEvent) else 0
        assert tokens == count
        return time.perf_counter() - begin

    def begin(self, prompt: List[int]) -> float:
        """Reads what the cancelled prefills have behind them; seconds."""
        begin = time.perf_counter()
        self._begun = self._model.new_cache()
        if prompt:
            self._begun.append(prompt)
        return time.perf_counter() - begin

    def cancel(self, prompt: List[int], wait: float) -> float:
        """Seconds from a cancel request, `wait` seconds into a prefill, to the end of the call."""
        asked: List[float] = []
        with mlxgen.Cancel() as cancel, self._begun.fork() as cache:

            def ask() -> None:
                asked.append(time.perf_counter())
                cancel.request()

            timer = threading.Timer(wait, ask)
            timer.start()
            try:
                cache.append(prompt, cancel=cancel)
            except mlxgen.CancelledError:
                return time.perf_counter() - asked[0]
            raise AssertionError("the prefill ended before it was cancelled")


def main() -> None:
    worker = Worker(sys.argv[1], int(sys.argv[2]))
    info: Dict[str, Any] = {"load_seconds": worker.load_seconds, "build": mlxgen.build_info().backend}
    print(json.dumps(info), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(worker, request.pop("op"))(**request)), flush=True)


if __name__ == "__main__":
    main()
