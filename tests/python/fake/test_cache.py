"""Cache sets."""

from __future__ import annotations

import threading
import time
from array import array
from typing import Any, Callable, Iterator, List

import numpy
import pytest

import mlxgen


@pytest.fixture
def cache(model: mlxgen.Model) -> Iterator[mlxgen.CacheSet]:
    with model.new_cache() as made:
        yield made


def test_append_and_logits(model: mlxgen.Model, cache: mlxgen.CacheSet) -> None:
    cache.append([1, 2, 3])
    scores = cache.logits()
    assert isinstance(scores, array) and scores.typecode == "f"
    assert len(scores) == model.info.vocabulary
    as_numpy = cache.logits_numpy()
    assert as_numpy.dtype == numpy.float32 and as_numpy.tolist() == scores.tolist()
    cache.append([4])
    assert cache.logits() != scores
    # One append or several, the same tokens give the same scores.
    with model.new_cache() as other:
        other.append([1, 2, 3, 4])
        assert other.logits() == cache.logits()


def test_every_form_of_tokens(cache: mlxgen.CacheSet) -> None:
    forms: List[Any] = [
        [1, 2],
        (1, 2),
        range(1, 3),
        iter([1, 2]),
        array("I", [1, 2]),
        array("q", [1, 2]),
        memoryview(array("I", [1, 2])),
        memoryview(array("I", [1, 9, 2]))[::2],
        numpy.array([1, 2]),
        numpy.array([1, 2], dtype=numpy.uint32),
    ]
    for form in forms:
        cache.append(form)
    assert cache.tokens == [1, 2] * len(forms)
    for bad in ("12", b"12", [1.5], [None], 3):
        with pytest.raises(TypeError):
            cache.append(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "position"),
    [([1, 260], 1), ([1, -1], 1), ([1, 4294967295], 1), ([1, 2147483648], 1), ([2**40], 0)],
)
def test_b42_ids_beyond_the_vocabulary(
    model: mlxgen.Model, cache: mlxgen.CacheSet, tokens: List[int], position: int
) -> None:
    """B42: refused with the position, before any work; the cache set stays usable."""
    for call in (cache.append, lambda ids: model.generate(ids, cache=cache)):
        with pytest.raises(mlxgen.InvalidArgumentError) as caught:
            call(tokens)
        assert caught.value.detail.field == "tokens"
        assert caught.value.detail.position == position
    assert len(cache) == 0
    cache.append([259])
    assert cache.tokens == [259]


def test_b148_no_tokens(model: mlxgen.Model, cache: mlxgen.CacheSet) -> None:
    """B148: no tokens is an argument error before any work."""
    cache.append([5])
    with pytest.raises(mlxgen.InvalidArgumentError):
        cache.append([])
    with pytest.raises(mlxgen.InvalidArgumentError):
        model.generate([])
    with pytest.raises(mlxgen.InvalidArgumentError):
        model.generate([], cache=cache)
    assert cache.tokens == [5] and cache.logits()


def test_b150_capacity_and_context(load: Callable[..., mlxgen.Model]) -> None:
    """B150: more tokens than fit are refused up front; nothing of them is read."""
    model = load(context_limit=32)
    with model.new_cache() as cache:
        assert cache.info().capacity == 32
        with pytest.raises(mlxgen.ContextFullError):
            cache.append([1] * 33)
        assert len(cache) == 0
        cache.append([1] * 32)
        with pytest.raises(mlxgen.ContextFullError):
            cache.append([1])
        assert len(cache) == 32
    with model.new_cache(capacity=16) as small:
        small.append([1] * 10)
        with pytest.raises(mlxgen.ContextFullError):
            small.append([1] * 7)
        assert len(small) == 10
    with model.new_cache(capacity=1000) as large:
        assert large.info().capacity <= 32


def test_truncate(cache: mlxgen.CacheSet) -> None:
    cache.append([1, 2, 3])
    before = cache.logits()
    cache.append([4, 5])
    assert cache.truncate(3) == 2
    assert cache.tokens == [1, 2, 3]
    with pytest.raises(mlxgen.WrongStateError):
        cache.logits()  # the last change was not an append
    with pytest.raises(mlxgen.InvalidArgumentError):
        cache.truncate(4)
    assert cache.truncate(2) == 1
    cache.append([3])
    assert cache.logits() == before
    assert cache.truncate(0) == 3 and len(cache) == 0
    assert cache.truncate(0) == 0


def test_a_cache_that_cannot_forget(load: Callable[..., mlxgen.Model]) -> None:
    model = load(trimmable=False)
    with model.new_cache() as cache:
        cache.append([1, 2, 3])
        assert not cache.info().trimmable
        with pytest.raises(mlxgen.WrongStateError) as caught:
            cache.truncate(1)
        assert "layer" in str(caught.value)
        assert cache.tokens == [1, 2, 3]
        # A prompt that goes another way cannot reuse it.
        with pytest.raises(mlxgen.WrongStateError):
            model.generate([1, 9], cache=cache)
        assert cache.tokens == [1, 2, 3]


def test_logits_of_an_empty_cache(cache: mlxgen.CacheSet) -> None:
    with pytest.raises(mlxgen.WrongStateError):
        cache.logits()
    assert cache.tokens == [] and bool(cache)


def test_forks_are_independent(cache: mlxgen.CacheSet) -> None:
    cache.append([1, 2, 3])
    with cache.fork() as other:
        assert other.tokens == [1, 2, 3]
        other.append([4])
        cache.append([5])
        assert (cache.tokens, other.tokens) == ([1, 2, 3, 5], [1, 2, 3, 4])
        cache.truncate(0)
        assert other.tokens == [1, 2, 3, 4]
    assert len(cache) == 0


def test_info(load: Callable[..., mlxgen.Model]) -> None:
    model = load(layers=3, cache_bytes_per_token=300)
    with model.new_cache(capacity=100) as cache:
        cache.append([1, 2])
        info = cache.info()
        assert (info.tokens, info.capacity, info.bytes, info.trimmable) == (2, 100, 600, True)
        assert len(info.layers) == 3
        assert info.layers[0] == mlxgen.LayerCacheInfo("fake", 2, 200, 0, True, 0)


def test_cancelled_append_keeps_whole_chunks(load: Callable[..., mlxgen.Model]) -> None:
    model = load(prefill_chunk=16, prefill_micros_per_token=1000)
    tokens = [i % 256 for i in range(1000)]
    with mlxgen.Cancel() as cancel, model.new_cache() as cache:
        timer = threading.Timer(0.1, cancel.request)
        timer.start()
        begin = time.monotonic()
        with pytest.raises(mlxgen.CancelledError):
            cache.append(tokens, cancel=cancel)
        assert time.monotonic() - begin < 0.5
        timer.join()
        kept = len(cache)
        assert kept % 16 == 0 and 0 < kept < 1000
        assert cache.tokens == tokens[:kept]
        # The same token is still requested: nothing of a later append is read either.
        with pytest.raises(mlxgen.CancelledError):
            cache.append(tokens[kept:], cancel=cancel)
        assert len(cache) == kept
        # What was kept continues as if nothing had happened.
        cache.append(tokens[kept : kept + 40])
        with model.new_cache() as cold:
            cold.append(tokens[: kept + 40])
            assert cold.logits() == cache.logits()


def test_a_second_call_is_busy(load: Callable[..., mlxgen.Model]) -> None:
    model = load(prefill_micros_per_token=2000)
    with model.new_cache() as cache:
        worker = threading.Thread(target=lambda: cache.append(range(100)))
        worker.start()
        time.sleep(0.05)
        for call in (
            lambda: cache.append([1]),
            lambda: cache.truncate(0),
            cache.fork,
            cache.logits,
            lambda: model.generate([1], cache=cache),
        ):
            with pytest.raises(mlxgen.BusyError):
                call()
        assert isinstance(len(cache), int) and isinstance(cache.tokens, list)
        assert cache.info().capacity == 4096
        worker.join()
        assert len(cache) == 100


@pytest.mark.parametrize("place", ["prefill", "logits"])
@pytest.mark.parametrize("code", [8, 14, 15, 16, None])
def test_a_failed_append_keeps_whole_chunks(
    load: Callable[..., mlxgen.Model], place: str, code: Any
) -> None:
    """What `tokens` says is what the cache set covers; it goes on from there exactly."""
    fault = {"at": place, "after": 1, "count": 1}
    if code is not None:
        fault["code"] = code
    model = load(faults=[fault])
    kind = mlxgen.errors.CLASSES[16 if code is None else code]
    with model.new_cache() as cache:
        cache.append([1, 2, 3])
        with pytest.raises(kind):
            cache.append([4, 5, 6])
        kept = cache.tokens
        assert kept in ([1, 2, 3], [1, 2, 3, 4, 5])
        cache.append([4, 5, 6][len(kept) - 3 :])
        with model.new_cache() as cold:
            cold.append([1, 2, 3, 4, 5, 6])
            assert cold.logits() == cache.logits()


def test_failed_truncate_and_fork(load: Callable[..., mlxgen.Model]) -> None:
    model = load(
        faults=[
            {"at": "truncate", "count": 1, "code": 16},
            {"at": "fork", "count": 1},
            {"at": "new_state", "after": 1, "count": 1, "code": 8},
        ]
    )
    with model.new_cache() as cache:
        with pytest.raises(mlxgen.OutOfMemoryError):
            model.new_cache()
        cache.append([1, 2])
        with pytest.raises(mlxgen.InternalError):
            cache.truncate(1)
        with pytest.raises(mlxgen.InternalError):
            cache.fork()
        assert cache.tokens == [1, 2]
        assert cache.truncate(1) == 1
        cache.fork().close()


def test_a_panic_in_a_drop_is_contained(load: Callable[..., mlxgen.Model]) -> None:
    model = load(faults=[{"at": "drop_state", "count": 1}, {"at": "drop_model"}])
    cache = model.new_cache()
    cache.append([1])
    cache.close()
    assert model.generate([1], max_tokens=2).read().tokens
    model.close()
