"""Engine: budget, limits, suspend and resume."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Callable, List

import pytest

import mlxgen
from support.waiting import comes_true

MIB = 1 << 20


def test_memory_is_reported(engine: mlxgen.Engine, write_model: Callable[..., Path]) -> None:
    before = engine.memory()
    assert before.models == 0 and before.caches == 0 and before.limit > 0 and before.available > 0
    model = engine.load_model(write_model(weight_bytes=3 * MIB, cache_bytes_per_token=1000))
    assert engine.memory().models == 3 * MIB
    assert engine.memory().active >= 3 * MIB
    cache = model.new_cache()
    cache.append(range(100))
    assert engine.memory().caches >= 100_000
    cache.close()
    model.close()
    assert comes_true(lambda: engine.memory().models == engine.memory().caches == 0)
    after = engine.memory()
    assert after.peak >= 3 * MIB + 100_000


def test_a_model_beyond_the_limit_is_refused_and_loads_when_it_is_raised(
    write_model: Callable[..., Path],
) -> None:
    folder = write_model(weight_bytes=8 * MIB)
    with mlxgen.Engine(memory_limit=4 * MIB) as engine:
        with pytest.raises(mlxgen.OutOfMemoryError) as caught:
            engine.load_model(folder)
        assert isinstance(caught.value, MemoryError)
        assert engine.memory().models == 0
        engine.set_limits(memory_limit=64 * MIB)
        assert engine.memory().limit == 64 * MIB
        with engine.load_model(folder) as model:
            assert model.generate([1], max_tokens=3).read().end.usage.generated_tokens == 3


def test_growth_beyond_the_limit_is_refused_and_the_cache_stays(
    write_model: Callable[..., Path],
) -> None:
    folder = write_model(weight_bytes=MIB, cache_bytes_per_token=MIB)
    with mlxgen.Engine(memory_limit=8 * MIB) as engine, engine.load_model(folder) as model:
        with model.new_cache() as cache:
            cache.append([1, 2, 3])
            with pytest.raises(mlxgen.OutOfMemoryError):
                cache.append([4] * 20)
            assert cache.tokens == [1, 2, 3]
            cache.append([4])
            assert len(cache) == 4


def test_limits_and_options_are_checked() -> None:
    for bad in (5, -1, 2**32):
        with pytest.raises(mlxgen.InvalidArgumentError) as caught:
            mlxgen.Engine(device=bad)  # type: ignore[arg-type]
        assert caught.value.detail.field == "device"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("threads", 1025),
        ("threads", 2**32 - 1),
        ("threads", 2**32),
        ("threads", -1),
        ("memory_limit", -1),
        ("pool_limit", 2**64),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(option: str, value: int) -> None:
    with pytest.raises(mlxgen.InvalidArgumentError) as caught:
        mlxgen.Engine(**{option: value})  # type: ignore[arg-type]
    assert caught.value.detail.field == option
    assert str(value) in str(caught.value)


def test_no_number_is_squeezed_into_a_field(
    engine: mlxgen.Engine, model: mlxgen.Model, write_model: Callable[..., Path]
) -> None:
    folder = write_model()
    with model.new_cache() as cache:
        for field, work in (
            ("memory_limit", lambda: engine.set_limits(2**64)),
            ("pool_limit", lambda: engine.set_limits(0, -1)),
            ("prefill_chunk", lambda: engine.load_model(folder, prefill_chunk=2**32)),
            ("context_limit", lambda: engine.load_model(folder, context_limit=-1)),
            ("capacity", lambda: model.new_cache(capacity=2**64)),
            ("keep", lambda: cache.truncate(-1)),
        ):
            with pytest.raises(mlxgen.InvalidArgumentError) as caught:
                work()
            assert caught.value.detail.field == field


def test_trim_gives_pooled_memory_back(engine: mlxgen.Engine, model: mlxgen.Model) -> None:
    with model.new_cache() as cache:
        cache.append(range(64))
    assert engine.trim() >= 0
    assert engine.memory().pooled == 0


def test_suspended_engine_does_no_work(
    engine: mlxgen.Engine, load: Callable[..., mlxgen.Model]
) -> None:
    model = load(step_micros=500)
    cache = model.new_cache()
    stream = model.generate([1, 2, 3], max_tokens=2000)
    for _ in range(4):
        assert stream.next() is not None
    engine.suspend()
    with pytest.raises(mlxgen.WrongStateError):
        cache.append([1])
    with pytest.raises(mlxgen.WrongStateError):
        model.generate([1])
    with pytest.raises(mlxgen.WrongStateError):
        model.new_cache()
    # What was queued before may still be taken; then nothing comes.
    with pytest.raises(mlxgen.StreamTimeoutError):
        for _ in range(500):
            stream.next(timeout=0.1)
    engine.suspend()
    engine.resume()
    assert stream.next(timeout=5) is not None
    cache.append([1])
    engine.resume()
    stream.close()
    cache.close()


def test_resumed_generation_is_the_same(
    engine: mlxgen.Engine, load: Callable[..., mlxgen.Model]
) -> None:
    model = load(step_micros=300)
    expected = model.generate([7, 8], max_tokens=200).read().tokens
    stream = model.generate([7, 8], max_tokens=200)
    got: List[int] = []
    for number, event in enumerate(stream):
        if isinstance(event, mlxgen.TextEvent):
            got.extend(event.tokens)
        if number % 50 == 10:
            engine.suspend()
            time.sleep(0.01)
            engine.resume()
    assert tuple(got) == expected


def test_suspending_does_not_wait_longer_than_asked(
    engine: mlxgen.Engine, load: Callable[..., mlxgen.Model]
) -> None:
    model = load(step_micros=500_000)  # a step cannot be interrupted
    with model.generate([1], max_tokens=3) as stream:
        while isinstance(stream.next(), mlxgen.PrefillEvent):
            pass
        with pytest.raises(mlxgen.StreamTimeoutError):
            engine.suspend(timeout=0.05)
        engine.suspend(timeout=10)
        engine.resume()
        assert len(stream.read().tokens) == 2


def test_suspending_interrupts_a_prefill(
    engine: mlxgen.Engine, load: Callable[..., mlxgen.Model]
) -> None:
    """It goes on after the resume, and the append succeeds."""
    model = load(prefill_micros_per_token=5_000, prefill_chunk=64)
    cache = model.new_cache()
    worker = threading.Thread(target=lambda: cache.append(range(100)))
    worker.start()
    time.sleep(0.05)
    begin = time.monotonic()
    engine.suspend(timeout=10)
    assert time.monotonic() - begin < 0.2
    count = len(cache)
    time.sleep(0.6)
    assert len(cache) == count < 100
    engine.resume()
    worker.join()
    assert cache.tokens == list(range(100))
    cache.close()


def test_objects_outlive_their_engine(write_model: Callable[..., Path]) -> None:
    """Release order does not matter."""
    engine = mlxgen.Engine()
    model = engine.load_model(write_model())
    engine.close()
    cache = model.new_cache()
    stream = model.generate([1, 2], cache=cache, max_tokens=5)
    tokenizer = model.tokenizer
    model.close()
    cache.close()
    assert len(stream.read().tokens) == 5
    assert tokenizer.encode("a") == [97]
    tokenizer.close()


def test_a_closed_object_says_so(engine: mlxgen.Engine) -> None:
    engine.close()
    engine.close()
    assert engine.closed and "closed" in repr(engine)
    with pytest.raises(mlxgen.WrongStateError, match="this Engine is closed"):
        engine.memory()
