"""Runs the library beside the reference and says where they part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, List

import numpy as np
from numpy.typing import NDArray

import mlxgen

from .reference_process import Reference


class Mismatch(AssertionError):
    """The library and the reference differ."""


#: How far scores of float32 arithmetic in another order may lie apart. A random model amplifies the last bits; a
#: weight that is read wrongly gives a hundred times as much.
BOUND = 1e-4


def distance(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The root mean square of the differences over that of the scores."""
    wide = expected.astype(np.float64)
    return float(np.sqrt(np.square(found - wide).mean() / np.square(wide).mean()))


@dataclass(frozen=True)
class Expected:
    """What mlx-lm says about a prompt."""

    prompt: List[int]
    #: Greedy tokens.
    tokens: List[int]
    #: float32 `[len(tokens), vocabulary]`: the scores from which each was chosen.
    scores: NDArray[np.float32]


def expect(
    reference: Reference,
    folder: Path,
    prompt: List[int],
    chunk: int,
    count: int,
    out: Path,
    **more: Any,
) -> Expected:
    tokens = reference.ask(
        "run", folder=folder, prompt=prompt, chunk=chunk, count=count, out=out, **more
    )
    return Expected(prompt, tokens, np.load(out))


def compare_scores(model: mlxgen.Model, expected: Expected, **scheme: Any) -> None:
    """Each step's scores, through append and logits, bit for bit. `scheme`: of the cache set."""
    with model.new_cache(**scheme) as cache:
        for step, wanted in enumerate(expected.scores):
            cache.append(expected.prompt if step == 0 else expected.tokens[step - 1 : step])
            got = cache.logits_numpy()
            if got.shape != wanted.shape:
                raise Mismatch(f"step {step}: shape {got.shape}, expected {wanted.shape}")
            if got.tobytes() != wanted.tobytes():
                apart = np.flatnonzero(got.view(np.uint32) != wanted.view(np.uint32))
                raise Mismatch(
                    f"step {step}: {apart.size} of {wanted.size} scores differ, by at most "
                    f"{np.abs(got - wanted).max()}; the first is {apart[0]}: "
                    f"{got[apart[0]]!r}, expected {wanted[apart[0]]!r}"
                )


def compare_tokens(model: mlxgen.Model, expected: Expected, **scheme: Any) -> None:
    """Greedy tokens through a stream."""
    count = len(expected.tokens)
    with model.new_cache(**scheme) as cache, model.generate(
        expected.prompt, cache=cache, max_tokens=count, ignore_eos=True
    ) as stream:
        got = list(stream.read().tokens)
    if got != expected.tokens:
        same = next((i for i, (a, b) in enumerate(zip(got, expected.tokens)) if a != b), len(got))
        raise Mismatch(
            f"token {same} differs: {got[same : same + 4]}, "
            f"expected {expected.tokens[same : same + 4]}"
        )
