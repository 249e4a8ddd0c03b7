"""The estimate of every tiny model against what it takes once it is loaded and has read a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest

import mlxgen

from .cases import prompt
from .families import FAMILIES


@pytest.mark.parametrize("numerics", [mlxgen.Numerics.FAST, mlxgen.Numerics.EXACT])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_weights_and_caches_are_within_three_percent(
    engine: mlxgen.Engine, family_folder: Callable[[str, str], Path], name: str, numerics: mlxgen.Numerics
) -> None:
    path = family_folder(name, "float32")
    for size in (20, 100):
        told = mlxgen.estimate(path, numerics=numerics, context=size)
        # Memory comes back a moment after a release, so each model has an engine of its own.
        with mlxgen.Engine() as own:
            before = own.memory().active
            with own.load_model(path, numerics=numerics) as model:
                taken = own.memory().active - before
                assert told.weight_bytes == model.info.weight_bytes
                assert abs(told.weight_bytes - taken) <= 0.03 * taken
                with model.new_cache() as cache:
                    cache.append(prompt(size))
                    held = cache.info().bytes
                    assert abs(told.cache_bytes - held) <= 0.03 * held
