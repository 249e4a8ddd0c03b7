"""The real library, and small models for it."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest

from support.paths import REAL_LIBRARY

os.environ.setdefault("MLXGEN_LIBRARY", str(REAL_LIBRARY))

import mlxgen
from support import paths
from support.random_llama import write_random_llama
from support.table_model import write_table_model


@pytest.fixture(scope="session", autouse=True)
def _real_library() -> None:
    if mlxgen.has_feature("fake"):
        pytest.exit("these tests need the library with MLX; MLXGEN_LIBRARY names the fake one", 2)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return paths.smollm2()


@pytest.fixture(scope="session")
def engine() -> Iterator[mlxgen.Engine]:
    with mlxgen.Engine() as made:
        yield made


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    gc.collect()
    before = mlxgen.live_handles()
    yield
    gc.collect()
    # The fixtures of the session may have been made meanwhile.
    assert mlxgen.live_handles() <= before + 2


@pytest.fixture
def table(engine: mlxgen.Engine, tmp_path: Path) -> Iterator[Callable[..., mlxgen.Model]]:
    """Loads a table model; see `support.table_model`."""
    made: List[mlxgen.Model] = []

    def loader(scores: Any, **config: Any) -> mlxgen.Model:
        folder = write_table_model(tmp_path / f"table-{len(made)}", scores, **config)
        made.append(engine.load_model(folder))
        return made[-1]

    yield loader
    for model in made:
        model.close()


@pytest.fixture(scope="session")
def random_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random llama."""
    return write_random_llama(tmp_path_factory.mktemp("random") / "llama")
