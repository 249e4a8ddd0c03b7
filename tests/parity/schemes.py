"""Schemes of caches for the tiny models of every family, and what the library gives under them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

import mlxgen
from mlxgen import AffineKv, KvWindow, TurboQuantKv

from .cases import prompt
from .compare import Expected, Mismatch, distance
from .families import FAMILIES, LONG
from .reference_process import Reference
from .test_turboquant_tables import COMMITTED, tables

#: The prompt, read in forwards of `CHUNK` under `exact`. With what is generated it crosses the models' windows.
SIZE, CHUNK = 36, 24
#: The set's own window, for layers without one.
OWN_WINDOW = 24

KEY_BITS, VALUE_BITS = (2, 4, 5, 8), (2, 3, 4, 5, 8)
CENTROIDS = {bits: tables(COMMITTED.read_text())[f"CENTROIDS_{bits}"] for bits in VALUE_BITS}

#: How far scores may lie from the reference's over the same rounded numbers. As a rule that is `BOUND` of `compare`.
#: But where a key or a value differs in its last bits it may be rounded to the other side, and these models speak
#: loudly: one step of 4 bits moves scores by up to 0.02 of their size (measured). Half of a family's schemes lie within
#: `USUAL`, and all others' scores lie at least `APART` times as far.
MOST, USUAL, APART = 0.05, 1e-3, 4


@dataclass(frozen=True)
class Scheme:
    """Options of a cache set, and what the reference rounds keys and values to."""

    options: Dict[str, Any]
    form: Dict[str, Any]

    @property
    def start(self) -> int:
        found: int = self.form["start"]
        return found


def affine(bits: int, group: int, start: int, window: Optional[int] = None) -> Scheme:
    form = {"bits": bits, "group": group, "start": start, "window": window}
    options: Dict[str, Any] = {"precision": AffineKv(bits, group, start)}
    return Scheme(options if window is None else {**options, "window": KvWindow(window, 0)}, form)


def turboquant(key_bits: int, value_bits: int, start: int, deferred: bool = False) -> Scheme:
    options = {"precision": TurboQuantKv(key_bits, value_bits, start, deferred)}
    return Scheme(options, {"key_bits": key_bits, "centroids": CENTROIDS[value_bits], "start": start})


def bits_of(name: str) -> List[Tuple[int, int]]:
    """Bits of keys and values: all of each for every family, and all pairs among the families."""
    turn = list(FAMILIES).index(name)
    keys = (*KEY_BITS, KEY_BITS[turn % len(KEY_BITS)])
    return [(bits, VALUE_BITS[(at + turn) % len(VALUE_BITS)]) for at, bits in enumerate(keys)]


def schemes(name: str) -> List[Scheme]:
    """Of a family: from the first token on, in the prompt and in what follows it."""
    return [
        affine(4, 64, 0),
        affine(8, 32, 0),
        affine(8, 64, 20),
        affine(4, 32, 70),
        affine(8, 32, 0, OWN_WINDOW),
        *(turboquant(keys, values, 0) for keys, values in bits_of(name)),
        turboquant(8, 3, 50),
    ]


#: The same with other starts, for the reference alone.
OTHER_STARTS = [affine(8, 64, 60), affine(4, 32, 90), turboquant(8, 3, 80)]


def singly(cache: mlxgen.CacheSet, tokens: List[int]) -> List[NDArray[np.float32]]:
    """The scores after each token, appended by itself."""
    rows = []
    for token in tokens:
        cache.append([token])
        rows.append(cache.logits_numpy())
    return rows


def scored(model: mlxgen.Model, prompt: List[int], tokens: List[int], **options: Any) -> Expected:
    """What the library says behind a prompt and each of the tokens but the last."""
    with model.new_cache(**options) as cache:
        cache.append(prompt)
        return Expected(prompt, tokens, np.stack([cache.logits_numpy(), *singly(cache, tokens[:-1])]))


def generated(model: mlxgen.Model, **options: Any) -> Expected:
    """The greedy tokens of a stream, which are those of the scores."""
    ids = prompt(SIZE)
    with model.new_cache(**options) as cache:
        with model.generate(ids, cache=cache, max_tokens=LONG, ignore_eos=True) as stream:
            tokens = list(stream.read().tokens)
    said = scored(model, ids, tokens, **options)
    assert len(tokens) == LONG and tokens == [int(token) for token in said.scores.argmax(axis=1)]
    return said


def rounded(
    reference: Reference, folder: Path, ids: List[int], scheme: Scheme, forwards: List[int], out: Path
) -> NDArray[np.float32]:
    """The reference's scores from the end of the prompt on, over the scheme's rounded numbers."""
    form, first = scheme.form, SIZE - 1
    reference.ask("rounded", folder=folder, tokens=ids, forwards=forwards, form=form, first=first, out=out)
    return np.load(out)  # type: ignore[no-any-return]


def check_nearest(found: List[NDArray[np.float32]], expected: List[NDArray[np.float32]]) -> None:
    """Each of `found` is the one at its place in `expected`, but for rounding, and none of the others there."""
    own = []
    for place, scores in enumerate(found):
        apart = [distance(scores, other) for other in expected]
        own.append(apart.pop(place))
        if own[-1] > MOST or own[-1] * APART > min(apart):
            raise Mismatch(f"scheme {place}: {own[-1]}, and {apart} from the others")
    if sorted(own)[(len(own) - 1) // 2] > USUAL:
        raise Mismatch(f"not by rounding alone: {own}")
