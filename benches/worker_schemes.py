"""What cache sets with options cost: one JSON request a line. Started by `run.py`."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from pydoc_data.topics import topics
from typing import Any, Callable, Dict, List

import numpy

import mlxgen
from mlxgen import AffineKv, CacheSet, KvPages, KvWindow, TurboQuantKv

#: The options of `new_cache`. "plain" is the default: half precision, all tokens.
SCHEMES: Dict[str, Dict[str, Any]] = {
    "plain": {},
    "float32": {"kv_type": mlxgen.KvType.FLOAT32},
    "8-bit": {"precision": AffineKv(8, start=0)},
    "4-bit": {"precision": AffineKv(4, start=0)},
    "TurboQuant k8v3": {"precision": TurboQuantKv(8, 3)},
    "TurboQuant k4v4": {"precision": TurboQuantKv(4, 4)},
    "pages of 64": {"pages": KvPages(64)},
    "window of 1024": {"window": KvWindow(1024)},
}


class Worker:
    def __init__(self, path: str, threads: int) -> None:
        self._engine = mlxgen.Engine(threads=threads)
        self._model = self._engine.load_model(path)
        self._read: Dict[str, CacheSet] = {}

    def holding(self, scheme: str, prompt: List[int]) -> CacheSet:
        """A set that holds the prompt; the last one of each scheme stays."""
        cache = self._read.get(scheme)
        if cache is None or cache.tokens != prompt:
            cache = self._read[scheme] = self._model.new_cache(**SCHEMES[scheme])
            cache.append(prompt)
        return cache

    def forget(self) -> float:
        self._read.clear()
        return 0

    def bytes(self, scheme: str, prompt: List[int]) -> float:
        """Bytes of a token."""
        layers = self.holding(scheme, prompt).info().layers
        return sum(layer.bytes for layer in layers) / len(prompt)

    def decode(self, scheme: str, prompt: List[int], count: int) -> float:
        """Tokens per second behind a prompt that was read before."""
        cache = self.holding(scheme, prompt)
        times: List[float] = []
        stream = self._model.generate(
            [*prompt, 1], cache=cache, max_tokens=count, ignore_eos=True
        )
        for event in stream:
            if isinstance(event, mlxgen.TextEvent):
                times.extend([time.perf_counter()] * len(event.tokens))
        cache.truncate(len(prompt))
        return (count - 1) / (times[-1] - times[0])

    def fork(self, prompt: List[int]) -> Dict[str, float]:
        """A fork, and the first append on both sides over what an append takes otherwise: seconds,
        and new bytes of a layer in segments."""
        cache = self.holding("plain", prompt)
        segment = 256 * cache.info().layers[0].bytes / (256 * math.ceil(len(prompt) / 256))
        appends = [seconds(lambda: cache.append([i])) for i in range(1, 9)]
        cache.truncate(len(prompt))
        before = cache.info().bytes
        made: List[CacheSet] = []
        taken = seconds(lambda: made.append(cache.fork()))
        fork = made[0]
        first = seconds(lambda: cache.append([1])) + seconds(lambda: fork.append([2]))
        # What both hold counts once.
        shared = sum(layer.shared_bytes for layer in fork.info().layers)
        new = cache.info().bytes + fork.info().bytes - shared - before
        fork.close()
        cache.truncate(len(prompt))
        return {
            "seconds": taken + max(0.0, first - 2 * statistics.median(appends)),
            "fork_seconds": taken,
            "segments": new / (segment * len(cache.info().layers)),
        }

    def truncate(self, prompt: List[int]) -> float:
        """Seconds of a truncation by 10 tokens."""
        with self.holding("plain", prompt).fork() as cache:
            cache.append([1])
            kept = range(len(prompt) - 10, len(prompt) - 410, -10)
            return statistics.median(seconds(lambda keep=keep: cache.truncate(keep)) for keep in kept)

    def surprise(self, scheme: str, texts: int, tokens: int) -> float:
        """Mean surprise in nats at the tokens of English prose that every Python brings along; its
        exponential is the perplexity."""
        longest = sorted(topics.values(), key=len, reverse=True)[:texts]
        with self._model.tokenizer as tokenizer:
            prose = [tokenizer.encode(text[:4000])[:tokens] for text in longest]
        total = 0.0
        for text in prose:
            with self._model.new_cache(**SCHEMES[scheme]) as cache:
                for token, following in zip(text, text[1:]):
                    cache.append([token])
                    scores = cache.logits_numpy().astype("float64")
                    top = scores.max()
                    total += math.log(numpy.exp(scores - top).sum()) + top - scores[following]
        return float(total) / (texts * (tokens - 1))


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    worker = Worker(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"schemes": list(SCHEMES)}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(worker, request.pop("op"))(**request)), flush=True)


if __name__ == "__main__":
    main()
