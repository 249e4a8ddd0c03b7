"""A llama of about 2 GB of bfloat16 weights without meaning, to measure loads with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Dict, List, Tuple

HIDDEN, INTERMEDIATE, HEADS, LAYERS, VOCABULARY = 2048, 5632, 16, 19, 32000
#: Bytes that are written at once, and repeated.
BLOCK = 8 << 20


def write(folder: Path) -> int:
    """Writes `config.json` and `model.safetensors`; returns the bytes of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    tensors: List[Tuple[str, List[int]]] = [("model.embed_tokens.weight", [VOCABULARY, HIDDEN])]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors += [(f"{at}{norm}.weight", [HIDDEN]) for norm in ("input_layernorm", "post_attention_layernorm")]
        tensors += [(f"{at}self_attn.{name}_proj.weight", [HIDDEN, HIDDEN]) for name in "qkvo"]
        tensors += [(f"{at}mlp.{name}_proj.weight", [INTERMEDIATE, HIDDEN]) for name in ("gate", "up")]
        tensors.append((f"{at}mlp.down_proj.weight", [HIDDEN, INTERMEDIATE]))
    tensors.append(("model.norm.weight", [HIDDEN]))
    header: Dict[str, object] = {}
    end = 0
    for name, shape in tensors:
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # Numbers of both signs about a hundredth in size.
    block = bytearray(os.urandom(BLOCK))
    block[1::2] = b"\x3c\xbc" * (BLOCK // 4)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, end, BLOCK):
            file.write(block[: min(BLOCK, end - start)])
    return end
