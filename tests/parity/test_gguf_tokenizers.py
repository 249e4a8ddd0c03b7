"""The tokenizer of a GGUF file with a SentencePiece vocabulary gives SentencePiece's ids."""

from __future__ import annotations

import io
from pathlib import Path
from typing import List

import gguf
import pytest
import sentencepiece

import mlxgen
from support.paths import ROOT

TEXTS = [
    "",
    " ",
    "a",
    "  two spaces,   three\tand a tab\n\nand lines\r\n",
    "The library never prints, exits or aborts. It's 1234.5 times 00000!",
    "ÉCOLE été naïve ﬁ 日本語 🙂 \u0000 \u200d",
    "▁ a mark of its own ▁▁",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "<s> and <0x41> are no tokens here",
]


def train(prefix: bool) -> sentencepiece.SentencePieceProcessor:
    """A vocabulary of this repository's own words."""
    lines = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def write(path: Path, pieces: sentencepiece.SentencePieceProcessor, prefix: bool) -> None:
    tokens: List[str] = []
    scores: List[float] = []
    kinds: List[int] = []
    for index in range(pieces.get_piece_size()):
        tokens.append(pieces.id_to_piece(index))
        scores.append(pieces.get_score(index))
        kind = gguf.TokenType.NORMAL
        if pieces.is_unknown(index):
            kind = gguf.TokenType.UNKNOWN
        elif pieces.is_control(index):
            kind = gguf.TokenType.CONTROL
        elif pieces.is_byte(index):
            kind = gguf.TokenType.BYTE
        kinds.append(kind)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())
    writer.add_add_space_prefix(prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("prefix", [True, False])
def test_a_vocabulary_of_pieces_gives_their_ids(tmp_path: Path, prefix: bool) -> None:
    pieces = train(prefix)
    path = tmp_path / "pieces.gguf"
    write(path, pieces, prefix)
    document = (ROOT / "CONVENTIONS.md").read_text(encoding="utf-8")
    with mlxgen.Tokenizer(path) as tokenizer:
        for text in [*TEXTS, document]:
            wanted = pieces.encode(text)
            got = list(tokenizer.encode(text, add_special=False, parse_special=False))
            assert got == wanted, text[:80]
            with_bos = [pieces.bos_id(), *wanted]
            assert list(tokenizer.encode(text, add_special=True, parse_special=False)) == with_bos
            assert tokenizer.decode(got) == text.replace("▁", " ")
