"""The tiny models of every family: what `docs/models.md` lists as compared.

Windows are small, so that prompts of a few tokens reach around them.
"""

from __future__ import annotations

from typing import Any, Dict, List

WINDOW = 32
#: Tokens of a prefill forward: one that does not divide the window, and mlx-lm's default.
CHUNKS = (24, 2048)
#: Prompts that are read and continued for `SHORT` steps, around the window and the chunk.
PROMPT_SIZES = (1, 25, 31, 32, 33, 34, 100)
SHORT = 3
#: The prompt that is continued for `LONG` steps, which cross the window.
LONG_PROMPT = 20
LONG = 64

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}


def longrope(pairs: int) -> Dict[str, Any]:
    """As long as the lists are equal, mlx-lm's choice of always the second one is right (B10)."""
    factors = [1.0, 1.5, 2.0, 3.0]
    spread = [factors[pair * len(factors) // pairs] for pair in range(pairs)]
    return {"type": "longrope", "short_factor": spread, "long_factor": spread}


SLIDING = ["sliding_attention", "full_attention"]

#: By name: changes to the base configuration of `reference.tiny`. `None` takes a field away.
FAMILIES: Dict[str, Dict[str, Any]] = {
    "llama": {"model_type": "llama", "layer_types": SLIDING, "sliding_window": WINDOW},
    "llama-dynamic": {
        "model_type": "llama",
        "max_position_embeddings": 48,
        "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
    },
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "ministral3": {
        "model_type": "ministral3",
        "layer_types": SLIDING,
        "sliding_window": WINDOW,
        "rope_parameters": {
            **YARN,
            "rope_theta": 10000.0,
            "llama_4_scaling_beta": 0.3,
            "original_max_position_embeddings": 16,
        },
    },
    "smollm3": {"model_type": "smollm3", "no_rope_layer_interval": 2},
    "qwen2": {"model_type": "qwen2", "rope_theta": 1000000.0},
    "qwen2-yarn": {"model_type": "qwen2", "rope_scaling": YARN},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "qwen3-rope-parameters": {
        "model_type": "qwen3",
        "head_dim": 32,
        "rope_theta": None,
        "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5000.0},
    },
    "gemma2": {
        "model_type": "gemma2",
        "head_dim": 32,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
        "hidden_act": "gelu_pytorch_tanh",
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "head_dim": 32,
        "query_pre_attn_scalar": 24,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 2,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "hidden_act": "gelu_pytorch_tanh",
    },
    "phi3": {"model_type": "phi3"},
    "phi3-longrope": {
        "model_type": "phi3",
        "partial_rotary_factor": 0.5,
        "rope_scaling": longrope(4),
        "original_max_position_embeddings": 64,
        "max_position_embeddings": 256,
    },
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {
        "model_type": "olmo3",
        "layer_types": SLIDING,
        "sliding_window": WINDOW,
        "rope_scaling": YARN,
    },
    "granite": {
        "model_type": "granite",
        "logits_scaling": 3.0,
        "attention_multiplier": 0.3,
        "embedding_multiplier": 1.7,
        "residual_multiplier": 0.8,
        "attention_bias": True,
        "mlp_bias": False,
        "tie_word_embeddings": True,
    },
    "cohere2": {
        "model_type": "cohere2",
        "head_dim": 16,
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.7,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 2,
        "layer_norm_bias": False,
        "tie_word_embeddings": True,
    },
    "glm4": {
        "model_type": "glm4",
        "head_dim": 16,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
    },
    "exaone4": {
        "model_type": "exaone4",
        "head_dim": 16,
        "sliding_window": WINDOW,
        "sliding_window_pattern": "LG",
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8,
            "low_freq_factor": 1,
            "high_freq_factor": 4,
            "original_max_position_embeddings": 64,
        },
    },
    "seed_oss": {
        "model_type": "seed_oss",
        "head_dim": 16,
        "attention_bias": True,
        "attention_out_bias": False,
    },
    "internlm3": {
        "model_type": "internlm3",
        "qkv_bias": True,
        "bias": True,
        "rope_scaling": {"rope_type": "dynamic", "factor": 6.0},
        "max_position_embeddings": 48,
    },
    "ernie4_5": {"model_type": "ernie4_5", "head_dim": 32, "use_bias": True},
    "nemotron": {
        "model_type": "nemotron",
        "norm_eps": 1e-5,
        "hidden_act": "relu2",
        "partial_rotary_factor": 0.5,
        "attention_bias": False,
    },
    "minicpm": {
        "model_type": "minicpm",
        "dim_model_base": 32,
        "scale_depth": 1.4,
        "scale_emb": 2.0,
    },
    "starcoder2": {
        "model_type": "starcoder2",
        "norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "hidden_act": "gelu",
    },
    "stablelm": {
        "model_type": "stablelm",
        "use_qkv_bias": True,
        "partial_rotary_factor": 0.25,
        "layer_norm_eps": 1e-5,
    },
    "stablelm-parallel": {
        "model_type": "stablelm",
        "use_qkv_bias": False,
        "partial_rotary_factor": 0.25,
        "layer_norm_eps": 1e-5,
        "use_parallel_residual": True,
        "qk_layernorm": True,
    },
    "helium": {
        "model_type": "helium",
        "attention_bias": True,
        "mlp_bias": False,
        "head_dim": 16,
        "tie_word_embeddings": False,
    },
}

#: Their rotation depends on the length that a sequence reaches, so prompts that are appended in parts are other
#: sequences. How the library cuts one prompt into forwards changes nothing.
BY_LENGTH = ("llama-dynamic", "internlm3")

#: Types in which each is compared. float16 too where a family treats it apart.
DTYPES: Dict[str, List[str]] = {
    name: ["float32", "bfloat16"] + (["float16"] if name in ("gemma3", "cohere2") else [])
    for name in FAMILIES
}


#: Where embeddings are multiplied and give the scores too, they would drown what the layers add.
EMBEDDING: Dict[str, float] = {"gemma2": 0.05}

#: Of variants whose heads have 64 elements, which every scheme of a cache takes. The heads of families that have no
#: field for them are parts of the hidden size.
WIDE = {"head_dim": 64, "hidden_size": 256}
WIDE_FAMILIES: Dict[str, Dict[str, Any]] = {
    **{name: {**fields, **WIDE} for name, fields in FAMILIES.items()},
    "phi3-longrope": {**FAMILIES["phi3-longrope"], **WIDE, "rope_scaling": longrope(16)},
}
WIDE_EMBEDDING: Dict[str, float] = {"gemma2": 0.01}


def case(name: str, dtype: str, wide: bool = False) -> Dict[str, Any]:
    """As `reference.tiny.make` takes it. `wide`: with heads of 64 elements."""
    families, embedding = (WIDE_FAMILIES, WIDE_EMBEDDING) if wide else (FAMILIES, EMBEDDING)
    return {
        "name": f"{name}-{dtype}" + ("-wide" if wide else ""),
        "dtype": dtype,
        "config": families[name],
        "embedding": embedding.get(name, 0.5),
    }
