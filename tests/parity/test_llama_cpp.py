"""SmolLM2 as Q4_1: greedy tokens equal llama.cpp's, where the best two scores are not closer than the formats' error.

What llama.cpp says stands in `data/llama_cpp_smollm2.json`, which `scripts/llama_cpp_oracle.py` made.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List

import numpy as np
import pytest

import mlxgen
from support.paths import ROOT, smollm2

CASES: List[Dict[str, Any]] = json.loads((ROOT / "tests/data/llama_cpp_smollm2.json").read_text())["cases"]
#: Scores of llama.cpp, which rounds what it multiplies to 8 bits, and ours differ by less.
ERROR = 0.5


@pytest.fixture(scope="module")
def model(engine: mlxgen.Engine) -> Iterator[mlxgen.Model]:
    with engine.load_model(smollm2()) as loaded:
        yield loaded


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_greedy_tokens_equal_llama_cpp(model: mlxgen.Model, case: Dict[str, Any]) -> None:
    """Each step after llama.cpp's tokens before it; and as a stream up to the first near-tie."""
    with model.tokenizer as tokenizer:
        assert list(tokenizer.encode(case["prompt"])) == case["ids"]
    clear = [lead >= ERROR for lead in case["leads"]]
    tokens: List[int] = case["tokens"]
    assert len(tokens) == 32 and sum(clear) >= 16
    with model.new_cache() as cache:
        cache.append(case["ids"])
        for step, token in enumerate(tokens):
            scores = cache.logits_numpy()
            if clear[step]:
                assert int(np.argmax(scores)) == token, f"step {step}"
            cache.append([token])
    count = next((step for step, sure in enumerate(clear) if not sure), len(clear))
    if count:
        with model.generate(case["ids"], max_tokens=count, ignore_eos=True) as stream:
            assert list(stream.read().tokens) == tokens[:count]
