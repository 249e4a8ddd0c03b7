"""Fixtures: the real library, the reference process, and the models that both load."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Dict, Iterator

import pytest

from support.paths import REAL_LIBRARY, ROOT

os.environ.setdefault("MLXGEN_LIBRARY", str(REAL_LIBRARY))

import mlxgen

from .cases import CASES, PROMPT_SIZES, prompt
from .families import LONG_PROMPT
from .families import case as family_case
from .models_table import Outcomes, text
from .reference_process import THREADS, Reference


OUTCOMES = Outcomes()


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "call" and (parameters := getattr(item, "callspec", None)):
        OUTCOMES.add(item.path.name, item.originalname, parameters.params, call.excinfo is None)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("MLXGEN_MODELS_TABLE") and hasattr(config, "workerinput"):
        raise pytest.UsageError("one of several workers knows a part of the table of models: leave --numprocesses out")


def pytest_sessionfinish() -> None:
    """Writes the table of models where it is asked for."""
    if path := os.environ.get("MLXGEN_MODELS_TABLE"):
        (ROOT / path).write_text(text(OUTCOMES.passed()))


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    made = Reference()
    yield made
    made.close()


@pytest.fixture(scope="session")
def engine() -> Iterator[mlxgen.Engine]:
    if mlxgen.has_feature("fake"):
        pytest.exit("these tests need the library with MLX; MLXGEN_LIBRARY names the fake one", 2)
    with mlxgen.Engine(threads=THREADS) as made:
        yield made


@pytest.fixture(scope="session")
def tiny(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model by its case's name; made at the first use."""
    base = tmp_path_factory.mktemp("tiny")
    made: Dict[str, Path] = {}
    cases: Dict[str, Dict[str, Any]] = {case["name"]: case for case in CASES}

    def folder(name: str) -> Path:
        if name not in made:
            prompts = [prompt(size) for size in PROMPT_SIZES]
            reference.ask("make_tiny", folder=base / name, case=cases[name], prompts=prompts)
            made[name] = base / name
        return made[name]

    return folder


def family_folders(reference: Reference, base: Path, wide: bool) -> Callable[[str, str], Path]:
    """The folder of a tiny model by family and type; made at the first use."""

    def get(name: str, dtype: str) -> Path:
        path = base / f"{name}-{dtype}"
        if not path.exists():
            case = family_case(name, dtype, wide)
            reference.ask("make_tiny", folder=path, case=case, prompts=[prompt(LONG_PROMPT)])
        return path

    return get


@pytest.fixture(scope="session")
def family_folder(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    return family_folders(reference, tmp_path_factory.mktemp("families"), wide=False)


@pytest.fixture(scope="session")
def wide_family_folder(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """With heads of 64 elements."""
    return family_folders(reference, tmp_path_factory.mktemp("wide-families"), wide=True)
