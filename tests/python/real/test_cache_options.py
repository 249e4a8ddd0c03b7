"""Cache sets with options on the real model, numerics fast."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import numpy
import pytest

import mlxgen
from mlxgen import AffineKv, KvPages, KvTable, KvWindow, ReuseStop, TurboQuantKv

SCHEMES: Dict[str, Dict[str, Any]] = {
    "plain": {},
    "4-bit": {"precision": AffineKv(4, start=0)},
    "8-bit from 50": {"precision": AffineKv(8, 32, start=50)},
    "table": {"precision": KvTable('[{"layer_idx": 0, "bits": 8}, {"layer_idx": 29, "bits": 4}]')},
    "TurboQuant": {"precision": TurboQuantKv(8, 3)},
    "TurboQuant from 50": {"precision": TurboQuantKv(4, 4, start=50)},
    "window": {"window": KvWindow(60)},
    "window of 4 bits": {"window": KvWindow(60, keep=0), "precision": AffineKv(4, start=0)},
    "pages": {"pages": KvPages(16)},
    "pages of 4 bits": {"pages": KvPages(32), "precision": AffineKv(4, start=0)},
}
PROMPT = [1000 + i * 7919 % 40000 for i in range(90)]


@pytest.fixture(scope="module")
def model(engine: mlxgen.Engine, smollm2: Path) -> Iterator[mlxgen.Model]:
    with engine.load_model(smollm2) as made:
        yield made


def greedy(model: mlxgen.Model, prompt: List[int], count: int, **more: Any) -> List[int]:
    with model.generate(prompt, max_tokens=count, ignore_eos=True, **more) as stream:
        return list(stream.read().tokens)


@pytest.mark.parametrize("name", SCHEMES)
def test_u01_to_u03_and_b64_any_cut_any_fork_any_way_back(model: mlxgen.Model, name: str) -> None:
    """U01 a generation over several calls, U02 steps back, U03 copies that diverge, B64 chunks of a
    prompt that is longer than the window: always the bits of one uninterrupted run."""
    scheme = SCHEMES[name]
    with model.new_cache(**scheme) as cache:
        whole = greedy(model, PROMPT, 24, cache=cache)
        cache.append([7])
        expected = cache.logits()
    for cuts in ([1, 1, 48, 2, 38], [49, 41], [90]):
        with model.new_cache(**scheme) as cache:
            at = 0
            for cut in cuts:
                cache.append(PROMPT[at : at + cut])
                at += cut
            assert at == len(PROMPT)
            with cache.fork() as fork:
                assert greedy(model, PROMPT, 3, cache=fork) == whole[:3]
            first = greedy(model, PROMPT, 4, cache=cache)
            rest = greedy(model, PROMPT + first, 20, cache=cache)
            assert first + rest == whole
            # Back by what a window may take back, and the same again.
            assert cache.truncate(len(cache) - 10) == 10
            assert greedy(model, PROMPT + whole[:20], 4, cache=cache) == whole[20:]
            cache.append([7])
            assert cache.logits() == expected
            assert cache.truncate(0) == len(PROMPT) + 24
            assert greedy(model, PROMPT, 24, cache=cache) == whole


@pytest.mark.parametrize("name", [name for name in SCHEMES if "from" in name])
def test_u04_a_running_set_is_reduced_and_says_so(model: mlxgen.Model, name: str) -> None:
    """U04: at the first token beyond the start all tokens are quantised; what is shorter than that
    cannot be taken for what its tokens alone would have made."""
    with model.new_cache() as plain, model.new_cache(**SCHEMES[name]) as cache:
        for held in (plain, cache):
            held.append(PROMPT[:50])
        assert plain.logits() == cache.logits()
        assert cache.info().bytes == plain.info().bytes
        for held in (plain, cache):
            held.append(PROMPT[50:60])
        assert plain.logits() != cache.logits()
        near = max(abs(a - b) for a, b in zip(plain.logits(), cache.logits()))
        assert near < (2 if "8-bit" in name else 8)
        info = cache.info()
        assert info.bytes < 0.6 * plain.info().bytes
        assert {layer.minimum_reusable_offset for layer in info.layers} == {50}
        for other, reused, why in (
            (PROMPT[:55] + [9, 9], 55, ReuseStop.DIVERGED),
            (PROMPT[:30] + [9, 9], 0, ReuseStop.REDUCED),
            (PROMPT[:40], 0, ReuseStop.REDUCED),
        ):
            with cache.fork() as fork, model.generate(
                other, cache=fork, max_tokens=4, ignore_eos=True
            ) as stream:
                prefill = next(iter(stream))
                assert isinstance(prefill, mlxgen.PrefillEvent)
                assert (prefill.reused, prefill.reuse_stop) == (reused, why)
                found = stream.read().tokens
            with model.new_cache(**SCHEMES[name]) as fresh:
                assert list(found) == greedy(model, other, 4, cache=fresh)
        # What would not be what fewer tokens alone have made is not kept.
        with pytest.raises(mlxgen.WrongStateError) as caught:
            cache.truncate(30)
        assert caught.value.detail.field == "layer" and caught.value.detail.position == 0
        assert len(cache) == 60
        cache.truncate(50)
        cache.append(PROMPT[50:60])
        assert cache.info().layers[0].minimum_reusable_offset == 50
        cache.truncate(0)
        cache.append(PROMPT[:30])
        with model.new_cache() as short:
            short.append(PROMPT[:30])
            assert short.logits() == cache.logits()


def test_layers_tell_what_became_of_the_options(model: mlxgen.Model) -> None:
    def signatures(**scheme: Any) -> List[str]:
        with model.new_cache(**scheme) as cache:
            cache.append([1, 2, 3])
            return [layer.signature for layer in cache.info().layers]

    assert set(signatures()) == {"kv:segments:float16"}
    assert set(signatures(**SCHEMES["4-bit"])) == {"kv:segments:quant:4:64"}
    assert set(signatures(**SCHEMES["TurboQuant"])) == {"kv:segments:turboquant:8:3"}
    assert set(signatures(**SCHEMES["pages"])) == {"kv:pages:16:float16"}
    table = signatures(**SCHEMES["table"])
    assert (table[0], table[1], table[29]) == (
        "kv:segments:quant:8:64", "kv:segments:float16", "kv:segments:quant:4:64",
    )
    # TurboQuant leaves windows alone.
    both = {"window": KvWindow(60), "precision": TurboQuantKv()}
    assert set(signatures(**both)) == {"kv:segments:float16"}


def test_forks_share_what_they_have_in_common(model: mlxgen.Model) -> None:
    with model.new_cache() as cache:
        cache.append([i % 1000 for i in range(600)])
        segment = cache.info().layers[0].bytes // 3
        with cache.fork() as fork:
            layer = fork.info().layers[0]
            assert (layer.bytes, layer.shared_bytes) == (3 * segment, 3 * segment)
            fork.append([1])
            assert fork.info().layers[0].shared_bytes == 2 * segment
            cache.append([2])
            assert cache.info().layers[0].shared_bytes == 2 * segment
        cache.append([3])
        assert cache.info().layers[0].shared_bytes == 0


def test_b74_b76_pages_run_out_and_come_back(model: mlxgen.Model) -> None:
    with model.new_cache(pages=KvPages(16, capacity=64)) as cache:
        cache.append(PROMPT[:48])
        before = cache.logits()
        with cache.fork() as fork:
            fork.append(PROMPT[48:64])
            with pytest.raises(mlxgen.OutOfMemoryError) as caught:
                cache.append([5])
            assert caught.value.detail.field == "page_capacity"
            assert (len(cache), len(fork)) == (48, 64)
            with pytest.raises(mlxgen.OutOfMemoryError):
                model.generate(PROMPT[:48] + [5], cache=cache, max_tokens=4).read()
            assert len(cache) == 48
        cache.append([5])
        with model.new_cache() as alone:
            alone.append(PROMPT[:48])
            assert alone.logits() == before
            alone.append([5])
            assert alone.logits() == cache.logits()


def test_options_without_a_meaning_are_refused_by_name(model: mlxgen.Model) -> None:
    for scheme, error, field in (
        ({"precision": AffineKv(7)}, mlxgen.InvalidArgumentError, "kv_bits"),
        ({"precision": AffineKv(4, 48)}, mlxgen.InvalidArgumentError, "kv_group"),
        ({"precision": AffineKv(4, 128)}, mlxgen.UnsupportedError, "kv_group"),
        ({"precision": TurboQuantKv(3, 3)}, mlxgen.InvalidArgumentError, "turboquant_key_bits"),
        ({"precision": KvTable("{}")}, mlxgen.InvalidArgumentError, "kv_config"),
        ({"precision": KvTable('[{"layer_idx": 30, "bits": 4}]')}, mlxgen.InvalidArgumentError, "kv_config"),
        ({"window": KvWindow(8, keep=8)}, mlxgen.InvalidArgumentError, "window_keep"),
        ({"pages": KvPages(8)}, mlxgen.UnsupportedError, "page_tokens"),
        ({"pages": KvPages(16), "window": KvWindow(8)}, mlxgen.InvalidArgumentError, "page_tokens"),
    ):
        with pytest.raises(error) as caught:
            model.new_cache(**scheme)
        assert caught.value.detail.field == field, scheme


def test_a_cut_that_a_window_cannot_take_changes_nothing(model: mlxgen.Model) -> None:
    """B60"""
    with model.new_cache(window=KvWindow(60)) as cache:
        cache.append([i % 1000 for i in range(1000)])
        with pytest.raises(mlxgen.WrongStateError) as caught:
            cache.truncate(500)
        assert caught.value.detail.field == "layer" and caught.value.detail.position == 0
        assert len(cache) == 1000 and cache.info().trimmable
        with model.new_cache() as all_of_them:
            all_of_them.append([i % 1000 for i in range(1000)])
            assert 2 * cache.info().bytes <= all_of_them.info().bytes
        cache.append([1])
        assert cache.truncate(0) == 1001
        cache.append([1])


def test_b70_the_longest_of_several_rows_ends_first(model: mlxgen.Model) -> None:
    """B70: rows that run side by side are each the row alone, whichever ends first."""
    scheme = {"precision": TurboQuantKv(8, 8)}
    rows = [(PROMPT[:12], 2), (PROMPT[20:23], 20), (PROMPT[40:41], 20)]
    alone = []
    for prompt, count in rows:
        with model.new_cache(**scheme) as cache:
            alone.append(greedy(model, prompt, count, cache=cache))
    caches = [model.new_cache(**scheme) for _ in rows]
    streams = [
        model.generate(prompt, cache=cache, max_tokens=count, ignore_eos=True)
        for (prompt, count), cache in zip(rows, caches)
    ]
    assert [list(stream.read().tokens) for stream in streams] == alone
    for held in (*streams, *caches):
        held.close()


def test_what_forks_share_is_counted_once(engine: mlxgen.Engine, model: mlxgen.Model) -> None:
    def counted(wanted: int) -> bool:
        """Releases are carried out a moment later."""
        for _ in range(100):
            if engine.memory().caches - before == wanted:
                return True
            time.sleep(0.02)
        return False

    before = engine.memory().caches
    cache = model.new_cache()
    cache.append([i % 1000 for i in range(600)])
    held = cache.info().bytes
    assert counted(held)
    forks = [cache.fork() for _ in range(50)]
    assert counted(held)
    cache.close()
    for fork in forks[1:]:
        fork.close()
    assert counted(held)
    forks[0].append([1])
    assert counted(held)
    forks[0].close()
    assert counted(0)


def test_more_than_the_context_is_refused_before_it_is_copied(model: mlxgen.Model) -> None:
    """Rows and tokens that are there, but fit nowhere."""
    many = mlxgen.Embeddings(numpy.zeros((9000, 576), dtype=numpy.float32), b"many")
    for prompt in ([[1], many], [1] * 9000):
        for call in (
            lambda: model.generate(prompt),
            lambda: model.new_cache().append(prompt),
        ):
            with pytest.raises(mlxgen.ContextFullError):
                call()
    with model.new_cache() as cache:
        for values, key in (
            (numpy.full((1, 576), numpy.nan, dtype=numpy.float32), b"a"),
            (numpy.zeros((0, 576), dtype=numpy.float32), b"a"),
            (numpy.zeros((1, 576), dtype=numpy.float32), b"a" * (1 << 17)),
        ):
            with pytest.raises(mlxgen.InvalidArgumentError):
                cache.append([[1], mlxgen.Embeddings(values, key)])
        assert len(cache) == 0
