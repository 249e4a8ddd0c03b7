"""Reported faults of rotations and windows, against mlx-lm where it is right and against its own parts put together
as the models' published code does where it is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import pytest

import mlxgen

from .cases import prompt
from .compare import Mismatch, compare_scores, compare_tokens, expect
from .families import LONG, LONG_PROMPT, WINDOW
from .reference_process import Reference

ORIGINAL, MOST, PAIRS = 16, 64, 8
Folder = Callable[[str, str], Path]


def variant(path: Path, to: Path, **changes: Any) -> Path:
    """The same weights under another configuration."""
    shutil.copytree(path, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **changes}))
    return to


def longrope(short: float, long: float) -> Dict[str, Any]:
    lists = {"short_factor": [short] * PAIRS, "long_factor": [long] * PAIRS}
    return {
        "rope_scaling": {"type": "longrope", **lists},
        "original_max_position_embeddings": ORIGINAL,
        "max_position_embeddings": MOST,
    }


def scores(engine: mlxgen.Engine, path: Path, parts: List[List[int]], **options: Any) -> List[Any]:
    with engine.load_model(path, **options) as model, model.new_cache() as cache:
        found = []
        for part in parts:
            cache.append(part)
            found.append(cache.logits_numpy())
        return found


def test_b10_longrope_takes_the_list_of_the_length(
    engine: mlxgen.Engine, reference: Reference, family_folder: Folder, tmp_path: Path
) -> None:
    """mlx-lm 0.32.2 takes the long list for all lengths: with both lists equal to the one that is due, it is right."""
    base = family_folder("phi3", "float32")
    ours = variant(base, tmp_path / "ours", **longrope(1.0, 4.0))
    exact = {"numerics": mlxgen.Numerics.EXACT}
    for size, factor, other in ((10, 1.0, 4.0), (30, 4.0, 1.0)):
        due = variant(base, tmp_path / f"due-{size}", **longrope(factor, factor))
        wanted = expect(reference, due, prompt(size), 2048, 3, tmp_path / "scores.npy")
        with engine.load_model(ours, **exact) as model:
            compare_scores(model, wanted)
        wrong = variant(base, tmp_path / f"wrong-{size}", **longrope(other, other))
        with engine.load_model(wrong, **exact) as model, pytest.raises(Mismatch):
            compare_scores(model, wanted)


def test_b10_how_the_library_cuts_a_prompt_does_not_choose_the_list(
    engine: mlxgen.Engine, family_folder: Folder, tmp_path: Path
) -> None:
    """The length is that of the whole prompt. Keys that a cache holds stay as they were turned when a later prompt
    crosses the limit, so parts that are appended one by one are another sequence."""
    ours = variant(family_folder("phi3", "float32"), tmp_path / "ours", **longrope(1.0, 4.0))
    ids = prompt(30)
    whole = scores(engine, ours, [ids])[0]
    assert whole.tobytes() == scores(engine, ours, [ids], prefill_chunk=7)[0].tobytes()
    assert whole.tobytes() != scores(engine, ours, [ids[:10], ids[10:]])[1].tobytes()


def test_b10_scales_of_queries_and_keys_follow_the_list(
    engine: mlxgen.Engine, family_folder: Folder, tmp_path: Path
) -> None:
    base = family_folder("phi3", "float32")
    plain = longrope(1.0, 1.0)
    scaled = json.loads(json.dumps(plain))
    scaled["rope_scaling"].update(short_mscale=1.0, long_mscale=2.0)
    one = json.loads(json.dumps(plain))
    one["rope_scaling"].update(short_mscale=1.0, long_mscale=1.0)
    first = variant(base, tmp_path / "scaled", **scaled)
    second = variant(base, tmp_path / "one", **one)
    for size, same in ((10, True), (30, False)):
        a, b = (scores(engine, path, [prompt(size)])[0] for path in (first, second))
        assert (a.tobytes() == b.tobytes()) == same


def test_b12_dynamic_scaling_begins_beyond_the_limit(
    engine: mlxgen.Engine, family_folder: Folder, tmp_path: Path
) -> None:
    base = family_folder("llama-dynamic", "float32")
    plain = variant(base, tmp_path / "plain", rope_scaling=None, max_position_embeddings=8192)
    for numerics in (mlxgen.Numerics.EXACT, mlxgen.Numerics.FAST):
        for size, same in ((41, True), (48, True), (49, False)):
            a, b = (scores(engine, path, [prompt(size)], numerics=numerics)[0] for path in (base, plain))
            assert (a.tobytes() == b.tobytes()) == same, size


def test_b12_scaling_belongs_to_the_global_layers(
    engine: mlxgen.Engine, reference: Reference, family_folder: Folder, tmp_path: Path
) -> None:
    """Beside the comparison of `gemma3` in `test_families`: without global layers, scaling changes nothing."""
    base = family_folder("gemma3", "float32")
    local = {"sliding_window_pattern": 9}
    scaled = variant(base, tmp_path / "scaled", **local)
    plain = variant(base, tmp_path / "plain", **local, rope_scaling=None)
    a, b = (scores(engine, path, [prompt(41)])[0] for path in (scaled, plain))
    assert a.tobytes() == b.tobytes()
    unscaled = variant(base, tmp_path / "unscaled", rope_scaling=None)
    a, b = (scores(engine, path, [prompt(41)])[0] for path in (base, unscaled))
    assert a.tobytes() != b.tobytes()


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("mistral", [WINDOW, WINDOW]),
        ("phi3", [WINDOW, WINDOW]),
        ("starcoder2", [WINDOW, WINDOW]),
        ("gemma2", [WINDOW, None]),
    ],
)
@pytest.mark.parametrize("chunk", [24, 2048])
def test_windows_that_mlx_lm_leaves_out(
    engine: mlxgen.Engine,
    reference: Reference,
    family_folder: Folder,
    tmp_path: Path,
    name: str,
    windows: List[Any],
    chunk: int,
) -> None:
    path = variant(family_folder(name, "float32"), tmp_path / "windows", sliding_window=WINDOW)
    scheme = {"layer_windows": windows}
    out = tmp_path / "scores.npy"
    with engine.load_model(path, numerics=mlxgen.Numerics.EXACT, prefill_chunk=chunk) as model:
        for size, count in ((WINDOW - 1, 3), (WINDOW + 1, 3), (100, 3), (LONG_PROMPT, LONG)):
            wanted = expect(reference, path, prompt(size), chunk, count, out, scheme=scheme)
            compare_scores(model, wanted)
            compare_tokens(model, wanted)
        without = expect(reference, path, prompt(100), chunk, 3, out)
        with pytest.raises(Mismatch):
            compare_scores(model, without)


def test_starcoder2_takes_the_activation_that_its_file_names(
    engine: mlxgen.Engine, family_folder: Folder, tmp_path: Path
) -> None:
    """The approximation differs from the exact function by less than 0.0005 (mlx.nn), and by something."""
    base = family_folder("starcoder2", "float32")
    named = variant(base, tmp_path / "named", hidden_act="gelu_pytorch_tanh")
    exact, approximate = (scores(engine, path, [prompt(33)])[0] for path in (base, named))
    assert exact.tobytes() != approximate.tobytes()
    assert np.abs(exact - approximate).max() < 0.05 * np.abs(exact).max()


def test_numbers_that_only_python_knows_do_no_harm_unless_used(
    engine: mlxgen.Engine, reference: Reference, family_folder: Folder, tmp_path: Path
) -> None:
    """As Python writes them in the files of other families, such as `time_step_limit`."""
    odd = {"time_step_limit": [0.0, float("inf")], "loss": float("nan"), "floor": -float("inf")}
    path = variant(family_folder("llama", "float32"), tmp_path / "odd", **odd)
    assert "Infinity]" in (path / "config.json").read_text()
    for name in ("generation_config.json", "special_tokens_map.json"):
        (path / name).write_text(json.dumps(odd))
    wanted = expect(reference, path, prompt(33), 2048, 3, tmp_path / "scores.npy")
    with engine.load_model(path, numerics=mlxgen.Numerics.EXACT) as model:
        compare_scores(model, wanted)
    used = variant(path, tmp_path / "used", rope_theta=float("inf"))
    with pytest.raises(mlxgen.InvalidModelError) as raised:
        engine.load_model(used)
    assert raised.value.detail.field == "rope_theta" and "is Infinity" in str(raised.value)
