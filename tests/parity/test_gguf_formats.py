"""Every block format of GGUF, in whole models made of noise: scores equal those of mlx-lm over the float32
that the `gguf` package makes of the same blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Dict, List, Tuple

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import save_file

import mlxgen
from support.tiny_tokenizer import VOCABULARY

from .cases import prompt
from .compare import BOUND, compare_scores, compare_tokens, distance, expect
from .reference_process import Reference

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 256, 4, 2, 64, 2
GAIN = 3.0

#: Where a block's float16 are: the factor and, where there is one, that of the minimum with the mean of
#: numbers (times scale) over that of minima, which makes the noise's mean zero.
HALVES: Dict[Kind, Tuple[int, int, float]] = {
    Kind.Q4_0: (0, -1, 0),
    Kind.Q4_1: (0, 2, -7.5),
    Kind.Q5_0: (0, -1, 0),
    Kind.Q5_1: (0, 2, -15.5),
    Kind.Q8_0: (0, -1, 0),
    Kind.Q2_K: (80, 82, 1.5),
    Kind.Q3_K: (108, -1, 0),
    Kind.Q4_K: (0, 2, 7.5),
    Kind.Q5_K: (0, 2, 15.5),
    Kind.Q6_K: (208, -1, 0),
}
#: Groups of 16 become floats in MLX's arithmetic, so that equality is one of bits.
DENSE = (Kind.Q2_K, Kind.Q3_K, Kind.Q6_K)
MIXED = {Kind.Q4_K: "affine 4-bit group 32 (from Q4_K)", Kind.Q6_K: "affine 6-bit group 16 (from Q6_K)"}


def blocks(kind: Kind, rows: int, columns: int, random: np.random.Generator) -> np.ndarray:
    """uint8 `[rows, bytes]`: noise whose values have a deviation of about GAIN over the root of the columns."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    made = random.integers(0, 256, (rows * columns // elements, size), dtype=np.uint8)
    at, minimum_at, ratio = HALVES[kind]

    def put(place: int, value: float) -> None:
        made[:, place : place + 2] = np.array([value], np.float16).view(np.uint8)

    def scaled(factor: float) -> np.ndarray:
        put(at, factor)
        if minimum_at >= 0:
            put(minimum_at, factor * ratio)
        return made.reshape(rows, -1)

    unit = gguf.quants.dequantize(scaled(1.0), kind).std()
    return scaled(GAIN / columns**0.5 / unit).copy()


def matrices() -> List[Tuple[str, str, int, int]]:
    found = [("token_embd", "model.embed_tokens", VOCABULARY, HIDDEN)]
    for layer in range(LAYERS):
        for stored, name, rows in (
            ("attn_q", "self_attn.q_proj", HEADS * HEAD_DIM),
            ("attn_k", "self_attn.k_proj", KV_HEADS * HEAD_DIM),
            ("attn_v", "self_attn.v_proj", KV_HEADS * HEAD_DIM),
            ("attn_output", "self_attn.o_proj", HIDDEN),
            ("ffn_gate", "mlp.gate_proj", HIDDEN),
            ("ffn_up", "mlp.up_proj", HIDDEN),
            ("ffn_down", "mlp.down_proj", HIDDEN),
        ):
            found.append((f"blk.{layer}.{stored}", f"model.layers.{layer}.{name}", rows, HIDDEN))
    return found


def make(folder: Path, kind_of: Dict[str, Kind], kind: Kind) -> Tuple[Path, Path]:
    """A GGUF file, and a folder with the float32 that it stands for."""
    random = np.random.default_rng(int(kind))
    path, wide = folder / "model.gguf", folder / "float32"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    weights: Dict[str, np.ndarray] = {}
    for stored, name, rows, columns in matrices():
        own = kind_of.get(stored.rsplit(".", 1)[-1], kind)
        data = blocks(own, rows, columns, random)
        weights[f"{name}.weight"] = gguf.quants.dequantize(data, own).astype(np.float32)
        if "attn_q" in stored or "attn_k" in stored:  # stored with the halves of heads interleaved
            split = data.reshape(-1, 2, HEAD_DIM // 2, data.shape[-1])
            data = np.ascontiguousarray(split.swapaxes(1, 2)).reshape(data.shape)
        writer.add_tensor(f"{stored}.weight", data, raw_dtype=own)
    norms = [("output_norm", "model.norm")]
    for layer in range(LAYERS):
        norms.append((f"blk.{layer}.attn_norm", f"model.layers.{layer}.input_layernorm"))
        norms.append((f"blk.{layer}.ffn_norm", f"model.layers.{layer}.post_attention_layernorm"))
    for stored, name in norms:
        norm = 1 + 0.1 * random.standard_normal(HIDDEN, dtype=np.float32)
        writer.add_tensor(f"{stored}.weight", norm)
        weights[f"{name}.weight"] = norm
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    wide.mkdir()
    save_file(weights, wide / "model.safetensors", metadata={"format": "mlx"})
    config = {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    (wide / "config.json").write_text(json.dumps(config))
    return path, wide


def near(model: mlxgen.Model, scores: np.ndarray, tokens: List[int], **scheme: int) -> None:
    with model.new_cache(**scheme) as cache:
        found = []
        for token in tokens:
            cache.append([token])
            found.append(cache.logits_numpy())
    apart = distance(np.stack(found), scores)
    print(f"\n{model.info.weights}: {apart:.1e} apart")
    assert apart < BOUND


@pytest.mark.parametrize("mixed", (False, True), ids=("alone", "mixed"))
@pytest.mark.parametrize("kind", HALVES, ids=lambda kind: str(kind.name))
def test_blocks_are_the_floats_of_the_gguf_package(
    engine: mlxgen.Engine, reference: Reference, tmp_path: Path, kind: Kind, mixed: bool
) -> None:
    """`mixed`: some matrices are Q4_K and Q6_K, as in the files that people have."""
    others = {"attn_v": Kind.Q6_K, "ffn_down": Kind.Q6_K, "attn_q": Kind.Q4_K} if mixed else {}
    path, wide = make(tmp_path, others, kind)
    out = tmp_path / "scores.npy"
    tokens = prompt(70)
    reference.ask("forced", folder=wide, tokens=tokens, out=out)
    scores = np.load(out)
    with engine.load_model(path) as model:
        near(model, scores, tokens, kv_type=mlxgen.KvType.FLOAT32)
        for own in {kind, *others.values()}:
            assert f"(from {own.name})" in model.info.weights
            assert MIXED.get(own, "") in model.info.weights
    with engine.load_model(
        path,
        numerics=mlxgen.Numerics.EXACT,
        compute_type=mlxgen.ComputeType.FLOAT32,
    ) as model:
        near(model, scores, tokens)
        if kind in DENSE and not mixed:
            expected = expect(reference, wide, tokens[:9], 2048, 24, out)
            compare_scores(model, expected)
            compare_tokens(model, expected)
