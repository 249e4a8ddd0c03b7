"""Each quantisation of MLX. Numerics exact: bit for bit as mlx-lm. Numerics fast: near to float32
arithmetic over the same weights, and the same bits however a prompt is cut."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import mlxgen

from .cases import BIASES, GREEDY, TIED, prompt
from .compare import BOUND, Mismatch, compare_scores, compare_tokens, distance, expect
from .reference_process import Reference
from .test_tiny_llamas import find_tensor

WIDE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
AFFINE_8 = {"group_size": 32, "bits": 8, "mode": "affine"}


def mode(name: str, bits: int, group: int, **layers: Any) -> Dict[str, Any]:
    return {"mode": name, "bits": bits, "group_size": group, "layers": layers}


CASES: List[Dict[str, Any]] = [
    {
        "name": "mxfp4-bfloat16-tied",
        "dtype": "bfloat16",
        "config": TIED,
        "quantize": mode("mxfp4", 4, 32),
        "weights": "affine 5-bit group 32 (from mxfp4)",
    },
    {
        "name": "mxfp4-float16-biases",
        "dtype": "float16",
        "config": BIASES,
        "quantize": mode("mxfp4", 4, 32),
        "weights": "affine 5-bit group 32 (from mxfp4)",
    },
    {
        "name": "nvfp4-bfloat16-biases",
        "dtype": "bfloat16",
        "config": BIASES,
        "quantize": mode("nvfp4", 4, 16),
        "weights": "affine 6-bit group 16 (from nvfp4)",
    },
    {
        "name": "mxfp8-float32",
        "dtype": "float32",
        "quantize": mode("mxfp8", 8, 32),
        "weights": "bfloat16 (from mxfp8)",
    },
    {
        "name": "b07-four-forms-bfloat16",
        "dtype": "bfloat16",
        "quantize": mode(
            "mxfp4",
            4,
            32,
            **{
                "model.layers.0.self_attn.q_proj": AFFINE_8,
                "model.layers.1.mlp.down_proj": AFFINE_8,
                "model.layers.1.mlp.up_proj": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
                "lm_head": False,
            },
        ),
        "weights": "affine 8-bit group 32",
    },
    *(
        {
            "name": f"affine-{bits}-bit-group-128",
            "dtype": "bfloat16",
            "config": {**WIDE, **TIED},
            "quantize": mode("affine", bits, 128),
            "weights": f"affine {bits}-bit group 128",
        }
        for bits in (3, 4, 5, 6, 8)
    ),
]
IDS = [case["name"] for case in CASES]
SIZES = (1, 64, 150)
CHUNK = 64


@pytest.fixture(params=CASES, ids=IDS)
def case(request: pytest.FixtureRequest) -> Dict[str, Any]:
    made: Dict[str, Any] = request.param
    return made


@pytest.fixture
def folder(reference: Reference, tmp_path: Path, case: Dict[str, Any]) -> Path:
    made = tmp_path / "model"
    prompts = [prompt(size) for size in SIZES]
    reference.ask("make_tiny", folder=made, case=case, prompts=prompts)
    return made


def exact(engine: mlxgen.Engine, folder: Path) -> mlxgen.Model:
    return engine.load_model(folder, numerics=mlxgen.Numerics.EXACT, prefill_chunk=CHUNK)


def test_exact_equals_mlx_lm(
    engine: mlxgen.Engine, reference: Reference, tmp_path: Path, folder: Path
) -> None:
    out = tmp_path / "scores.npy"
    changed = tmp_path / "changed"
    shutil.copytree(folder, changed)
    spoil(changed, "model.layers.1.mlp.gate_proj.scales")
    with exact(engine, folder) as model, exact(engine, changed) as other:
        for size in SIZES:
            expected = expect(reference, folder, prompt(size), CHUNK, GREEDY, out)
            compare_scores(model, expected)
            compare_tokens(model, expected)
            with pytest.raises(Mismatch):
                compare_scores(other, expected)


def test_fast_is_near_to_float32(
    engine: mlxgen.Engine, reference: Reference, tmp_path: Path, folder: Path, case: Dict[str, Any]
) -> None:
    wide, out = tmp_path / "float32", tmp_path / "scores.npy"
    reference.ask("float32_of", folder=folder, out=wide)
    tokens = prompt(150)
    reference.ask("forced", folder=wide, tokens=tokens, out=out)
    expected = np.load(out)
    with engine.load_model(folder) as model:
        assert case["weights"] in model.info.weights
        with model.new_cache(kv_type=mlxgen.KvType.FLOAT32) as cache:
            found = []
            for token in tokens:
                cache.append([token])
                found.append(cache.logits_numpy())
        with model.new_cache(kv_type=mlxgen.KvType.FLOAT32) as cache:
            for start, end in ((0, 7), (7, 100), (100, 150)):
                cache.append(tokens[start:end])
                assert cache.logits_numpy().tobytes() == found[end - 1].tobytes()
    apart = distance(np.stack(found), expected)
    print(f"\n{case['name']}: {apart:.1e} apart")
    assert apart < BOUND


def test_b06_overrides_under_another_prefix(
    engine: mlxgen.Engine, reference: Reference, tmp_path: Path
) -> None:
    """Overrides under a prefix that the tensors do not have, or none at all: shapes tell."""
    layer = "layers.0.self_attn.q_proj"
    made = tmp_path / "model"
    case = {
        "name": "b06",
        "dtype": "float32",
        "quantize": mode("affine", 4, 32, **{f"model.{layer}": AFFINE_8}),
    }
    reference.ask("make_tiny", folder=made, case=case, prompts=[prompt(7)])
    expected = expect(reference, made, prompt(7), CHUNK, GREEDY, tmp_path / "scores.npy")
    config = json.loads((made / "config.json").read_text())
    for name in (f"model.language_model.{layer}", f"thinker.model.{layer}", layer, None):
        changed = json.loads(json.dumps(config))
        for section in ("quantization", "quantization_config"):
            said = changed[section].pop(f"model.{layer}")
            if name is not None:
                changed[section][name] = said
        (made / "config.json").write_text(json.dumps(changed))
        with exact(engine, made) as model:
            compare_scores(model, expected)


def test_b01_a_tied_model_may_bring_a_head(
    engine: mlxgen.Engine, reference: Reference, tmp_path: Path
) -> None:
    """The embedding is the head, whatever lies beside it."""
    made = tmp_path / "model"
    case = {"name": "b01", "dtype": "float32", "config": TIED}
    reference.ask("make_tiny", folder=made, case=case, prompts=[prompt(7)])
    expected = expect(reference, made, prompt(7), CHUNK, GREEDY, tmp_path / "scores.npy")
    path = made / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = np.ones_like(tensors["model.embed_tokens.weight"])
    save_file(tensors, path, metadata={"format": "mlx"})
    with exact(engine, made) as model:
        compare_scores(model, expected)


def spoil(folder: Path, tensor: str) -> None:
    """Changes one byte of a tensor such that a scale becomes another."""
    path = folder / "model.safetensors"
    raw = bytearray(path.read_bytes())
    start, _ = find_tensor(raw, tensor)
    raw[start + 1] ^= 2
    path.write_bytes(raw)
