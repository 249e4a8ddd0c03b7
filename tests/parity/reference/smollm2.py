"""The weights of SmolLM2's GGUF file as a folder that mlx-lm loads."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Dict

import mlx.core as mx
from mlx_lm.utils import save_config

PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
GROUP = 32
#: By kind: the type of all that is not packed.
PLAIN = {"quantized": mx.float32, "half": mx.float16, "float32": mx.float32, "bfloat16": mx.bfloat16}


def module_name(name: str) -> str:
    """The module that a GGUF tensor belongs to, in mlx-lm's names."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)", name):
        return f"model.layers.{match[1]}.{PARTS[match[2]]}"
    return {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
    }[name]


def unpermuted(rows: mx.array, heads: int) -> mx.array:
    """q and k rows in the order of split-half RoPE; GGUF stores the halves interleaved."""
    half = rows.shape[0] // heads // 2
    split = rows.reshape(heads, half, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def convert(gguf: Path, folder: Path, kind: str) -> None:
    """Writes config and weights: `quantized` with float32 scales or, as in the file, `half`; or all
    dequantised to `float32` or `bfloat16`."""
    dequantize = kind in ("float32", "bfloat16")
    plain = PLAIN[kind]
    tensors, metadata = mx.load(str(gguf), return_metadata=True)

    def number(key: str) -> Any:
        return metadata[f"llama.{key}"].item()

    heads, kv_heads = number("attention.head_count"), number("attention.head_count_kv")
    weights: Dict[str, mx.array] = {}
    for name, tensor in tensors.items():
        stem, part = name.rsplit(".", 1)
        if "attn_q" in stem:
            tensor = unpermuted(tensor, heads)
        elif "attn_k" in stem:
            tensor = unpermuted(tensor, kv_heads)
        if tensor.dtype != mx.uint32:
            tensor = tensor.astype(mx.float32 if dequantize else plain)
        weights[f"{module_name(stem)}.{part}"] = tensor

    quantization: Dict[str, Any] = {"group_size": GROUP, "bits": 4, "mode": "affine"}
    for name in [name for name in weights if name.endswith(".scales")]:
        path = name.removesuffix(".scales")
        packed, scales = weights[f"{path}.weight"], weights[name]
        bits = packed.shape[-1] * 32 // (scales.shape[-1] * GROUP)
        if dequantize:
            biases = weights.pop(f"{path}.biases")
            del weights[name]
            weights[f"{path}.weight"] = mx.dequantize(packed, scales, biases, GROUP, bits)
        else:
            quantization[path] = {"group_size": GROUP, "bits": bits, "mode": "affine"}

    config: Dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": weights["model.embed_tokens.weight"].shape[0],
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "rope_theta": number("rope.freq_base"),
        "max_position_embeddings": number("context_length"),
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "bos_token_id": int(metadata["tokenizer.ggml.bos_token_id"].item()),
        "eos_token_id": int(metadata["tokenizer.ggml.eos_token_id"].item()),
        "torch_dtype": str(plain).removeprefix("mlx.core."),
    }
    if dequantize:
        weights = {name: weight.astype(plain) for name, weight in weights.items()}
    if not dequantize:
        config["quantization"] = quantization
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    save_config(config, config_path=folder / "config.json")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), kind=sys.argv[3])
