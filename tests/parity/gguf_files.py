"""Writes tiny models as GGUF files, with the names and changes of llama.cpp's converters."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Callable, Dict, List, Set, Tuple, Union

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[np.float32]
Value = Union[int, float, bool, str, List[bool]]

#: By family: the architecture, where it has another name.
ARCHITECTURES = {"gemma3_text": "gemma3", "olmo3": "olmo2"}
#: The architectures whose q and k rows are stored with RoPE's halves interleaved.
INTERLEAVED = {"llama", "smollm3", "granite", "minicpm"}
#: Those whose norms are stored as sums of one and the gains of the model.
ONE_MORE = {"gemma2", "gemma3", "nemotron"}
LAYER_NORMS = {"cohere2", "nemotron", "starcoder2", "stablelm"}

PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.c_fc": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.c_proj": "ffn_down",
}
#: Where the norm that other families have before the feed-forward layer stands behind attention.
POST_ATTENTION = {"gemma2", "gemma3", "olmo2", "exaone4", "seed_oss"}
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def interleaved(rows: Array, heads: int) -> Array:
    """A head's two halves, row by row in turns."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def stored_name(architecture: str, name: str) -> str:
    path, kind = name.rsplit(".", 1)
    if path in ENDS:
        return f"{ENDS[path]}.{kind}"
    _, _, layer, part = path.split(".", 3)
    stored = PARTS[part]
    if part == "post_attention_layernorm" and architecture in POST_ATTENTION:
        stored = "post_attention_norm"
    return f"blk.{layer}.{stored}.{kind}"


def head_size(config: Dict[str, Any]) -> int:
    size: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return size


def llama3_factors(config: Dict[str, Any], scaling: Dict[str, Any]) -> Array:
    """What wavelengths are multiplied by."""
    dims = head_size(config)
    original = scaling["original_max_position_embeddings"]
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    factors = []
    for pair in range(0, dims, 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (pair / dims)
        smooth = min(max((original / wavelength - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def tensors(config: Dict[str, Any], weights: Dict[str, Array], leave_out: str) -> Dict[str, Array]:
    """The tensors by their stored names. `leave_out`: "interleaving" or "one more"."""
    family = config["model_type"]
    architecture = ARCHITECTURES.get(family, family)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    made: Dict[str, Array] = {}
    by_head: Dict[str, List[Tuple[int, Array]]] = {}
    for name, value in weights.items():
        if ".norms." in name:
            path, _, head = name.removesuffix(".weight").rpartition(".norms.")
            by_head.setdefault(f"{path}.weight", []).append((int(head), value))
            continue
        projection = name.split(".")[-2]
        if architecture in INTERLEAVED and projection in heads and leave_out != "interleaving":
            value = interleaved(value, heads[projection])
        if architecture in ONE_MORE and name.endswith("norm.weight") and leave_out != "one more":
            value = value + np.float32(1)
        made[stored_name(architecture, name)] = value
    for name, rows in by_head.items():
        made[stored_name(architecture, name)] = np.stack([row for _, row in sorted(rows, key=lambda row: row[0])])
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        made["rope_freqs.weight"] = llama3_factors(config, scaling)
    if scaling.get("type") == "longrope":
        made["rope_factors_long.weight"] = np.array(scaling["long_factor"], np.float32)
        made["rope_factors_short.weight"] = np.array(scaling["short_factor"], np.float32)
    return made


def rope_keys(config: Dict[str, Any]) -> Dict[str, Value]:
    keys: Dict[str, Value] = {"rope.freq_base": float(config["rope_theta"])}
    share = config.get("partial_rotary_factor", 1.0)
    if share != 1.0 or config["model_type"] in ("llama", "smollm3", "granite", "cohere2", "phi3"):
        keys["rope.dimension_count"] = int(head_size(config) * share)
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind in ("linear", "yarn"):
        keys["rope.scaling.type"] = kind
        keys["rope.scaling.factor"] = float(scaling["factor"])
    if kind == "yarn":
        keys["rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
        keys["rope.scaling.yarn_beta_fast"] = scaling["beta_fast"]
        keys["rope.scaling.yarn_beta_slow"] = scaling["beta_slow"]
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        keys["rope.scaling.original_context_length"] = original
        ratio = config["max_position_embeddings"] / original
        keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(ratio) / math.log(original))
    return keys


def window_keys(config: Dict[str, Any]) -> Dict[str, Value]:
    if (window := config.get("sliding_window")) is None:
        return {}
    keys: Dict[str, Value] = {"attention.sliding_window": window}
    pattern = config.get("sliding_window_pattern")
    if kinds := config.get("layer_types"):
        keys["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in kinds]
    elif isinstance(pattern, str):
        count = config["num_hidden_layers"]
        keys["attention.sliding_window_pattern"] = [pattern[i % len(pattern)] == "L" for i in range(count)]
    return keys


OWN_KEYS: Dict[str, Callable[[Dict[str, Any]], Dict[str, Value]]] = {
    "gemma2": lambda config: {
        "attn_logit_softcapping": config["attn_logit_softcapping"],
        "final_logit_softcapping": config["final_logit_softcapping"],
    },
    "granite": lambda config: {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
    },
    "cohere2": lambda config: {"logit_scale": config["logit_scale"], "rope.scaling.type": "none"},
    "minicpm": lambda config: {
        "embedding_scale": config["scale_emb"],
        "residual_scale": config["scale_depth"] / config["num_hidden_layers"] ** 0.5,
        "logit_scale": config["hidden_size"] / config["dim_model_base"],
    },
    "stablelm": lambda config: {"use_parallel_residual": config.get("use_parallel_residual", True)},
}


def keys(config: Dict[str, Any]) -> Dict[str, Value]:
    """The keys of the architecture, without its name before them."""
    family = config["model_type"]
    architecture = ARCHITECTURES.get(family, family)
    made: Dict[str, Value] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
    }
    if head_dim := config.get("head_dim"):
        made["attention.key_length"] = made["attention.value_length"] = head_dim
    if architecture in LAYER_NORMS:
        epsilons = [config.get(name) for name in ("layer_norm_eps", "norm_epsilon", "norm_eps")]
        made["attention.layer_norm_epsilon"] = next(epsilon for epsilon in epsilons if epsilon)
    else:
        made["attention.layer_norm_rms_epsilon"] = config["rms_norm_eps"]
    made.update(rope_keys(config))
    made.update(window_keys(config))
    made.update(OWN_KEYS.get(architecture, lambda _: {})(config))
    return made


def silent(config: Dict[str, Any]) -> Set[str]:
    """Keys that change nothing if they are left out: they say what the format takes then."""
    found = {"context_length", "attention.value_length", "use_parallel_residual"}
    if head_size(config) * config["num_attention_heads"] == config["hidden_size"]:
        found.add("attention.key_length")
    if config.get("partial_rotary_factor", 1.0) == 1.0:
        found.add("rope.dimension_count")
    scaling = config.get("rope_scaling") or {}
    if (scaling.get("rope_type") or scaling.get("type")) != "yarn":
        found.add("rope.scaling.type")
    # Those that follow from others, or are the usual ones.
    found |= {"rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"}
    if "original_max_position_embeddings" in config:
        found.add("rope.scaling.attn_factor")
    return found


def write(folder: Path, path: Path, leave_out: str = "") -> None:
    """Writes the float32 model of `folder`. `leave_out`: a key, or what `tensors` knows."""
    config = json.loads((folder / "config.json").read_text())
    family = config["model_type"]
    architecture = ARCHITECTURES.get(family, family)
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in keys(config).items():
        full = f"{architecture}.{name}"
        if name == leave_out:
            continue
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, int) and not name.endswith(("scale", "base")):
            writer.add_uint32(full, value)
        elif isinstance(value, (int, float)):
            writer.add_float32(full, float(value))
        elif isinstance(value, str):
            writer.add_string(full, value)
        else:
            writer.add_array(full, value)
    for name, tensor in tensors(config, load_file(folder / "model.safetensors"), leave_out).items():
        writer.add_tensor(name, np.ascontiguousarray(tensor, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
