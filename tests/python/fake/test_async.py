"""Wake-ups and asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, Callable, List

import pytest

import mlxgen
from support.waiting import comes_true


def test_wakeup_says_that_an_event_is_ready(load: Callable[..., mlxgen.Model]) -> None:
    model = load(step_micros=2000)
    ready = threading.Event()
    threads = set()

    def wake() -> None:
        threads.add(threading.get_ident())
        ready.set()

    got: List[int] = []
    with model.generate([1], max_tokens=30) as stream:
        stream.set_wakeup(wake)
        while True:
            ready.clear()
            try:
                event = stream.next(timeout=0)
            except mlxgen.StreamTimeoutError:
                assert ready.wait(timeout=5), "an event came without a wake-up"
                continue
            if event is None:
                break
            if isinstance(event, mlxgen.TextEvent):
                got.extend(event.tokens)
    assert len(got) == 30
    assert threading.get_ident() not in threads


def test_wakeup_for_what_is_ready_already(model: mlxgen.Model) -> None:
    with model.generate([1], max_tokens=3) as stream:
        time.sleep(0.1)
        ready = threading.Event()
        stream.set_wakeup(ready.set)
        assert ready.wait(timeout=5)


def test_wakeup_is_replaced_and_dropped_exactly_once(load: Callable[..., mlxgen.Model]) -> None:
    from mlxgen import _callbacks

    model = load(step_micros=1000)
    with model.generate([1], max_tokens=1000) as stream:
        for _ in range(50):
            stream.set_wakeup(lambda: None)
        stream.set_wakeup(None)
        assert comes_true(lambda: not _callbacks._callables)
        stream.set_wakeup(lambda: None)
        assert len(_callbacks._callables) == 1
    # The fixture checks that closing dropped the last one.


def test_no_wakeup_runs_after_close(load: Callable[..., mlxgen.Model]) -> None:
    model = load()
    for _ in range(100):
        closed = False
        late: List[bool] = []
        stream = model.generate([1], max_tokens=200)
        stream.set_wakeup(lambda: late.append(True) if closed else None)
        stream.next()
        stream.close()
        closed = True
        time.sleep(0.001)
        assert not late


def test_library_calls_in_a_wakeup_are_refused(model: mlxgen.Model) -> None:
    """B140: a callback that would free the object it runs in gets an error instead."""
    outcomes: List[Any] = []
    cancel = mlxgen.Cancel()
    stream = model.generate([1], max_tokens=5, cancel=cancel)

    def wake() -> None:
        for call in (lambda: model.new_cache(), lambda: model.generate([1])):
            try:
                call()
            except mlxgen.MlxgenError as error:
                outcomes.append(type(error))
        outcomes.append(mlxgen.abi_version())
        cancel.request()

    stream.set_wakeup(wake)
    assert comes_true(lambda: len(outcomes) >= 3)
    stream.close()
    cancel.close()
    assert outcomes[:3] == [mlxgen.WrongStateError, mlxgen.WrongStateError, 1]


def test_async_iteration_leaves_the_loop_free(load: Callable[..., mlxgen.Model]) -> None:
    model = load(step_micros=3000)
    expected = model.generate([1, 2], max_tokens=40).read().tokens
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    async def main() -> List[int]:
        ticker = asyncio.create_task(tick())
        got: List[int] = []
        async with model.generate([1, 2], max_tokens=40) as stream:
            async for event in stream:
                if isinstance(event, mlxgen.TextEvent):
                    got.extend(event.tokens)
        ticker.cancel()
        return got

    assert tuple(asyncio.run(main())) == expected
    assert ticks >= 20


def test_async_streams_together(load: Callable[..., mlxgen.Model]) -> None:
    model = load(step_micros=500)

    async def one(first: int) -> List[int]:
        got: List[int] = []
        async for event in model.generate([first], max_tokens=50):
            if isinstance(event, mlxgen.TextEvent):
                got.extend(event.tokens)
        return got

    async def main() -> List[List[int]]:
        return list(await asyncio.gather(*(one(first) for first in range(6))))

    for first, got in enumerate(asyncio.run(main())):
        assert tuple(got) == model.generate([first], max_tokens=50).read().tokens


def test_async_cancellation_closes(load: Callable[..., mlxgen.Model]) -> None:
    """A task that goes away in the middle leaves nothing running and the cache set free."""
    model = load(step_micros=2000)
    cache = model.new_cache()

    async def consume() -> None:
        async with model.generate([1], cache=cache, max_tokens=4000) as stream:
            async for _ in stream:
                pass

    async def main() -> None:
        task = asyncio.create_task(consume())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    cache.append([1])
    cache.close()


def test_async_errors(load: Callable[..., mlxgen.Model]) -> None:
    model = load(faults=[{"at": "read", "after": 3, "code": 16}])

    async def main() -> None:
        stream = model.generate([1], max_tokens=30)
        with pytest.raises(mlxgen.InternalError):
            async for _ in stream:
                pass
        assert stream.closed

    asyncio.run(main())


def test_a_loop_that_is_gone(load: Callable[..., mlxgen.Model]) -> None:
    """Events that come after the loop was closed disturb nobody."""
    model = load(step_micros=500)
    streams: List[mlxgen.Stream] = []

    async def main() -> None:
        stream = model.generate([1], max_tokens=300)
        streams.append(stream)
        async for _ in stream:
            break

    asyncio.run(main())
    time.sleep(0.1)
    streams[0].close()
