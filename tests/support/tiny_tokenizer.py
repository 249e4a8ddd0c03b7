"""A byte-level tokenizer of 256 bytes and 32 special tokens, so that any text has ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict

VOCABULARY = 288
BOS = 256
EOS = 257


def byte_characters() -> Dict[int, str]:
    """The printable character that byte-level vocabularies write for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in characters:
            characters[byte] = chr(256 + len(characters) - len(printable))
    return characters


def write_tokenizer(folder: Path) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`. Byte b has id b."""
    characters = byte_characters()
    vocabulary = {characters[byte]: byte for byte in range(256)}
    special = ["<|bos|>", "<|eos|>"] + [f"<|special_{i}|>" for i in range(2, VOCABULARY - 256)]
    added = [
        {
            "id": 256 + i,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, text in enumerate(special)
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    tokenizer: Dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
    config = {
        "bos_token": special[0],
        "eos_token": special[1],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": (
            "{% for message in messages %}<|special_2|>{{ message.role }}\n{{ message.content }}"
            "<|eos|>\n{% endfor %}{% if add_generation_prompt %}<|special_2|>assistant\n{% endif %}"
        ),
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
