#!/usr/bin/env python3
"""Writes what Python makes of SmolLM2's tokenizer and chat template: tests/data/smollm2_oracle.json.

The vocabulary is read from the model's GGUF file; words are split as the model's own
tokenizer.json says: single digits, then byte-level. Needs tokenizers 0.23 and transformers 5.24:

    python scripts/smollm2_oracle.py target/models/SmolLM2-135M-Instruct.Q4_1.gguf
"""

import json
import pathlib
import struct
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "smollm2_oracle.json"
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
CONTROL = 3

TEXTS = [
    "", " ", "Hello, world!", "What is the capital of France?", "  two  spaces\tand\ttabs\n\n", "1234567 3.14 ½²",
    "don't I'll WE'VE they're", "ďáb naïve façade", "日本語 のテスト 한국어", "🙂👨‍👩‍👧‍👦🏳️‍🌈", "e\u0301 vs é",
    "def f(x):\n    return x**2  # squared\n", "<|im_start|>user\nhi<|im_end|>\n", "<|im_start", "<repo_name>x<file_sep>",
    "\0\u00a0\u200b\ufeff", "Привет, мир! שלום مرحبا नमस्ते ไทย", "a" * 100, "\r\n \r\n", "https://example.org/?q=1&r=%20",
    "supercalifragilisticexpialidocious", "...!!!???---___", "{\"key\": [1, 2.5e-3, null]}",
]
CHATS = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"},
     {"role": "assistant", "content": "2"}, {"role": "user", "content": "And 日本?"}],
]


def metadata(path):
    file = path.open("rb")
    take = lambda form: struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))[0]  # noqa: E731

    def value(kind):
        if kind == 8:
            return file.read(take("Q")).decode()
        if kind == 9:
            inner, count = take("I"), take("Q")
            return [value(inner) for _ in range(count)]
        return take(NUMBERS[kind])

    assert file.read(4) == b"GGUF"
    take("I"), take("Q")
    return {value(8): value(take("I")) for _ in range(take("Q"))}


def main():
    given = metadata(pathlib.Path(sys.argv[1]))
    tokens = given["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in given["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = given["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in zip(tokens, kinds) if kind == CONTROL]
    )
    chat = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=given["tokenizer.chat_template"])

    def rendered(messages):
        options = {"add_generation_prompt": True}
        text = chat.apply_chat_template(messages, tokenize=False, **options)
        return [messages, text, chat.apply_chat_template(messages, return_dict=False, **options)]

    result = {
        "encode": [[text, tokenizer.encode(text).ids] for text in TEXTS],
        "chats": [rendered(messages) for messages in CHATS],
    }
    OUT.write_text(json.dumps(result, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
