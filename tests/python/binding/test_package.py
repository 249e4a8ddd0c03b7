"""The package itself: types, oldest Python, finding the library."""

from __future__ import annotations

import ast
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import mlxgen
from mlxgen import errors
from support.paths import BINDING, LIBRARY_NAME

SOURCES = sorted((BINDING / "mlxgen").glob("*.py"))


def run(code: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    variables = {k: v for k, v in os.environ.items() if k != "MLXGEN_LIBRARY"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**variables, "PYTHONPATH": str(BINDING), **environment},
        capture_output=True,
        text=True,
    )


def test_types_are_complete_and_right() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "mlxgen"],
        cwd=BINDING,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_sources_are_python_3_9() -> None:
    for path in SOURCES:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 9))


def test_everything_public_is_documented_and_listed() -> None:
    for name in mlxgen.__all__:
        thing = getattr(mlxgen, name)
        if name not in ("Event", "KvPrecision", "Prompt"):  # a union has no text of its own
            assert thing.__doc__, name
            for key, member in vars(thing).items() if isinstance(thing, type) else ():
                if not key.startswith("_") and callable(member) and not isinstance(member, type):
                    assert member.__doc__, f"{name}.{key}"


def test_importing_needs_no_library() -> None:
    done = run("import mlxgen", MLXGEN_LIBRARY="/nowhere/libmlxgen.so")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_missing_library_is_told_by_its_path() -> None:
    done = run("import mlxgen; mlxgen.version()", MLXGEN_LIBRARY="/nowhere/libmlxgen.so")
    assert done.returncode == 1
    assert "LibraryNotFoundError: MLXGEN_LIBRARY names /nowhere/libmlxgen.so" in done.stderr


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "libmlxgen.so").write_text("not a library")
    done = run("import mlxgen; mlxgen.version()", MLXGEN_LIBRARY=str(tmp_path / "libmlxgen.so"))
    assert "LibraryNotFoundError: cannot load" in done.stderr


def test_another_library_is_refused() -> None:
    import ctypes.util

    libc = ctypes.util.find_library("c")
    if libc is None or not Path(f"/lib/x86_64-linux-gnu/{libc}").exists():
        pytest.skip("no C library at a known path")
    done = run("import mlxgen; mlxgen.version()", MLXGEN_LIBRARY=f"/lib/x86_64-linux-gnu/{libc}")
    assert "is not libmlxgen" in done.stderr


def test_the_library_beside_the_package_is_found(tmp_path: Path) -> None:
    import shutil

    shutil.copytree(BINDING / "mlxgen", tmp_path / "mlxgen")
    beside = tmp_path / "mlxgen" / LIBRARY_NAME
    shutil.copy(mlxgen.find_library(), beside)
    done = run(
        "import mlxgen; print(mlxgen.find_library()); print(mlxgen.version())",
        PYTHONPATH=str(tmp_path),
    )
    assert done.stdout.split() == [str(beside), "0.1.0"], done.stderr


def test_each_status_has_its_class() -> None:
    for status, kind in errors.CLASSES.items():
        error = errors.error_for(status, "text", errors.ErrorDetail(field="tokens", position=3))
        assert type(error) is kind and error.status == status
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.message, again.detail, again.status) == (
            kind,
            "text",
            error.detail,
            status,
        )
    unknown = errors.error_for(999, "text", errors.ErrorDetail())
    assert type(unknown) is mlxgen.MlxgenError and unknown.status == 999
