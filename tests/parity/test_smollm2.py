"""Real weights, numerics exact: our reading of the GGUF file equals mlx-lm's run of its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Iterator, Set

import pytest

import mlxgen
from support.paths import smollm2
from support.reference_weights import smollm2_folder, write_smollm2

from .compare import Expected, Mismatch, compare_scores, compare_tokens, expect
from .reference_process import Reference

QUESTION = "The capital of France is"
#: MLX reads about six quantised tokens a second here.
STEPS = 10
PERTURBED = "model.norm.weight"


@pytest.fixture(scope="module")
def quantized(engine: mlxgen.Engine) -> Iterator[mlxgen.Model]:
    with engine.load_model(
        smollm2(),
        numerics=mlxgen.Numerics.EXACT,
        compute_type=mlxgen.ComputeType.FLOAT32,
    ) as model:
        yield model


def ask(
    reference: Reference, model: mlxgen.Model, kind: str, out: Path, perturb: str = ""
) -> Expected:
    with model.tokenizer as tokenizer:
        prompt = tokenizer.encode(QUESTION)
    return expect(reference, smollm2_folder(kind), prompt, 2048, STEPS, out, perturb=perturb)


def test_gguf_equals_mlx_lm(
    reference: Reference, quantized: mlxgen.Model, tmp_path: Path
) -> None:
    expected = ask(reference, quantized, "quantized", tmp_path / "scores.npy")
    compare_scores(quantized, expected)
    compare_tokens(quantized, expected)
    with quantized.tokenizer as tokenizer:
        assert "Paris" in tokenizer.decode(expected.tokens)


def test_a_perturbed_weight_is_noticed(
    reference: Reference, quantized: mlxgen.Model, tmp_path: Path
) -> None:
    out = tmp_path / "scores.npy"
    perturbed = ask(reference, quantized, "quantized", out, PERTURBED)
    with pytest.raises(Mismatch):
        compare_scores(quantized, perturbed)


def test_float32_weights_equal_mlx_lm(
    engine: mlxgen.Engine, reference: Reference, quantized: mlxgen.Model, tmp_path: Path
) -> None:
    """The same weights as float32 from a folder, with a prompt of several chunks."""
    with quantized.tokenizer as tokenizer:
        prompt = tokenizer.encode("Rivers, mountains and cities of Europe. " * 18 + QUESTION)
    folder = smollm2_folder("float32")
    out = tmp_path / "scores.npy"
    with engine.load_model(folder, numerics=mlxgen.Numerics.EXACT, prefill_chunk=64) as model:
        expected = expect(reference, folder, prompt, 64, STEPS, out)
        compare_scores(model, expected)
        compare_tokens(model, expected)
        perturbed = expect(reference, folder, prompt, 64, STEPS, out, perturb=PERTURBED)
        with pytest.raises(Mismatch):
            compare_scores(model, perturbed)


@pytest.mark.parametrize(
    ("kind", "types", "named"),
    [("half", {"U32", "F16"}, "float16"), ("quantized", {"U32", "F32"}, "float32"), ("bfloat16", {"BF16"}, "bfloat16")],
)
def test_weights_for_the_reference_have_the_type_of_their_kind(
    tmp_path: Path, kind: str, types: Set[str], named: str
) -> None:
    folder = tmp_path / kind
    write_smollm2(kind, folder)
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    assert {tensor["dtype"] for name, tensor in header.items() if name != "__metadata__"} == types
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == named


def test_why_the_weights_cannot_be_made_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "half"
    with pytest.raises(RuntimeError, match=r"(?s)cannot make .*KeyError: 'no such kind'"):
        write_smollm2("no such kind", folder)
    assert not folder.exists()
