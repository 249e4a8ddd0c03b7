"""The estimate of a model that is not loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict

import pytest

import mlxgen

SIZES: Dict[str, Any] = dict(
    weight_bytes=100_000, load_bytes=150_000, context_limit=1000, prefill_chunk=64,
    cache_bytes_per_token=100, workspace_bytes_per_token=10,
)


def test_the_greatest_context_of_a_budget(write_model: Callable[..., Path]) -> None:
    path = write_model(**SIZES)
    told = mlxgen.estimate(path, budget=160_640)
    assert (told.weight_bytes, told.load_bytes, told.context) == (100_000, 150_000, 1000)
    assert (told.cache_bytes, told.workspace_bytes, told.total_bytes) == (100_000, 640, 200_640)
    assert not told.fits and told.max_context == 600
    assert mlxgen.estimate(path, budget=160_640, context=600).fits is True
    assert mlxgen.estimate(path, budget=160_640, context=601).fits is False
    assert mlxgen.estimate(path, context_limit=50).context == 50
    assert mlxgen.estimate(path, capacity=40).max_context == 40


def test_an_engine_gives_the_budget(write_model: Callable[..., Path]) -> None:
    with mlxgen.Engine(memory_limit=160_640) as engine:
        assert mlxgen.estimate(write_model(**SIZES), engine=engine).max_context == 600
        assert engine.memory().models == 0


def test_failures(write_model: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(mlxgen.NotFoundError):
        mlxgen.estimate(tmp_path / "absent")
    with pytest.raises(mlxgen.UnsupportedError):
        mlxgen.estimate(write_model(), kv_type=mlxgen.KvType.FLOAT32)
    with mlxgen.Cancel() as cancel:
        cancel.request()
        with pytest.raises(mlxgen.CancelledError):
            mlxgen.estimate(write_model(), cancel=cancel)
