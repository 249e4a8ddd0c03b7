"""Tiny models of every family, numerics exact: scores bit-equal to mlx-lm's, greedy tokens equal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Callable, List, Tuple

import pytest

import mlxgen

from .cases import prompt
from .compare import Expected, Mismatch, compare_scores, compare_tokens, expect
from .families import CHUNKS, DTYPES, LONG, LONG_PROMPT, PROMPT_SIZES, SHORT
from .reference_process import Reference
from .test_tiny_llamas import perturb

MODELS = [(name, dtype) for name, dtypes in DTYPES.items() for dtype in dtypes]


def expectations(reference: Reference, path: Path, chunk: int, out: Path) -> List[Tuple[bool, Expected]]:
    """What mlx-lm says about each prompt, and whether about many steps."""
    found = [(False, expect(reference, path, prompt(size), chunk, SHORT, out)) for size in PROMPT_SIZES]
    found.append((True, expect(reference, path, prompt(LONG_PROMPT), chunk, LONG, out)))
    return found


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize(("name", "dtype"), MODELS, ids=[f"{name}-{dtype}" for name, dtype in MODELS])
def test_scores_and_tokens_equal_mlx_lm(
    engine: mlxgen.Engine,
    reference: Reference,
    family_folder: Callable[[str, str], Path],
    tmp_path: Path,
    name: str,
    dtype: str,
    chunk: int,
) -> None:
    """Also that the same comparison fails for a model with one other element of a norm."""
    path = family_folder(name, dtype)
    wanted = expectations(reference, path, chunk, tmp_path / "scores.npy")
    exact = {"numerics": mlxgen.Numerics.EXACT, "prefill_chunk": chunk, "context_limit": 0}
    with engine.load_model(path, **exact) as model:
        for long, expected in wanted:
            if long:
                assert len(set(expected.tokens)) >= 20, "the model repeats itself and proves little"
                compare_tokens(model, expected)
            compare_scores(model, expected)
    changed = tmp_path / "changed"
    shutil.copytree(path, changed)
    perturb(changed, "model.norm.weight")
    with engine.load_model(changed, **exact) as model:
        for _, expected in wanted:
            with pytest.raises(Mismatch):
                compare_scores(model, expected)
