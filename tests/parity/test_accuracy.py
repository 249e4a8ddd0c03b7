"""Real weights, numerics fast: how near its scores are to those of float32 arithmetic, and that they
do not depend on how a text is cut.

The library reads the 4-bit GGUF file one token at a time with half-precision keys and values; mlx-lm
reads the same weights in float32, whole texts at once.
"""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics
from typing import Iterator, List

import numpy as np
import pytest

import mlxgen
from support.paths import smollm2
from support.reference_weights import smollm2_folder

from .reference_process import Reference

TEXTS = 20
TOKENS = 256


@pytest.fixture(scope="module")
def fast(engine: mlxgen.Engine) -> Iterator[mlxgen.Model]:
    with engine.load_model(smollm2()) as model:
        yield model


def texts(model: mlxgen.Model) -> List[List[int]]:
    """English prose that every Python brings along: the longest articles of its manual."""
    longest = sorted(topics.values(), key=len, reverse=True)[:TEXTS]
    with model.tokenizer as tokenizer:
        return [tokenizer.encode(text[:4000])[:TOKENS] for text in longest]


def log_softmax(scores: np.ndarray) -> np.ndarray:
    scores = scores.astype(np.float64)
    scores -= scores.max(axis=-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


def test_scores_are_those_of_float32(
    reference: Reference,
    fast: mlxgen.Model,
    tmp_path: Path,
    record_property: pytest.RecordProperty,
) -> None:
    out = tmp_path / "scores.npy"
    agreed, positions, divergence = 0, 0, 0.0
    for tokens in texts(fast):
        assert len(tokens) == TOKENS
        reference.ask("forced", folder=smollm2_folder("float32"), tokens=tokens, out=out)
        expected = np.load(out)
        with fast.new_cache() as cache:
            found = []
            for token in tokens:
                cache.append([token])
                found.append(np.array(cache.logits(), dtype=np.float32))
        # The same text in pieces of another size: the same bits.
        with fast.new_cache() as cache:
            cache.append(tokens[:100])
            assert np.array_equal(np.array(cache.logits(), dtype=np.float32), found[99])
            cache.append(tokens[100:])
            assert np.array_equal(np.array(cache.logits(), dtype=np.float32), found[-1])
        p, q = log_softmax(expected), log_softmax(np.stack(found))
        divergence += float((np.exp(p) * (p - q)).sum())
        agreed += int((p.argmax(axis=-1) == q.argmax(axis=-1)).sum())
        positions += len(tokens)
    share, mean = agreed / positions, divergence / positions
    print(f"\ntop token equal at {100 * share:.2f}% of {positions} positions, mean KL {mean:.2e}")
    record_property("top_token_equal", share)
    record_property("mean_divergence", mean)
    assert share >= 0.99
    assert mean < 1e-4
