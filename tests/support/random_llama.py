"""A tiny random llama, written without mlx, for tests that need no oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict

import numpy as np
from safetensors.numpy import save_file

from .tiny_tokenizer import BOS, EOS, VOCABULARY, write_tokenizer


def write_random_llama(folder: Path, seed: int = 1, **config: Any) -> Path:
    """hidden 64, 2 layers, 4 heads over 2, float32, loud enough that greedy output varies."""
    folder.mkdir(parents=True)
    described = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        **config,
    }
    chance = np.random.default_rng(seed)
    hidden, inner = described["hidden_size"], described["intermediate_size"]
    kv = hidden // 2
    shapes = {"model.embed_tokens": (VOCABULARY, hidden), "lm_head": (VOCABULARY, hidden)}
    for layer in range(described["num_hidden_layers"]):
        for name, shape in {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }.items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    weights: Dict[str, Any] = {}
    for name, shape in shapes.items():
        gain = 0.5 if "embed" in name else 2.0 / shape[1] ** 0.5
        weights[f"{name}.weight"] = (chance.standard_normal(shape) * gain).astype(np.float32)
    for layer in range(described["num_hidden_layers"]):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{norm}.weight"] = np.ones(hidden, np.float32)
    weights["model.norm.weight"] = np.ones(hidden, np.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    write_tokenizer(folder)
    return folder
