#!/usr/bin/env python3
"""Writes what Python's tokenizers encodes and decodes with a few small tokenizers.

The tokenizers are made here, one for each kind of decoder, and go into the result together with
texts, ids and what Python makes of them: tests/data/tokenizer_oracle.json, which
tests/text_tokenizer_oracle.rs compares with. Needs tokenizers 0.23:

    python scripts/tokenizer_oracle.py
"""

import json
import pathlib
import random

import tokenizers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "tokenizer_oracle.json"
RANDOM = random.Random(11)

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "the lead lead follows the leader, x and xx",
    "été à la plage; naïve façade; ďáb",
    "日本語 の テスト、日本 語",
    "🙂🙃 family 👨‍👩‍👧‍👦 flags 🇫🇷🇩🇪 🏳️‍🌈",
    "don't won't I'll 123 4567 89.0",
]
TEXTS = CORPUS + [
    "", " ", "  lead x", "x  ", "\n\tx\n", "\0", "e\u0301x", "각", "a<s>b</s> c", "<|user|> hi <|user|>",
    "<0x0A>", "▁lead", "Ġthe", "\u00a0nbsp", "ẞﬁ", "unseen: ж ש ع",
]
SPECIAL = ["<s>", "</s>"]


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=330,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.add_tokens([AddedToken("<|user|>", normalized=False), AddedToken("été", normalized=True)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def fallback(**options):
    letters = sorted(set("".join(CORPUS[:2]).replace(" ", "")))
    pieces = ["▁", "▁l", "ea", "ead", "▁lead", "▁x", "▁th", "▁the", "xx"]
    vocab = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    vocab += [piece for piece in pieces if piece not in vocab]
    merges = [("▁", "l"), ("e", "a"), ("ea", "d"), ("▁l", "ead"), ("▁", "x"), ("x", "x")]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(vocab)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.add_special_tokens(["<unk>", *SPECIAL])
    tokenizer.add_tokens([AddedToken("<|user|>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    for name, value in options.items():
        setattr(tokenizer, name, value)
    return tokenizer


def fused(*end):
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *end])


def words(decoder, prefix=""):
    vocab = ["<unk>", *SPECIAL, "<pad>", "|", "the", "fox", "do", "n't", "n", ".", "?", "x", "jump", "s", "a b"]
    vocab += [prefix + piece for piece in ["er", "ing", "y"]] + ["end</w>", "mid</w>"]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(dict.fromkeys(vocab))}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIAL)
    if decoder is not None:
        tokenizer.decoder = decoder
    return tokenizer


KINDS = {
    "byte_level": byte_level(),
    "fallback_strip": fallback(
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        decoder=fused(decoders.Strip(" ", 1, 0)),
    ),
    "fallback_both_ends": fallback(
        normalizer=normalizers.Replace(" ", "▁"), decoder=fused(decoders.Strip(" ", 1, 2))
    ),
    "fallback_plain": fallback(
        normalizer=normalizers.Replace(" ", "▁"),
        pre_tokenizer=pre_tokenizers.Split(" ", "merged_with_previous"),
        decoder=fused(),
    ),
    "metaspace": fallback(
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first"), decoder=decoders.Metaspace(prepend_scheme="first")
    ),
    "metaspace_never": fallback(
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="never"),
        decoder=decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never")]),
    ),
    "word_piece": words(decoders.WordPiece(), "##"),
    "word_suffix": words(decoders.BPEDecoder()),
    "ctc": words(decoders.CTC()),
    "bare": words(None),
}


def random_ids(tokenizer):
    """Ids of all kinds, and bytes in runs that are all characters or all garbage: in a run of both
    Python gives up the characters too, which a stream that has shown them cannot."""
    size = tokenizer.get_vocab_size()
    vocab = tokenizer.get_vocab()
    byte = lambda value: vocab.get(f"<0x{value:02X}>")  # noqa: E731
    plain = [i for token, i in vocab.items() if not token.startswith("<0x")]
    ends = [i for i in plain if tokenizer.id_to_token(i).isalpha()]
    ids = []
    for _ in range(RANDOM.randint(1, 12)):
        choice = RANDOM.random()
        if byte(0) is None or choice < 0.5:
            ids.append(RANDOM.choice(plain) if byte(0) is not None else RANDOM.randrange(size))
        elif choice < 0.8:
            ids += [byte(b) for b in RANDOM.choice(["é", "🙂", "日", "\n", "ж", "e\u0301"]).encode()]
            ids.append(RANDOM.choice(ends))
        else:
            ids += [byte(RANDOM.choice([0x80, 0x9F, 0xF0, 0xE6, 0xFF])) for _ in range(RANDOM.randint(1, 3))]
            ids.append(RANDOM.choice(ends))
    return ids


def both(tokenizer, ids):
    """With and without special tokens; None where the crate panics, as it does on too little text."""
    try:
        return [tokenizer.decode(ids, skip_special_tokens=skip) for skip in (False, True)]
    except BaseException as panic:
        if type(panic).__name__ != "PanicException":
            raise
        return None


def cases(tokenizer):
    encode_only = Tokenizer.from_str(tokenizer.to_str())
    encode_only.encode_special_tokens = True
    ids = [tokenizer.encode(text).ids for text in TEXTS] + [random_ids(tokenizer) for _ in range(60)] + [[]]
    decoded = [[each, *texts] for each in ids if (texts := both(tokenizer, each)) is not None]
    return {
        "json": json.loads(tokenizer.to_str()),
        "encode": [
            [text, tokenizer.encode(text).ids, encode_only.encode(text, add_special_tokens=False).ids] for text in TEXTS
        ],
        "decode": decoded,
    }


def main():
    result = {"made_with": {"tokenizers": tokenizers.__version__}}
    result["kinds"] = {name: cases(tokenizer) for name, tokenizer in KINDS.items()}
    lines = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
    OUT.write_text(lines.replace('"kinds":{', '"kinds":{\n').replace(',"decode":', ',\n"decode":') + "\n", encoding="utf-8")
    print(f"{len(KINDS)} tokenizers, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
