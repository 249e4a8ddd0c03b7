"""A model whose weights are NaN or infinite: it loads, as in mlx-lm, and its generations end in an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import mlxgen
from support.table_model import chain, write_table_model

#: What the table says one after another.
SAID = [10, 11, 12, 13, 14]
CHOICES: List[Dict[str, Any]] = [
    {},
    {"top_logprobs": 3},
    {"temperature": 0.7, "seed": 3},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.7, "min_p": 0.05},
    {"temperature": 0.7, "top_k": 5, "top_logprobs": 3},
]
Weights = Dict[str, "np.ndarray[Any, Any]"]
NUMERICS = (mlxgen.Numerics.FAST, mlxgen.Numerics.EXACT)


def damaged(folder: Path, change: Callable[[Weights], None]) -> Path:
    """The table model with changed weights."""
    write_table_model(folder, chain(SAID))
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    return folder


def said(model: mlxgen.Model, prompt: List[int], **choice: Any) -> List[int]:
    """The tokens until the end; those before a failure are its `args`."""
    tokens: List[int] = []
    with model.generate(prompt, max_tokens=20, **choice) as stream:
        try:
            for event in stream:
                tokens += getattr(event, "tokens", ())
        except mlxgen.InvalidModelError as error:
            assert "not numbers" in str(error)
            assert list(stream) == []
            raise Failed(tokens) from error
    return tokens


class Failed(Exception):
    @property
    def tokens(self) -> List[int]:
        tokens: List[int] = self.args[0]
        return tokens


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("odd", (np.nan, np.inf, -np.inf))
def test_a_generation_ends_where_scores_are_no_numbers(
    engine: mlxgen.Engine, tmp_path: Path, numerics: mlxgen.Numerics, odd: float
) -> None:
    """The row of one token is at fault: what comes before it is said."""

    def change(weights: Weights) -> None:
        weights["model.embed_tokens.weight"][SAID[2], 7] = odd

    folder = damaged(tmp_path / "model", change)
    with engine.load_model(folder, numerics=numerics) as model:
        for choice in CHOICES:
            with pytest.raises(Failed) as failed:
                said(model, [256], **choice)
            assert failed.value.tokens == SAID[:3], choice
            with pytest.raises(Failed) as failed:
                said(model, [SAID[2]], **choice)
            assert failed.value.tokens == []
        # What does not meet that row is right as ever; scores that are asked for are told as they are.
        assert said(model, [SAID[3]]) == SAID[4:]
        with model.new_cache() as cache:
            cache.append([SAID[2]])
            assert np.isnan(cache.logits_numpy()).any()


@pytest.mark.parametrize("numerics", NUMERICS)
def test_one_score_is_enough(
    engine: mlxgen.Engine, tmp_path: Path, numerics: mlxgen.Numerics
) -> None:
    def scored(value: float) -> Callable[[Weights], None]:
        """The score of token 200 after the second token is `value` times four."""

        def change(weights: Weights) -> None:
            weights["model.norm.weight"] *= 4
            weights["lm_head.weight"] /= 4
            weights["lm_head.weight"][200, SAID[1]] = value

        return change

    for name, value in (("nan", np.nan), ("large", 3e38)):
        folder = damaged(tmp_path / name, scored(value))
        with engine.load_model(folder, numerics=numerics) as model:
            for choice in CHOICES:
                with pytest.raises(Failed) as failed:
                    said(model, [256], **choice)
                # NaN times 0 is NaN: there, no score of that token is ever a number.
                assert failed.value.tokens == ([] if name == "nan" else SAID[:2]), (name, choice)
    # A token that can never be chosen stands in nobody's way.
    folder = damaged(tmp_path / "never", scored(-3e38))
    with engine.load_model(folder, numerics=numerics) as model:
        for choice in CHOICES:
            assert said(model, [256], **choice) == SAID
