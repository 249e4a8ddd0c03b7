"""Every scheme of a cache with every family, numerics exact: bit-equal to mlx-lm, or to its parts where it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest

import mlxgen
from mlxgen import AffineKv, KvPages, KvPrecision, KvWindow, Numerics, TurboQuantKv

from .cases import prompt
from .compare import Mismatch, compare_scores, compare_tokens, expect
from .families import BY_LENGTH, FAMILIES, LONG
from .reference_process import Reference
from .schemes import (
    CHUNK,
    OWN_WINDOW,
    SIZE,
    bits_of,
    check_nearest,
    rounded,
    scored,
    singly,
    turboquant,
)

#: Type, bits, group and start, by turns of the families: from the first token on; in the second forward of the prompt,
#: in the generation.
EARLY = [("float32", 4, 64, 0), ("float32", 8, 32, 0)]
LATE = [("bfloat16", 8, 64, 30), ("bfloat16", 4, 32, 30), ("bfloat16", 8, 32, 70), ("bfloat16", 4, 64, 70)]
QUANTISED = [
    (name, *turns[at % len(turns)]) for at, name in enumerate(FAMILIES) for turns in (EARLY, LATE)
]
PAGES = KvPages(16)
#: What mlx-lm 0.32.2 says about quantised caches of families with windows, and of some others: its attention there
#: does not take what its own cache gives.
NO_RINGS = "RotatingKVCache Quantization NYI"
REFUSED: Dict[str, str] = {
    **{name: NO_RINGS for name in ("llama", "ministral3", "gemma3", "olmo3", "cohere2", "exaone4")},
    "gemma2": "expand_dims",
    "stablelm": "'list' object has no attribute 'astype'",
    "stablelm-parallel": "'list' object has no attribute 'astype'",
}

Folder = Callable[[str, str], Path]


def load(engine: mlxgen.Engine, folder: Path) -> mlxgen.Model:
    return engine.load_model(folder, numerics=Numerics.EXACT, prefill_chunk=CHUNK, context_limit=0)


@pytest.mark.parametrize(("name", "dtype", "bits", "group", "start"), QUANTISED)
def test_quantised_keys_and_values_equal_mlx_lm(
    engine: mlxgen.Engine,
    reference: Reference,
    wide_family_folder: Folder,
    tmp_path: Path,
    name: str,
    dtype: str,
    bits: int,
    group: int,
    start: int,
) -> None:
    path, out = wide_family_folder(name, dtype), tmp_path / "scores.npy"
    scheme: Dict[str, Any] = {"kv_bits": bits, "kv_group_size": group, "quantized_kv_start": start}
    if name in REFUSED:
        with pytest.raises(RuntimeError, match=re.escape(REFUSED[name])):
            expect(reference, path, prompt(SIZE), CHUNK, LONG, out, scheme=scheme)
        scheme["caches"] = "reducible"
    wanted = expect(reference, path, prompt(SIZE), CHUNK, LONG, out, scheme=scheme)
    same = {"precision": AffineKv(bits, group, start)}
    with load(engine, path) as model:
        compare_scores(model, wanted, **same)
        if start > SIZE:
            compare_tokens(model, wanted, **same)
        for other in (AffineKv(12 - bits, group, start), AffineKv(bits, group, start + CHUNK + 1)):
            with pytest.raises(Mismatch):
                compare_scores(model, wanted, precision=other)


@pytest.mark.parametrize("name", FAMILIES)
def test_windows_equal_mlx_lm_and_pages_equal_plain(
    engine: mlxgen.Engine, reference: Reference, wide_family_folder: Folder, tmp_path: Path, name: str
) -> None:
    """Pages that are quantised hold no number at full precision, as a quantised cache that mlx-lm begins with."""
    path, out = wide_family_folder(name, "float32"), tmp_path / "scores.npy"
    window = {"window": OWN_WINDOW, "keep": 0}
    wanted = expect(reference, path, prompt(SIZE), CHUNK, LONG, out, scheme=window)
    bits = EARLY[(list(FAMILIES).index(name) + 1) % len(EARLY)][1]
    scheme = {"kv_bits": bits, "kv_group_size": 64, "quantized_kv_start": 0, "caches": "quantized_from_the_first"}
    quantised = expect(reference, path, prompt(SIZE), CHUNK, 2 * PAGES.tokens, out, scheme=scheme)
    with load(engine, path) as model:
        compare_scores(model, wanted, window=KvWindow(OWN_WINDOW, 0))
        for other in (KvWindow(OWN_WINDOW - 1, 0), KvWindow(OWN_WINDOW, 1), None):
            with pytest.raises(Mismatch):
                compare_scores(model, wanted, window=other)
        compare_scores(model, quantised, pages=PAGES, precision=AffineKv(bits, 64, 0))
        with pytest.raises(Mismatch):
            compare_scores(model, quantised, pages=PAGES, precision=AffineKv(12 - bits, 64, 0))
        plain = scored(model, wanted.prompt, wanted.tokens)
        compare_scores(model, plain, pages=PAGES)
        with pytest.raises(Mismatch):
            compare_scores(model, plain, pages=PAGES, precision=AffineKv(8, 64, 0))


@pytest.mark.parametrize("name", FAMILIES)
def test_codes_are_those_of_rounded_keys_and_values(
    engine: mlxgen.Engine, reference: Reference, wide_family_folder: Folder, tmp_path: Path, name: str
) -> None:
    """The first forward is read at full precision; then `start` is 1 for the reference."""
    path, ids = wide_family_folder(name, "float32"), prompt(SIZE + LONG)
    eager, deferred = bits_of(name)[-2:]
    chosen = [turboquant(*eager, 1), turboquant(*deferred, 70, deferred=True)]
    forwards = [CHUNK, SIZE - CHUNK - 1, 1]
    forwards += [1] * LONG if name in BY_LENGTH else [70 - SIZE, 90 - 70, SIZE + LONG - 90]
    expected = [
        rounded(reference, path, ids, scheme, forwards, tmp_path / "scores.npy")
        for scheme in [*chosen, turboquant(*deferred, 90)]
    ]
    found = []
    with load(engine, path) as model:
        for scheme in chosen:
            found.append(scored(model, ids[:SIZE], [*ids[SIZE:], 0], **scheme.options).scores)
    check_nearest(found, expected)
    with pytest.raises(Mismatch):
        check_nearest(found, expected[1:] + expected[:1])


def refusals(name: str, heads: int) -> List[Tuple[KvPrecision, str]]:
    """Of a model with heads of so many elements: what it does not permit, and the option that says so."""
    found: List[Tuple[KvPrecision, str]] = [
        (TurboQuantKv(8, 3), "turboquant_key_bits"),
        (AffineKv(4, 64, 0), "kv_group"),
        (AffineKv(8, 128, 20), "kv_group"),
    ]
    return found if heads == 32 else [*found, (AffineKv(8, 32, 0), "kv_group")]


@pytest.mark.parametrize("numerics", list(Numerics))
@pytest.mark.parametrize("name", FAMILIES)
def test_what_heads_do_not_permit_is_an_error_that_names_option_and_layer(
    engine: mlxgen.Engine, family_folder: Folder, name: str, numerics: Numerics
) -> None:
    with engine.load_model(family_folder(name, "float32"), numerics=numerics) as model:
        heads = model.info.head_dim
        with model.new_cache() as cache:
            cache.append(prompt(SIZE))
            before = cache.logits_numpy()
            windows = [layer.signature == "kv:rotating-plain" for layer in cache.info().layers]
        assert heads in (16, 32)
        for precision, option in refusals(name, heads):
            with pytest.raises(mlxgen.UnsupportedError, match=str(heads)) as caught:
                model.new_cache(precision=precision)
            detail = caught.value.detail
            assert detail.field == option
            # TurboQuant asks nothing of layers with windows.
            first = windows.index(False) if numerics == Numerics.EXACT and option.startswith("turbo") else None
            assert first is None or detail.position == first
            assert detail.position in (0, 1)
        with model.new_cache() as cache:
            cache.append(prompt(SIZE))
            assert cache.logits_numpy().tobytes() == before.tobytes()
        if heads == 32:
            with model.new_cache(precision=AffineKv(8, 32, 0)) as cache:
                cache.append(prompt(SIZE))
                singly(cache, prompt(LONG))
                assert len(cache) == SIZE + LONG
