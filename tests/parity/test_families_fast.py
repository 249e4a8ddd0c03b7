"""Tiny models of every family, numerics fast: near the exact ones, and the same bits however a prompt is read."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, List

import numpy as np
import pytest

import mlxgen

from .cases import prompt
from .families import BY_LENGTH, DTYPES

SIZE = 100
#: float32 activations over keys and values in float32 differ from MLX's by rounding alone: a few units in the last
#: place a product, which random layers make larger.
BOUND = 1e-4


def scores(model: mlxgen.Model, parts: List[List[int]]) -> List["np.ndarray"]:
    """The scores after each part."""
    found = []
    with model.new_cache(kv_type=mlxgen.KvType.FLOAT32) as cache:
        for part in parts:
            cache.append(part)
            found.append(cache.logits_numpy())
    return found


@pytest.mark.parametrize("name", list(DTYPES))
def test_fast_scores_are_near_the_exact_ones_and_do_not_depend_on_the_parts(
    engine: mlxgen.Engine, family_folder: Callable[[str, str], Path], name: str
) -> None:
    path = family_folder(name, "float32")
    ids = prompt(SIZE)
    singly = [[token] for token in ids + ids[:1]]
    with engine.load_model(path, numerics=mlxgen.Numerics.EXACT) as model:
        # mlx-lm reads the last token of a prompt by itself, so that the rest reaches another length.
        exact = scores(model, singly if name in BY_LENGTH else [ids, ids[:1]])[-2:]
    with engine.load_model(path) as model:
        whole = scores(model, [ids, ids[:1]])
        in_parts = scores(model, [ids[:1], ids[1:40], ids[40:43], ids[43:], ids[:1]])
        one_by_one = scores(model, singly)
    for fast, wanted in zip(one_by_one[-2:] if name in BY_LENGTH else whole, exact):
        assert np.abs(fast - wanted).max() <= BOUND * np.abs(wanted).max()
    if name not in BY_LENGTH:
        assert whole[-1].tobytes() == in_parts[-1].tobytes() == one_by_one[-1].tobytes()
        assert whole[0].tobytes() == in_parts[-2].tobytes() == one_by_one[-2].tobytes()
    with engine.load_model(path, prefill_chunk=24) as model:
        in_chunks = scores(model, [ids, ids[:1]])
    assert [row.tobytes() for row in in_chunks] == [row.tobytes() for row in whole]
