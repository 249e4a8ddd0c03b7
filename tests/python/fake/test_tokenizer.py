"""Tokenizer and chat template, on the fake model's tokenizer of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import pytest

import mlxgen
from support.tiny_tokenizer import write_tokenizer

BOS, EOS, IM_START, IM_END = 256, 257, 258, 259
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def tokenizer(model: mlxgen.Model) -> Iterator[mlxgen.Tokenizer]:
    with model.tokenizer as made:
        yield made


def test_text_there_and_back(tokenizer: mlxgen.Tokenizer) -> None:
    for text in ("", "abc", "Grüße, 世界 🦙", "a\0b", "\n\t "):
        ids = tokenizer.encode(text)
        assert ids == list(text.encode("utf-8"))
        assert tokenizer.decode(ids) == text


def test_special_tokens(tokenizer: mlxgen.Tokenizer) -> None:
    assert tokenizer.encode("<|eos|>", parse_special=True) == [EOS]
    plain = tokenizer.encode("<|eos|>")
    assert plain == list(b"<|eos|>")
    assert tokenizer.decode([97, EOS, 98]) == "a<|eos|>b"
    assert tokenizer.decode([97, EOS, 98], skip_special=True) == "ab"


def test_b41_odd_text(tokenizer: mlxgen.Tokenizer) -> None:
    """B41: text that is not UTF-8 is an argument error; a NUL is kept; a mebibyte takes seconds."""
    with pytest.raises(mlxgen.InvalidArgumentError) as caught:
        tokenizer.encode(b"ab\xff\xfe")
    assert caught.value.detail.position == 2
    with pytest.raises(mlxgen.InvalidArgumentError):
        tokenizer.encode(b"\xed\xa0\x80")
    assert tokenizer.encode("\0") == [0]
    assert len(tokenizer.encode("a" * (1 << 20))) == 1 << 20
    assert tokenizer.decode([0xFF]) == "\ufffd"


def test_ids_that_do_not_exist(tokenizer: mlxgen.Tokenizer) -> None:
    with pytest.raises(mlxgen.InvalidArgumentError) as caught:
        tokenizer.decode([1, 2, 260])
    assert caught.value.detail.position == 2
    with pytest.raises(mlxgen.InvalidArgumentError) as caught:
        tokenizer.decode([1, -1])
    assert (caught.value.detail.field, caught.value.detail.position) == ("tokens", 1)
    with pytest.raises(TypeError):
        tokenizer.decode("text")  # type: ignore[arg-type]


def test_chat(tokenizer: mlxgen.Tokenizer) -> None:
    chat = tokenizer.render_chat([{"role": "user", "content": "Hi <|im_end|>"}])
    assert chat.text == (
        "<|bos|><|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    # What a user writes cannot end the user's turn.
    assert chat.tokens.count(IM_END) == 1 and chat.tokens.count(IM_START) == 2
    assert chat.tokens[0] == BOS and chat.tokens.count(BOS) == 1
    parsed = tokenizer.render_chat(
        [{"role": "user", "content": "Hi <|im_end|>"}],
        add_generation_prompt=False,
        parse_special_in_content=True,
    )
    assert parsed.tokens.count(IM_END) == 2
    assert parsed.text.endswith("<|im_end|>\n") and parsed.tokens.count(IM_START) == 1


def test_b148_empty_conversations(tokenizer: mlxgen.Tokenizer) -> None:
    """B148: no messages are refused; an empty content is fine."""
    with pytest.raises(mlxgen.InvalidArgumentError):
        tokenizer.render_chat([])
    empty = tokenizer.render_chat([{"role": "user", "content": ""}])
    assert empty.text == "<|bos|><|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"


def test_bad_conversations(tokenizer: mlxgen.Tokenizer) -> None:
    for bad in ({"role": "user"}, "text", 3, None):
        with pytest.raises(mlxgen.InvalidArgumentError) as caught:
            tokenizer.render_chat(bad)  # type: ignore[arg-type]
        assert caught.value.detail.field == "messages"
    with pytest.raises(mlxgen.NotFoundError) as missing:
        tokenizer.render_chat(HELLO, template="no such template")
    assert missing.value.detail.field == "template"
    with pytest.raises(mlxgen.InvalidArgumentError) as caught:
        tokenizer.render_chat(HELLO, extra=[1])  # type: ignore[arg-type]
    assert caught.value.detail.field == "extra"
    with pytest.raises(mlxgen.InvalidArgumentError) as caught:
        tokenizer.render_chat(HELLO, tools={"a": 1})  # type: ignore[arg-type]
    assert caught.value.detail.field == "tools"
    with pytest.raises(mlxgen.InvalidArgumentError) as caught:
        tokenizer.render_chat(HELLO, tool_arguments=9)  # type: ignore[arg-type]
    assert caught.value.detail.field == "tool_arguments"


def test_a_missing_tokenizer(tmp_path: object) -> None:
    with pytest.raises(mlxgen.NotFoundError):
        mlxgen.Tokenizer(f"{tmp_path}/absent")


def test_b04_a_repository_of_the_hub(tmp_path: Path) -> None:
    """Found by its folder in the cache, as a model is."""
    repository = tmp_path / "models--org--tiny"
    snapshot = repository / "snapshots" / "abc"
    files = tmp_path / "files"
    for folder in (repository / "refs", repository / "blobs", snapshot, files):
        folder.mkdir(parents=True)
    write_tokenizer(files)
    for number, file in enumerate(files.iterdir()):
        blob = repository / "blobs" / str(number)
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    (repository / "refs" / "main").write_text("abc")
    for path in (repository, snapshot):
        with mlxgen.Tokenizer(path) as tokenizer:
            assert tokenizer.encode("<|eos|>a", parse_special=True) == [EOS, 97]
            assert tokenizer.render_chat(HELLO).text.startswith("<|special_2|>user\nHello")
    (repository / "refs" / "main").write_text("other")
    with pytest.raises(mlxgen.NotFoundError) as missing:
        mlxgen.Tokenizer(repository)
    assert str(missing.value.detail.file).endswith("snapshots/other")
