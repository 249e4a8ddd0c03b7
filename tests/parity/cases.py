"""The tiny llamas of the parity tests, and the prompts they read."""

from __future__ import annotations

from typing import Any, Dict, List

CHUNKS = (64, 2048)
PROMPT_SIZES = (1, 7, 64, 300)
GREEDY = 64

BIASES = {"attention_bias": True, "mlp_bias": True}
TIED = {"tie_word_embeddings": True}

CASES: List[Dict[str, Any]] = [
    {"name": "float32-grouped-untied", "dtype": "float32"},
    {
        "name": "float32-biases-tied",
        "dtype": "float32",
        "config": {**BIASES, **TIED, "head_dim": 32, "num_key_value_heads": 1},
    },
    {
        "name": "float32-sharded-llama3-rope",
        "dtype": "float32",
        "config": {
            "num_key_value_heads": 4,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        "shards": 3,
    },
    {"name": "bfloat16-biases-untied", "dtype": "bfloat16", "config": BIASES},
    {"name": "bfloat16-grouped-tied", "dtype": "bfloat16", "config": TIED},
    {
        "name": "float16-mistral-linear-rope",
        "dtype": "float16",
        "config": {
            "model_type": "mistral",
            "architectures": ["MistralForCausalLM"],
            "rope_scaling": {"type": "linear", "factor": 4},
        },
    },
    {
        "name": "4-bit-bfloat16-tied",
        "dtype": "bfloat16",
        "config": TIED,
        "quantize": {"group_size": 64, "bits": 4},
    },
    {
        "name": "4-bit-float32-biases-untied",
        "dtype": "float32",
        "config": BIASES,
        "quantize": {"group_size": 32, "bits": 4},
    },
    {
        "name": "8-bit-float32-untied",
        "dtype": "float32",
        "quantize": {"group_size": 64, "bits": 8},
    },
    {
        "name": "8-bit-bfloat16-biases-tied",
        "dtype": "bfloat16",
        "config": {**BIASES, **TIED},
        "quantize": {"group_size": 32, "bits": 8},
    },
    {
        "name": "mixed-widths-float32-tied",
        "dtype": "float32",
        "config": TIED,
        "quantize": {
            "group_size": 32,
            "bits": 4,
            "layers": {
                "model.embed_tokens": {"group_size": 32, "bits": 8},
                "model.layers.1.mlp.down_proj": {"group_size": 64, "bits": 6},
                "model.layers.0.self_attn.o_proj": False,
            },
        },
    },
]


def prompt(size: int) -> List[int]:
    """`size` ids without a pattern; 1 is the last byte of the longer ones' beginning."""
    ids, state = [], 12345 + size
    for _ in range(size):
        state = (state * 1103515245 + 12345) % 2**31
        ids.append(state // 65536 % 256)
    return ids
