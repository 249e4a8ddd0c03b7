"""Models: loading, its failures, progress, cancel."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from pathlib import Path
from typing import Callable, List, Tuple

import pytest

import mlxgen
from mlxgen import errors
from support.waiting import comes_true


def test_info(load: Callable[..., mlxgen.Model]) -> None:
    model = load(vocabulary=300, layers=3, context_limit=512, prefill_chunk=16, eos=[5, 9])
    info = model.info
    assert (info.family, info.format, info.numerics) == ("fake", "fake", "fast")
    assert (info.vocabulary, info.layers, info.context_limit) == (300, 3, 512)
    assert (info.prefill_chunk, info.eos, info.bos) == (16, (5, 9), 256)
    assert info.has_chat_template and info.weight_bytes == 65536
    assert model.info is info


def test_options(engine: mlxgen.Engine, write_model: Callable[..., Path]) -> None:
    with engine.load_model(
        write_model(context_limit=512),
        numerics=mlxgen.Numerics.EXACT,
        prefill_chunk=8,
        context_limit=100,
    ) as model:
        assert model.info.numerics == "exact"
        assert (model.info.prefill_chunk, model.info.context_limit) == (8, 100)
    with engine.load_model(write_model(context_limit=512), context_limit=100_000) as model:
        assert model.info.context_limit == 512
    for field, value in (("numerics", 7), ("compute_type", -2)):
        with pytest.raises(mlxgen.InvalidArgumentError) as caught:
            engine.load_model(write_model(), **{field: value})  # type: ignore[arg-type]
        assert caught.value.detail.field == field


def test_damaged_files_name_file_and_field(
    engine: mlxgen.Engine, write_model: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(mlxgen.InvalidModelError) as caught:
        engine.load_model(write_model(vocabulary=0))
    assert caught.value.detail.field == "vocabulary"
    assert caught.value.detail.file is not None
    assert caught.value.detail.file.endswith("fake-model.json")
    broken = write_model()
    (broken / "fake-model.json").write_text("{")
    with pytest.raises(mlxgen.InvalidModelError):
        engine.load_model(broken)
    odd = tmp_path / "Modell-ä-模型-🦙"
    write_model().rename(odd)
    with engine.load_model(odd) as model:
        assert model.info.name == odd.name


@pytest.mark.parametrize("status", sorted(errors.CLASSES))
@pytest.mark.parametrize("place", ["open", "piece", "builder", "accept", "finish"])
def test_each_code_of_a_load(
    engine: mlxgen.Engine, write_model: Callable[..., Path], place: str, status: int
) -> None:
    """B139: every failure of a load is an error of its class, and the next load works."""
    with pytest.raises(errors.CLASSES[status]) as caught:
        engine.load_model(write_model(faults=[{"at": place, "code": status}]))
    assert type(caught.value) is errors.CLASSES[status] and caught.value.message
    with engine.load_model(write_model()) as model:
        assert model.generate([1], max_tokens=1).read().tokens


@pytest.mark.parametrize("place", ["open", "piece", "builder", "accept", "finish"])
def test_a_panic_in_a_load_is_an_internal_error(
    engine: mlxgen.Engine, write_model: Callable[..., Path], place: str
) -> None:
    with pytest.raises(mlxgen.InternalError):
        engine.load_model(write_model(faults=[{"at": place}]))
    with engine.load_model(write_model()) as model:
        assert model.generate([1], max_tokens=1).read().tokens
    assert comes_true(lambda: engine.memory().models == 0)


def test_progress_is_monotone_and_complete(
    engine: mlxgen.Engine, write_model: Callable[..., Path]
) -> None:
    seen: List[Tuple[mlxgen.LoadPhase, int, int]] = []
    threads = set()

    def progress(phase: mlxgen.LoadPhase, done: int, total: int) -> None:
        seen.append((phase, done, total))
        threads.add(threading.get_ident())

    engine.load_model(write_model(weight_bytes=100_000), progress=progress).close()
    assert threads == {threading.get_ident()}
    phases = [phase for phase, _, _ in seen]
    assert phases == sorted(phases) and mlxgen.LoadPhase.WEIGHTS in phases
    weights = [(done, total) for phase, done, total in seen if phase == mlxgen.LoadPhase.WEIGHTS]
    assert [done for done, _ in weights] == sorted(done for done, _ in weights)
    assert weights[-1] == (100_000, 100_000)


def test_an_exception_in_progress_cancels_the_load_and_comes_out(
    engine: mlxgen.Engine, write_model: Callable[..., Path]
) -> None:
    folder = write_model(weight_bytes=1 << 20, piece_bytes=1024, piece_micros=1000)

    class Enough(Exception):
        pass

    def progress(phase: mlxgen.LoadPhase, done: int, total: int) -> None:
        if phase == mlxgen.LoadPhase.WEIGHTS:
            raise Enough

    begin = time.monotonic()
    with pytest.raises(Enough):
        engine.load_model(folder, progress=progress)
    assert time.monotonic() - begin < 1
    assert comes_true(lambda: engine.memory().models == 0)


def test_a_late_exception_in_progress_comes_out_too(
    engine: mlxgen.Engine, write_model: Callable[..., Path]
) -> None:
    def progress(phase: mlxgen.LoadPhase, done: int, total: int) -> None:
        if phase == mlxgen.LoadPhase.FINISH:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.load_model(write_model(), progress=progress)
    assert comes_true(lambda: engine.memory().models == 0)


def test_a_load_is_cancelled_before_and_while_it_runs(
    engine: mlxgen.Engine, write_model: Callable[..., Path]
) -> None:
    slow = write_model(weight_bytes=1 << 20, piece_bytes=1024, piece_micros=2000)
    with mlxgen.Cancel() as cancel:
        assert not cancel.requested
        timer = threading.Timer(0.1, cancel.request)
        timer.start()
        begin = time.monotonic()
        with pytest.raises(mlxgen.CancelledError):
            engine.load_model(slow, cancel=cancel)
        assert time.monotonic() - begin < 1
        timer.join()
        assert cancel.requested
        with pytest.raises(mlxgen.CancelledError):
            engine.load_model(slow, cancel=cancel)
    assert comes_true(lambda: engine.memory().models == 0)


def test_handles_are_not_copied(model: mlxgen.Model) -> None:
    """A copy would give the same reference back twice."""
    for copier in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            copier(model)


def test_a_model_without_tokenizer(load: Callable[..., mlxgen.Model]) -> None:
    model = load(tokenizer=False, vocabulary=16, eos=[])
    with pytest.raises(mlxgen.NotFoundError):
        model.tokenizer
    with pytest.raises(mlxgen.NotFoundError):
        model.chat([{"role": "user", "content": "x"}])
    with model.new_cache() as cache:
        cache.append([1, 2])
        assert len(cache.logits()) == 16
