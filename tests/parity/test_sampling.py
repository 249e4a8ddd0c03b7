"""Sampling, numerics exact: the same draws as mlx-lm's filters and MLX's categorical give with
the key of each step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest

import mlxgen

from .cases import prompt
from .reference_process import Reference

OPTIONS: List[Dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 2.5},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 1.0, "top_p": 0.95},
    {"temperature": 1.3, "top_p": 1e-6},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 2.0, "min_p": 0.02},
    {"temperature": 2.0, "min_p": 1.0},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.5, "top_k": 2},
    {"temperature": 1.5, "top_k": 40},
    {"temperature": 1.5, "top_k": 287},
    {"temperature": 1.5, "top_k": 288},
    {"temperature": 1.5, "top_k": 2**32 - 1},
    {"temperature": 1.2, "top_p": 0.9, "min_p": 0.05, "top_k": 20},
]
SEEDS = (0, 1, 2**63, 2**64 - 1)
COUNT = 24
NAMES = ("float32-grouped-untied", "bfloat16-grouped-tied")


def label(options: Dict[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in options.items())


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> Path:
    return tiny(request.param)


@pytest.fixture(scope="module")
def model(engine: mlxgen.Engine, folder: Path) -> Iterator[mlxgen.Model]:
    with engine.load_model(folder, numerics=mlxgen.Numerics.EXACT) as loaded:
        yield loaded


def draw(model: mlxgen.Model, ids: List[int], count: int, seed: int, **options: Any) -> List[int]:
    with model.generate(ids, max_tokens=count, ignore_eos=True, seed=seed, **options) as stream:
        return list(stream.read().tokens)


@pytest.mark.parametrize("options", OPTIONS, ids=label)
def test_each_draw_equals_mlx_lm(
    reference: Reference, model: mlxgen.Model, folder: Path, options: Dict[str, Any]
) -> None:
    ids = prompt(7)
    for seed in SEEDS:
        wanted = reference.ask(
            "sampled", folder=folder, prompt=ids, options=options, seed=seed, count=COUNT
        )
        assert draw(model, ids, COUNT, seed, **options) == wanted, f"seed {seed}"


@pytest.mark.parametrize("options", OPTIONS, ids=label)
def test_the_same_tokens_survive(
    reference: Reference, model: mlxgen.Model, folder: Path, options: Dict[str, Any]
) -> None:
    """Over many seeds the first token is drawn as the reference draws it, and only survivors of
    its filters come out."""
    ids, seeds = prompt(7), list(range(64))
    wanted = reference.ask(
        "first_tokens", folder=folder, prompt=ids, options=options, seeds=seeds
    )
    draws = [draw(model, ids, 1, seed, **options)[0] for seed in seeds]
    assert set(draws) <= set(wanted["survivors"])
    assert Counter(draws) == Counter(wanted["draws"])
    assert draws == wanted["draws"]


def test_logprobs_are_the_models_own(
    reference: Reference, model: mlxgen.Model, folder: Path
) -> None:
    """B52: reported before temperature and filters, and the chosen one is the same number."""
    ids = prompt(7)
    wanted = reference.ask(
        "first_tokens", folder=folder, prompt=ids, options={"temperature": 1.0}, seeds=[]
    )["logprobs"]
    with model.generate(
        ids, max_tokens=1, temperature=0.5, top_k=3, seed=5, logprobs=True, top_logprobs=5
    ) as stream:
        event = next(e for e in stream if isinstance(e, mlxgen.TextEvent) and e.tokens)
    best = sorted(range(len(wanted)), key=lambda token: (-wanted[token], token))[:5]
    assert [entry.token for entry in event.top_logprobs[0]] == best
    assert [entry.logprob for entry in event.top_logprobs[0]] == [wanted[i] for i in best]
    assert event.logprobs[0] == wanted[event.tokens[0]]
