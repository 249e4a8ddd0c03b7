"""Every scheme of a cache with every family, numerics fast: near MLX's over the same rounded keys and values, and the
same bits however the tokens came."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest
from numpy.typing import NDArray

import mlxgen
from mlxgen import AffineKv, KvPages, KvType, KvWindow

from .cases import prompt
from .compare import Mismatch, compare_scores, compare_tokens
from .families import BY_LENGTH, FAMILIES, LONG
from .reference_process import Reference
from .schemes import (
    OTHER_STARTS,
    OWN_WINDOW,
    SIZE,
    check_nearest,
    generated,
    rounded,
    schemes,
    scored,
    singly,
)
from .test_families_fast import BOUND

PAGES = KvPages(16)
#: Where a sequence is forked, and where it is cut: behind the last start.
FORKED, CUT = 50, 75
OTHER = [token ^ 1 for token in prompt(20)]

Folder = Callable[[str, str], Path]


def forwards(name: str, start: int) -> List[int]:
    """In which the reference reads what the library reads as a prompt of `SIZE` and single tokens, if it may not read
    all at once."""
    before = [start, SIZE - start] if 0 < start < SIZE else [SIZE]
    if name in BY_LENGTH:
        return before + [1] * LONG
    return [*before, start - SIZE, SIZE + LONG - start] if start > SIZE else [*before, LONG]


@pytest.mark.parametrize("name", FAMILIES)
def test_scores_are_those_of_rounded_keys_and_values(
    engine: mlxgen.Engine, reference: Reference, wide_family_folder: Folder, tmp_path: Path, name: str
) -> None:
    """The reference's MLX attends over float32 numbers that were rounded as the scheme says."""
    path, ids = wide_family_folder(name, "float32"), prompt(SIZE + LONG)
    chosen = schemes(name)
    expected = [
        rounded(reference, path, ids, scheme, forwards(name, scheme.start), tmp_path / "scores.npy")
        for scheme in chosen + OTHER_STARTS
    ]
    found = []
    with engine.load_model(path) as model:
        for scheme in chosen:
            options = {"kv_type": KvType.FLOAT32, **scheme.options}
            found.append(scored(model, ids[:SIZE], [*ids[SIZE:], 0], **options).scores)
    check_nearest(found, expected)
    with pytest.raises(Mismatch):
        check_nearest(found, expected[1:] + expected[:1])


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_depends_on_how_the_tokens_came(
    engine: mlxgen.Engine, wide_family_folder: Folder, name: str
) -> None:
    """Cuts of the prompt, forks, cut sets that read on, sets begun again, pages: the same bits under every scheme."""
    path = wide_family_folder(name, "float32")
    ids = prompt(SIZE + LONG)
    parts = [ids[:FORKED], ids[FORKED:CUT], ids[CUT:]]
    other_parts = [ids[:1], ids[1:40], ids[40:43], ids[43:97], ids[97:98], ids[98:99], ids[99:]]
    chosen: List[Tuple[Dict[str, Any], int]] = [({}, 0), ({"window": KvWindow(OWN_WINDOW, 4)}, 0)]
    chosen += [(scheme.options, scheme.start) for scheme in schemes(name)]
    ends = []

    def end(cache: mlxgen.CacheSet, parts: List[List[int]]) -> bytes:
        for part in parts:
            cache.append(part)
        return cache.logits_numpy().tobytes()

    with engine.load_model(path) as model, engine.load_model(path, prefill_chunk=7) as in_chunks:
        for options, start in chosen:
            with model.new_cache(**options) as cache:
                expected = end(cache, parts)
            ends.append(expected)
            if name not in BY_LENGTH:
                for cut in ([ids], other_parts):
                    with model.new_cache(**options) as cache:
                        assert end(cache, cut) == expected, options
            with in_chunks.new_cache(**options) as cache:
                assert end(cache, parts) == expected, options
                if start:
                    # What was reduced after the fact is good for no shorter prefix.
                    with pytest.raises(mlxgen.WrongStateError, match="layer"):
                        cache.truncate(start - 1)
                cache.truncate(CUT)
                end(cache, [OTHER[:5], OTHER[5:]])
                cache.truncate(CUT)
                assert end(cache, parts[2:]) == expected, f"cut: {options}"
                cache.truncate(0)
                end(cache, parts[:1])
                with cache.fork() as fork:
                    end(fork, [OTHER])
                    assert end(cache, parts[1:]) == expected, f"forked: {options}"
                with cache.fork() as fork:
                    fork.truncate(CUT)
                    assert end(fork, parts[2:]) == expected, f"a fork: {options}"
            if "window" not in options:
                with model.new_cache(**options, pages=PAGES) as cache:
                    assert end(cache, parts) == expected, f"in pages: {options}"
    assert len(set(ends)) == len(ends), "two schemes are the same"


@pytest.mark.parametrize("name", FAMILIES)
def test_pages_change_no_bit_of_streams_and_scores(
    engine: mlxgen.Engine, wide_family_folder: Folder, name: str
) -> None:
    with engine.load_model(wide_family_folder(name, "float32")) as model:
        for options in ({}, schemes(name)[-1].options):
            said = generated(model, **options)
            assert len(set(said.tokens)) >= 8, "the model repeats itself and proves little"
            compare_scores(model, said, **options, pages=PAGES)
            compare_tokens(model, said, **options, pages=PAGES)
            with pytest.raises(Mismatch):
                compare_scores(model, said, pages=PAGES, precision=AffineKv(8, 64, 0))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_window_with_kept_tokens_is_that_of_exact(
    engine: mlxgen.Engine, wide_family_folder: Folder, name: str
) -> None:
    path = wide_family_folder(name, "float32")
    ids = prompt(SIZE + LONG)

    def scores(model: mlxgen.Model, tokens: int, keep: int) -> NDArray[np.float32]:
        with model.new_cache(kv_type=KvType.FLOAT32, window=KvWindow(tokens, keep)) as cache:
            # mlx-lm reads the last token of a prompt by itself, so that the rest reaches another length.
            first = 1 if name in BY_LENGTH else SIZE
            cache.append(ids[:first])
            return np.stack(singly(cache, ids[first:])[-LONG:])

    with engine.load_model(path, numerics=mlxgen.Numerics.EXACT) as model:
        exact = scores(model, OWN_WINDOW, 4)
    bound = BOUND * np.abs(exact).max(axis=1)
    with engine.load_model(path) as model:
        assert (np.abs(scores(model, OWN_WINDOW, 4) - exact).max(axis=1) <= bound).all()
        for tokens, keep in ((OWN_WINDOW - 1, 4), (OWN_WINDOW, 3)):
            assert (np.abs(scores(model, tokens, keep) - exact).max(axis=1) > bound).mean() > 0.5
