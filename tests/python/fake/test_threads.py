"""Many threads at once."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Callable, Dict, List, Tuple

import pytest

import mlxgen


def together(workers: List[Callable[[], None]], timeout: float = 120) -> None:
    """Runs the workers on a thread each; raises what the first of them raised."""
    errors: List[BaseException] = []

    def guarded(worker: Callable[[], None]) -> None:
        try:
            worker()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("count", [2, 4])
def test_b142_threads_on_one_model(load: Callable[..., mlxgen.Model], count: int) -> None:
    """B142: each result equals its single-thread run."""
    model = load(step_micros=50)
    prompts = [[number, number + 1] for number in range(count)]
    expected = [model.generate(ids, max_tokens=40).read().tokens for ids in prompts]

    def work(number: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(50):
                got = model.generate(prompts[number], max_tokens=40).read().tokens
                assert got == expected[number]

        return run

    together([work(number) for number in range(count)])


def test_b142_loading_and_freeing_while_others_generate(
    engine: mlxgen.Engine, write_model: Callable[..., Path]
) -> None:
    """B142: own models; one loads while others generate; one frees its model while in use."""
    folder = write_model(step_micros=50)
    stop = threading.Event()

    def generate() -> None:
        with engine.load_model(folder) as model:
            expected = model.generate([1], max_tokens=30).read().tokens
            while not stop.is_set():
                assert model.generate([1], max_tokens=30).read().tokens == expected

    def churn() -> None:
        try:
            for _ in range(50):
                model = engine.load_model(folder)
                stream = model.generate([2], max_tokens=10)
                model.close()
                assert len(stream.read().tokens) == 10
        finally:
            stop.set()

    together([generate, generate, churn])


def test_b142_mixed_use_from_eight_threads(load: Callable[..., mlxgen.Model]) -> None:
    """Open, pull, cancel, close, append and fork at random; then everything still answers right."""
    model = load(step_micros=20, prefill_micros_per_token=5, prefill_chunk=32)
    expected: Dict[Tuple[int, ...], Tuple[int, ...]] = {}
    for first in range(4):
        expected[(first,)] = model.generate([first], max_tokens=20).read().tokens
    end = time.monotonic() + 6

    def work(seed: int) -> Callable[[], None]:
        def run() -> None:
            chance = random.Random(seed)
            cache = model.new_cache()
            while time.monotonic() < end:
                what = chance.randrange(6)
                if what == 0:
                    first = chance.randrange(4)
                    got = model.generate([first], max_tokens=20).read().tokens
                    assert got == expected[(first,)]
                elif what == 1:
                    stream = model.generate([seed] * 100, max_tokens=500)
                    for _ in range(chance.randrange(10)):
                        stream.next()
                    stream.close()
                elif what == 2:
                    with mlxgen.Cancel() as cancel:
                        timer = threading.Timer(chance.random() * 0.01, cancel.request)
                        timer.start()
                        ended = model.generate([seed] * 500, max_tokens=5000, cancel=cancel)
                        assert ended.read().end.reason == mlxgen.EndReason.CANCELLED
                        timer.join()
                elif what == 3:
                    cache.truncate(0)
                    cache.append([seed, chance.randrange(250)])
                    with cache.fork() as other:
                        other.append([1])
                        assert len(other) == len(cache) + 1
                elif what == 4:
                    with model.generate(cache.tokens + [seed], cache=cache, max_tokens=3) as own:
                        assert own.read().end.usage.generated_tokens == 3
                else:
                    with pytest.raises(mlxgen.InvalidArgumentError):
                        model.generate([10**6])
            cache.close()

        return run

    together([work(seed) for seed in range(8)])
    for ids, tokens in expected.items():
        assert model.generate(list(ids), max_tokens=20).read().tokens == tokens


def test_closing_one_object_from_many_threads(load: Callable[..., mlxgen.Model]) -> None:
    """The reference is given back once, whoever is first."""
    model = load()
    for _ in range(100):
        cache = model.new_cache()
        keeper = cache.fork()
        together([cache.close] * 4)
        keeper.append([1])
        keeper.close()


def test_closing_a_stream_that_another_thread_iterates(
    load: Callable[..., mlxgen.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The iteration ends, or raises WrongStateError; the stream is never called busy."""
    model = load(step_micros=20)
    chance = random.Random(1)
    for _ in range(50):
        stream = model.generate([1], ignore_eos=True)
        timer = threading.Timer(chance.random() * 0.01, stream.close)
        timer.start()
        try:
            for _event in stream:
                pass
        except mlxgen.WrongStateError:
            pass
        timer.join()
        assert stream.closed

    # The moment at which the other thread is inside the library's close.
    from mlxgen._library import library

    stream = model.generate([1], ignore_eos=True)
    inside, go_on = threading.Event(), threading.Event()
    close = library().stream_close

    def slow_close(*arguments: object) -> int:
        inside.set()
        go_on.wait(10)
        return int(close(*arguments))

    monkeypatch.setattr(library(), "stream_close", slow_close)
    closer = threading.Thread(target=stream.close)
    closer.start()
    assert inside.wait(10)
    with pytest.raises(mlxgen.WrongStateError):
        stream.next()
    go_on.set()
    closer.join()
    with pytest.raises(mlxgen.WrongStateError):
        stream.next()
    assert list(stream) == []


def test_one_stream_from_many_threads(load: Callable[..., mlxgen.Model]) -> None:
    """A second call at the same time is refused; no event is lost or taken twice."""
    model = load(step_micros=100)
    expected = model.generate([3], max_tokens=300).read().tokens
    stream = model.generate([3], max_tokens=300)
    taken: List[mlxgen.Event] = []
    refused = 0

    def pull() -> None:
        nonlocal refused
        while True:
            try:
                event = stream.next()
            except mlxgen.BusyError:
                refused += 1
                time.sleep(0.0001)
                continue
            if event is None:
                return
            taken.append(event)

    together([pull] * 4)
    tokens = [token for event in taken if isinstance(event, mlxgen.TextEvent) for token in event.tokens]
    assert sorted(tokens) == sorted(expected) and refused > 0
    stream.close()
