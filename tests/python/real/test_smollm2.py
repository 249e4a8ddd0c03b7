"""A real model gives a right answer."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List

import pytest

import mlxgen

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def model(engine: mlxgen.Engine, smollm2: Path) -> Iterator[mlxgen.Model]:
    with engine.load_model(smollm2) as loaded:
        yield loaded


def test_it_answers(model: mlxgen.Model) -> None:
    pieces = list(model.chat(QUESTION, max_tokens=40).texts())
    assert "Paris" in "".join(pieces)
    assert len(pieces) > 3, "the answer comes piece by piece"


def test_it_is_what_the_file_says(model: mlxgen.Model) -> None:
    info = model.info
    assert (info.family, info.format) == ("llama", "gguf")
    assert (info.vocabulary, info.layers, info.hidden) == (49152, 30, 576)
    assert (info.heads, info.kv_heads, info.head_dim) == (9, 3, 64)
    assert info.context_limit == 8192 and info.has_chat_template
    assert 130e6 < info.parameters < 140e6
    assert info.eos == (2,)


def test_a_conversation_reuses_its_cache(model: mlxgen.Model) -> None:
    with model.new_cache() as cache, model.tokenizer as tokenizer:
        messages = list(QUESTION)
        first = model.chat(messages, cache=cache, max_tokens=40).read()
        assert first.end.reason == mlxgen.EndReason.EOS and "Paris" in first.text
        messages += [
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "Which country did I ask about?"},
        ]
        second = model.chat(messages, cache=cache, max_tokens=30).read()
        before = len(tokenizer.render_chat(QUESTION).tokens)
        assert second.end.usage.reused_tokens >= before
        assert second.text and len(second.tokens) > 1


def test_sampling_repeats_with_its_seed(model: mlxgen.Model) -> None:
    def draw(seed: int) -> str:
        return model.chat(QUESTION, max_tokens=12, temperature=1.2, top_p=0.95, seed=seed).read().text

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(4)}) > 1


def test_text_is_whole_characters(model: mlxgen.Model) -> None:
    prompt: List[int] = []
    with model.tokenizer as tokenizer:
        prompt = tokenizer.encode("Emoji: 🦙🎉世界 🦙🎉世界 🦙🎉世界")
        expected = tokenizer.encode("🦙🎉世界")
    stream = model.generate(prompt, max_tokens=24)
    texts: List[str] = []
    tokens: List[int] = []
    for event in stream:
        if isinstance(event, mlxgen.TextEvent):
            texts.append(event.text)
            tokens.extend(event.tokens)
    with model.tokenizer as tokenizer:
        assert tokenizer.decode(tokens).startswith("".join(texts).rstrip("\ufffd"))
    assert len(expected) > 4
