"""SmolLM2 as Q4_1: greedy tokens equal llama.cpp's, where the best two scores are not closer than the formats' error.

What llama.cpp says stands in `data/llama_cpp_smollm2.json`, which `scripts/llama_cpp_oracle.py` made.

The formats' error is found without llama.cpp: mlx-lm reads the same tokens twice, in float32 and with everything
rounded as llama.cpp's formats round it (`reference/rounded.py`). Such rounding hits a step as chance has it: llama.cpp,
whose sums have another order, is another draw from the same distribution. So not each step's own change counts, but
the greatest of all steps: by so much no lead over any of the next CONTENDERS is likely to change.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List

import numpy as np
import pytest

import mlxgen
from support.paths import ROOT, smollm2
from support.reference_weights import smollm2_folder

from .reference_process import Reference

CASES: List[Dict[str, Any]] = json.loads((ROOT / "tests/data/llama_cpp_smollm2.json").read_text())["cases"]
STEPS = 32
#: Scores next to the best one whose distance from it counts as a lead that may be lost.
CONTENDERS = 10
#: How much the root mean squares of two draws may differ: that of 320 steps, of which neighbours are alike, is
#: uncertain by about a twentieth.
SPREAD = 1.25


def lead(scores: np.ndarray, token: int) -> float:
    """By how much the score of `token` is above the best other one."""
    return float(scores[token] - np.delete(scores, token).max())


def mean(changes: List[float]) -> float:
    return float(np.sqrt(np.mean(np.square(changes))))


@dataclass(frozen=True)
class Formats:
    """What rounding does to the steps of all cases."""

    #: The lead of the best score in float32, for each case and step.
    leads: List[List[float]]
    #: The greatest change of a lead over one of the contenders.
    most: float
    #: The root mean square of the changes of the lead of llama.cpp's token.
    mean: float


@pytest.fixture(scope="module")
def formats(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Formats:
    folder: Path = tmp_path_factory.mktemp("scores")
    # All of one model first: the reference keeps one.
    for op, kind in (("forced", "float32"), ("inputs_rounded", "quantized")):
        for number, case in enumerate(CASES):
            read = [*case["ids"], *case["tokens"][:-1]]
            reference.ask(op, folder=smollm2_folder(kind), tokens=read, out=folder / f"{op}-{number}.npy")
    leads: List[List[float]] = []
    most, changes = 0.0, []
    for number, case in enumerate(CASES):
        exact, rounded = (np.load(folder / f"{op}-{number}.npy")[-STEPS:] for op in ("forced", "inputs_rounded"))
        leads.append([])
        for before, after, token in zip(exact, rounded, case["tokens"]):
            best, *others = np.argsort(-before)[: 1 + CONTENDERS]
            leads[-1].append(float(before[best] - before[others[0]]))
            most = max(most, float(np.abs((after[best] - after[others]) - (before[best] - before[others])).max()))
            changes.append(lead(after, token) - lead(before, token))
    return Formats(leads, most, mean(changes))


@pytest.fixture(scope="module")
def model(engine: mlxgen.Engine) -> Iterator[mlxgen.Model]:
    with engine.load_model(smollm2()) as loaded:
        yield loaded


def test_greedy_tokens_equal_llama_cpp(model: mlxgen.Model, formats: Formats) -> None:
    """Each step after llama.cpp's tokens before it. Its leads, too, are ours but for the formats' error: that
    compares all steps."""
    compared, changes = 0, []
    for case, leads in zip(CASES, formats.leads):
        assert len(case["tokens"]) == STEPS
        with model.new_cache() as cache:
            cache.append(case["ids"])
            for step, token in enumerate(case["tokens"]):
                scores = cache.logits_numpy()
                if leads[step] >= formats.most:
                    compared += 1
                    assert int(np.argmax(scores)) == token, f"{case['prompt']!r}, step {step}"
                changes.append(lead(scores, token) - case["leads"][step])
                cache.append([token])
    print(
        f"\nleads change by at most {formats.most:.2f}: {compared} of {len(changes)} steps compared; "
        f"root mean square {formats.mean:.3f}, against llama.cpp {mean(changes):.3f}"
    )
    assert compared >= len(changes) // 2
    assert mean(changes) < SPREAD * formats.mean


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_stream_says_the_same_up_to_the_first_near_tie(
    model: mlxgen.Model, formats: Formats, number: int
) -> None:
    case, leads = CASES[number], formats.leads[number]
    with model.tokenizer as tokenizer:
        assert list(tokenizer.encode(case["prompt"])) == case["ids"]
    count = next((step for step, each in enumerate(leads) if each < formats.most), STEPS)
    if count:
        with model.generate(case["ids"], max_tokens=count, ignore_eos=True) as stream:
            assert list(stream.read().tokens) == case["tokens"][:count]
