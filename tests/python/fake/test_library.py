"""Library, errors, log, silence."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Callable, List, Tuple

import pytest

import mlxgen
from mlxgen import _abi
from mlxgen._library import library
from support.run import python


def test_versions() -> None:
    assert mlxgen.abi_version() == 1
    assert mlxgen.version() == mlxgen.__version__


def test_build_info() -> None:
    info = mlxgen.build_info()
    assert info.version == mlxgen.version() and info.abi == 1
    assert "fake" in info.features and "fake" in info.backend
    assert info.target and isinstance(info.debug, bool)
    assert all(mlxgen.has_feature(name) for name in info.features)
    assert not mlxgen.has_feature("no such feature") and not mlxgen.has_feature("")


def test_status_names() -> None:
    lib = library()
    for status in range(17):
        name = lib.status_name(status).decode()
        assert getattr(_abi, name.removeprefix("MLXGEN_")) == status
    for unknown in (17, 9999, -1):
        assert lib.status_name(unknown) == b"MLXGEN_UNKNOWN"


def test_an_error_knows_where_the_fault_lies(engine: mlxgen.Engine, tmp_path: Path) -> None:
    missing = tmp_path / "absent"
    with pytest.raises(mlxgen.NotFoundError) as caught:
        engine.load_model(missing)
    assert str(missing) in str(caught.value)
    assert caught.value.detail.file is not None and str(missing) in caught.value.detail.file
    assert caught.value.status == _abi.NOT_FOUND


def test_log_goes_to_the_sink_and_stops(
    write_model: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    lines: List[Tuple[mlxgen.LogLevel, str]] = []
    mlxgen.set_log_sink(lambda level, text: lines.append((level, text)), mlxgen.LogLevel.TRACE)
    try:
        with mlxgen.Engine() as engine, engine.load_model(write_model()) as model:
            model.generate([1], max_tokens=2).read()
    finally:
        mlxgen.set_log_sink(None)
    assert all(isinstance(level, mlxgen.LogLevel) and text for level, text in lines)
    news = [text for level, text in lines if level == mlxgen.LogLevel.INFO]
    details = [text for level, text in lines if level == mlxgen.LogLevel.DEBUG]
    assert any(text.startswith("loaded a model") for text in news)
    assert any(text.startswith("a generation ended (MaxTokens)") for text in details)
    count = len(lines)
    logger = logging.getLogger("mlxgen-test")
    with caplog.at_level(1, logger=logger.name):
        mlxgen.log_to(logger, mlxgen.LogLevel.TRACE)
        mlxgen.log_to(logger, mlxgen.LogLevel.ERROR)
        mlxgen.set_log_sink(None)
    assert len(lines) == count


def test_a_library_call_from_the_log_sink_is_refused(write_model: Callable[..., Path]) -> None:
    """A callback may only signal."""
    outcomes: List[object] = []

    def sink(level: mlxgen.LogLevel, text: str) -> None:
        try:
            mlxgen.Cancel().close()
        except mlxgen.MlxgenError as error:
            outcomes.append(type(error))

    mlxgen.set_log_sink(sink, mlxgen.LogLevel.TRACE)
    try:
        with mlxgen.Engine() as engine, engine.load_model(write_model()):
            pass
    finally:
        mlxgen.set_log_sink(None)
    assert set(outcomes) == {mlxgen.WrongStateError}


SILENT = """
import mlxgen, sys
with mlxgen.Engine() as engine:
    for bad in ("/nowhere", "/"):
        try:
            engine.load_model(bad)
        except mlxgen.MlxgenError:
            pass
    with engine.load_model(sys.argv[1]) as model:
        model.generate([1, 2, 3], max_tokens=20).read()
        try:
            model.generate([10**6])
        except mlxgen.InvalidArgumentError:
            pass
    try:
        engine.load_model(sys.argv[2])
    except mlxgen.InternalError:
        pass
"""


def test_nothing_is_printed(write_model: Callable[..., Path]) -> None:
    """B139: failures, even a panic inside the library, end in a code; the process lives, silent."""
    panics = write_model(faults=[{"at": "finish"}])
    done = python(SILENT, write_model(), panics)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


SHUTDOWN = """
import mlxgen, sys
engine = mlxgen.Engine()
model = engine.load_model(sys.argv[1])
stream = model.generate([1, 2, 3])
cache = model.new_cache()
stream.next()
mlxgen.shutdown(5)
try:
    while stream.next(5) is not None:  # what was told before may still be taken
        pass
except mlxgen.WrongStateError:
    pass
for call in (lambda: cache.append([1]), lambda: model.generate([1]),
             lambda: engine.load_model(sys.argv[1]), engine.trim, engine.memory):
    try:
        call()
    except mlxgen.WrongStateError:
        print("refused")
mlxgen.shutdown(5)
for thing in (engine, cache, model, stream):
    thing.close()
print(mlxgen.live_handles())
with mlxgen.Engine() as again, again.load_model(sys.argv[1]) as model:
    print(len(model.generate([1], max_tokens=3).read().tokens))
"""


def test_shutdown(write_model: Callable[..., Path]) -> None:
    done = python(SHUTDOWN, write_model(step_micros=1000))
    assert done.stdout.split() == ["refused"] * 5 + ["0", "3"], done.stdout + done.stderr
    assert done.returncode == 0 and done.stderr == ""
