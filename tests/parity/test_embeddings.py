"""Prompts with embeddings, numerics exact: as mlx-lm's with `input_embeddings`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, List

import numpy as np
import pytest

import mlxgen
from mlxgen import Embeddings

from .cases import GREEDY, prompt
from .compare import Expected, Mismatch, compare_scores, compare_tokens
from .reference_process import Reference

HIDDEN = 64


def rows(count: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal((count, HIDDEN))
    return (0.5 * drawn).astype(np.float32)


@pytest.mark.parametrize("chunk", [7, 64, 2048])
@pytest.mark.parametrize(
    "name", ["float32-grouped-untied", "bfloat16-grouped-tied", "4-bit-bfloat16-tied"]
)
def test_embeddings_among_tokens_equal_mlx_lm(
    engine: mlxgen.Engine,
    reference: Reference,
    tiny: Callable[[str], Path],
    tmp_path: Path,
    name: str,
    chunk: int,
) -> None:
    out = tmp_path / "scores.npy"
    cases: List[List[Any]] = [
        [prompt(5), rows(40, 1), prompt(7)],
        [rows(3, 2)],
        [rows(90, 3), prompt(1), rows(1, 4)],
    ]
    with engine.load_model(
        tiny(name), numerics=mlxgen.Numerics.EXACT, prefill_chunk=chunk
    ) as model:
        for parts in cases:
            plain = [part if isinstance(part, list) else part.tolist() for part in parts]
            tokens = reference.ask(
                "embedded", folder=tiny(name), parts=plain, chunk=chunk, count=GREEDY, out=out
            )
            mixed: Any = [
                part if isinstance(part, list) else Embeddings(part, f"{index}".encode())
                for index, part in enumerate(parts)
            ]
            wanted = Expected(mixed, tokens, np.load(out))
            compare_scores(model, wanted)
            compare_tokens(model, wanted)
            changed: Any = [
                Embeddings(part.values + 0.5, part.key) if isinstance(part, Embeddings) else part
                for part in mixed
            ]
            with pytest.raises(Mismatch):
                compare_scores(model, Expected(changed, tokens, wanted.scores))


def test_contents_are_reused_by_their_keys(
    engine: mlxgen.Engine, tiny: Callable[[str], Path]
) -> None:
    picture = rows(20, 5)
    with engine.load_model(tiny("float32-grouped-untied")) as model, model.new_cache() as cache:
        cache.append([prompt(3), Embeddings(picture, b"picture"), prompt(2)])
        assert cache.tokens == [*prompt(3), *[0xFFFFFFFF] * 20, *prompt(2)]

        def reused(key: bytes, *before: int) -> int:
            with cache.fork() as fork, model.generate(
                [[*before, *prompt(3)], Embeddings(picture, key), [9, 9]], cache=fork, max_tokens=1
            ) as stream:
                return stream.read().end.usage.reused_tokens

        assert reused(b"picture") == 23
        assert reused(b"another") == 3
        assert reused(b"picture", 1, 2) == 0
        for bad in (
            Embeddings(picture[:, :32].copy(), b"narrow"),
            Embeddings(picture, b""),
            Embeddings(picture.astype(np.float64), b"wide"),
        ):
            with pytest.raises(mlxgen.InvalidArgumentError):
                cache.append([[1], bad])
        assert len(cache) == 25
