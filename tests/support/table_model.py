"""A llama that is a table: the scores of the next token depend on the last token alone.

Each token is embedded as its own unit vector; the one layer adds nothing; the head's columns are
the rows of the table. So a test can say which token follows which, through the real graph.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Mapping

import numpy as np
from safetensors.numpy import save_file

from .tiny_tokenizer import BOS, EOS, VOCABULARY, write_tokenizer

#: The score of every token that the table does not name.
NEVER = -40.0


def write_table_model(
    folder: Path, table: Mapping[int, Mapping[int, float]], **config: Any
) -> Path:
    """Writes the model. `table[last][next]` is a score; `config` changes config.json."""
    folder.mkdir(parents=True)
    size = VOCABULARY
    head = np.full((size, size), NEVER, np.float32)
    for last, scores in table.items():
        for token, score in scores.items():
            head[token, last] = score
    # The norm turns a unit vector into one of length sqrt(size).
    weights: Dict[str, np.ndarray[Any, np.dtype[np.float32]]] = {
        "model.embed_tokens.weight": np.eye(size, dtype=np.float32) * 100,
        "model.norm.weight": np.full(size, size**-0.5, np.float32),
        "lm_head.weight": head,
        "model.layers.0.input_layernorm.weight": np.ones(size, np.float32),
        "model.layers.0.post_attention_layernorm.weight": np.ones(size, np.float32),
    }
    for name, shape in {
        "self_attn.q_proj": (size, size),
        "self_attn.k_proj": (size, size),
        "self_attn.v_proj": (size, size),
        "self_attn.o_proj": (size, size),
        "mlp.gate_proj": (32, size),
        "mlp.up_proj": (32, size),
        "mlp.down_proj": (size, 32),
    }.items():
        weights[f"model.layers.0.{name}.weight"] = np.zeros(shape, np.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    described = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": size,
        "hidden_size": size,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    write_tokenizer(folder)
    return folder


def chain(tokens: Any, end: int = EOS) -> Dict[int, Dict[int, float]]:
    """A table that says the tokens one after another, then `end`, from BOS on. No token may come
    twice."""
    path = [BOS, *tokens, end]
    assert len(set(path)) == len(path), "each token has one successor"
    table = {last: {following: 10.0} for last, following in zip(path, path[1:])}
    table[end] = {end: 10.0}
    return table
