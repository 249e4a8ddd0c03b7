"""Tiny random llamas, numerics exact: every score bit-equal to mlx-lm's, every greedy token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Callable, Dict, Tuple

import numpy as np
import pytest

import mlxgen

from .cases import CASES, CHUNKS, GREEDY, PROMPT_SIZES, prompt
from .compare import Expected, Mismatch, compare_scores, compare_tokens, expect
from .reference_process import Reference

NAMES = [case["name"] for case in CASES]
Folders = Callable[[str], Path]


@pytest.fixture(scope="module")
def expected(
    reference: Reference, tiny: Folders, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int, int], Expected]:
    """What mlx-lm says, asked once for each model, prompt and chunk size."""
    out = tmp_path_factory.mktemp("expected") / "scores.npy"
    known: Dict[Tuple[str, int, int], Expected] = {}

    def get(name: str, size: int, chunk: int) -> Expected:
        key = (name, size, chunk)
        if key not in known:
            known[key] = expect(reference, tiny(name), prompt(size), chunk, GREEDY, out)
        return known[key]

    return get


def load(engine: mlxgen.Engine, folder: Path, chunk: int) -> mlxgen.Model:
    return engine.load_model(folder, numerics=mlxgen.Numerics.EXACT, prefill_chunk=chunk)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", NAMES)
def test_scores_and_tokens_equal_mlx_lm(
    engine: mlxgen.Engine,
    tiny: Folders,
    expected: Callable[[str, int, int], Expected],
    name: str,
    chunk: int,
) -> None:
    with load(engine, tiny(name), chunk) as model:
        for size in PROMPT_SIZES:
            wanted = expected(name, size, chunk)
            assert len(set(wanted.tokens)) >= 20, "the model repeats itself and proves little"
            compare_scores(model, wanted)
            compare_tokens(model, wanted)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", NAMES)
def test_a_perturbed_weight_is_noticed(
    engine: mlxgen.Engine,
    tiny: Folders,
    expected: Callable[[str, int, int], Expected],
    tmp_path: Path,
    name: str,
    chunk: int,
) -> None:
    """Each comparison above fails when one element of one norm's weight is another."""
    folder = tmp_path / name
    shutil.copytree(tiny(name), folder)
    perturb(folder, "model.norm.weight")
    with load(engine, folder, chunk) as model:
        for size in PROMPT_SIZES:
            wanted = expected(name, size, chunk)
            with pytest.raises(Mismatch):
                compare_scores(model, wanted)
            with pytest.raises(Mismatch):
                compare_tokens(model, wanted)


@pytest.mark.parametrize("name", ["float32-grouped-untied", "4-bit-bfloat16-tied"])
def test_one_last_bit_of_a_weight_is_noticed(
    engine: mlxgen.Engine,
    tiny: Folders,
    expected: Callable[[str, int, int], Expected],
    tmp_path: Path,
    name: str,
) -> None:
    """Bit equality of the scores sees the lowest bit of one weight."""
    folder = tmp_path / name
    shutil.copytree(tiny(name), folder)
    perturb(folder, "model.layers.0.self_attn.v_proj.weight", last_bit=True)
    with load(engine, folder, 2048) as model, pytest.raises(Mismatch):
        compare_scores(model, expected(name, 7, 2048))


def perturb(folder: Path, tensor: str, last_bit: bool = False) -> None:
    """Changes one element of a tensor in place, to minus twice itself or by its lowest bit."""
    for path in sorted(folder.glob("model*.safetensors")):
        raw = bytearray(path.read_bytes())
        start, dtype = find_tensor(raw, tensor)
        if start < 0:
            continue
        if last_bit:
            raw[start] ^= 1
        else:
            scale_element(raw, start, dtype, 3, -2.0)
        path.write_bytes(raw)
        return
    raise AssertionError(f"{tensor} is not in {folder}")


def find_tensor(raw: bytearray, tensor: str) -> Tuple[int, str]:
    """Byte offset and type of a tensor in a safetensors file; -1 if it is not there."""
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(bytes(raw[8 : 8 + size]))
    if tensor not in header:
        return -1, ""
    return 8 + size + header[tensor]["data_offsets"][0], header[tensor]["dtype"]


def scale_element(raw: bytearray, start: int, dtype: str, index: int, factor: float) -> None:
    if dtype == "BF16":  # the upper half of a float32
        at = start + 2 * index
        wide = np.frombuffer(b"\0\0" + bytes(raw[at : at + 2]), np.float32)[0] * factor
        raw[at : at + 2] = np.float32(wide).tobytes()[2:]
        return
    kind = np.dtype({"F32": np.float32, "F16": np.float16}[dtype])
    at = start + kind.itemsize * index
    value = np.frombuffer(bytes(raw[at : at + kind.itemsize]), kind)[0]
    raw[at : at + kind.itemsize] = kind.type(value * factor).tobytes()
