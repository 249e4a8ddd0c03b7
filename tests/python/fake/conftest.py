"""Models of the fake back end, and the check that each test gave everything back."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from support.paths import FAKE_LIBRARY

os.environ.setdefault("MLXGEN_LIBRARY", str(FAKE_LIBRARY))

import mlxgen
from support.waiting import comes_true


@pytest.fixture(scope="session", autouse=True)
def _fake_library() -> None:
    if not mlxgen.has_feature("fake"):
        pytest.exit("these tests need the fake library; MLXGEN_LIBRARY names the real one", 2)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Every object of a test is given back: handles, and the callables behind callbacks."""
    from mlxgen import _callbacks

    gc.collect()
    before = mlxgen.live_handles()
    yield
    gc.collect()
    assert mlxgen.live_handles() == before
    # A drop callback may come a moment after the release.
    assert comes_true(lambda: not _callbacks._callables)


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[..., Path]:
    """Writes a fake model's description; returns its folder."""
    count = 0

    def write(**spec: Any) -> Path:
        nonlocal count
        count += 1
        folder = tmp_path / f"model-{count}"
        folder.mkdir()
        (folder / "fake-model.json").write_text(json.dumps(spec), encoding="utf-8")
        return folder

    return write


@pytest.fixture
def engine() -> Iterator[mlxgen.Engine]:
    with mlxgen.Engine() as made:
        yield made


@pytest.fixture
def load(
    engine: mlxgen.Engine, write_model: Callable[..., Path]
) -> Iterator[Callable[..., mlxgen.Model]]:
    """Loads a fake model with the given description."""
    made = []

    def loader(**spec: Any) -> mlxgen.Model:
        model = engine.load_model(write_model(**spec))
        made.append(model)
        return model

    yield loader
    for model in made:
        model.close()


@pytest.fixture
def model(load: Callable[..., mlxgen.Model]) -> mlxgen.Model:
    return load()
