"""The estimate against what the real model takes."""

from __future__ import annotations

import pytest

import mlxgen
from support.paths import smollm2


def near(estimated: int, measured: int) -> bool:
    """Whether the two differ by at most 3%."""
    return abs(estimated - measured) <= 0.03 * measured


@pytest.mark.parametrize("numerics", [mlxgen.Numerics.FAST, mlxgen.Numerics.EXACT])
def test_weights_and_cache(numerics: mlxgen.Numerics) -> None:
    # MLX's own operations on half precision are slow on the CPU.
    count = 700 if numerics == mlxgen.Numerics.FAST else 12
    for precision in (None, mlxgen.AffineKv(8, start=0)):
        told = mlxgen.estimate(smollm2(), numerics=numerics, context=count, precision=precision)
        with mlxgen.Engine() as engine:
            before = engine.memory().active
            with engine.load_model(smollm2(), numerics=numerics) as model:
                assert near(told.weight_bytes, engine.memory().active - before)
                assert model.info.weight_bytes == told.weight_bytes
                with model.new_cache(precision=precision) as cache:
                    cache.append([1000 + i for i in range(count)])
                    assert near(told.cache_bytes, cache.info().bytes)
