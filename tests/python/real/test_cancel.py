"""Cancelling real work: soon, and what was kept goes on exactly."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from pathlib import Path
from typing import Iterator, List

import pytest

import mlxgen

ROUNDS = 12


@pytest.fixture(scope="module")
def model(engine: mlxgen.Engine, smollm2: Path) -> Iterator[mlxgen.Model]:
    with engine.load_model(smollm2) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def prompt(model: mlxgen.Model) -> List[int]:
    """4096 tokens of text."""
    with model.tokenizer as tokenizer:
        ids = tokenizer.encode("Once upon a time there was a river that ran backwards. " * 500)
    assert len(ids) >= 4096
    return ids[:4096]


def test_cancel_during_a_prefill_of_4096_tokens(
    model: mlxgen.Model, prompt: List[int]
) -> None:
    """The call ends as cancelled and the cache holds the beginning; `make bench` measures how soon."""
    chance = random.Random(4)
    for number in range(ROUNDS):
        with mlxgen.Cancel() as cancel, model.new_cache() as cache:
            timer = threading.Timer(0.02 + chance.random() * 1.5, cancel.request)
            timer.start()
            if number % 2:
                with pytest.raises(mlxgen.CancelledError):
                    cache.append(prompt, cancel=cancel)
            else:
                end = model.generate(prompt, cache=cache, cancel=cancel, max_tokens=4).read().end
                assert end.reason == mlxgen.EndReason.CANCELLED
            timer.join()
            held = cache.tokens
            assert held == prompt[: len(held)] and len(held) < len(prompt)


def test_what_was_kept_goes_on_exactly(model: mlxgen.Model, prompt: List[int]) -> None:
    """Scores and tokens after a cancelled prefill equal those of a cold run, bit for bit."""
    for wait in (0.0, 0.8):
        with mlxgen.Cancel() as cancel, model.new_cache() as cache:

            def cancel_after_a_chunk() -> None:
                while len(cache) == 0:
                    time.sleep(0.01)
                time.sleep(wait)
                cancel.request()

            watcher = threading.Thread(target=cancel_after_a_chunk)
            watcher.start()
            with pytest.raises(mlxgen.CancelledError):
                cache.append(prompt, cancel=cancel)
            watcher.join()
            kept = len(cache)
            length = kept + 50
            cache.append(prompt[kept:length])
            with model.new_cache() as cold:
                cold.append(prompt[:length])
                assert cold.logits() == cache.logits()
            warm = model.generate(prompt[:length] + [28], cache=cache, max_tokens=6).read()
            assert warm.end.usage.reused_tokens == length
            assert warm.tokens == model.generate(prompt[:length] + [28], max_tokens=6).read().tokens


def test_cancel_during_decoding(model: mlxgen.Model, prompt: List[int]) -> None:
    with model.new_cache() as cache:
        for number in range(10):
            with mlxgen.Cancel() as cancel:
                stream = model.generate(prompt[:20], cache=cache, cancel=cancel, ignore_eos=True)
                tokens: List[int] = []
                for event in stream:
                    if isinstance(event, mlxgen.TextEvent):
                        tokens.extend(event.tokens)
                        if len(tokens) == 2:
                            cancel.request()
                    if isinstance(event, mlxgen.EndEvent):
                        assert event.reason == mlxgen.EndReason.CANCELLED
                held = cache.tokens
                assert held == [*prompt[:20], *tokens][: len(held)] and len(held) >= 21


def test_b144_cancel_a_prefill_of_5000_and_start_again(random_llama: Path) -> None:
    """B144: many rounds; the next request works at once and says the same."""
    with mlxgen.Engine() as engine, engine.load_model(random_llama, prefill_chunk=128) as model:
        ids = [i * 7 % 256 for i in range(5000)]
        expected = model.generate([1, 2, 3], max_tokens=4, ignore_eos=True).read().tokens
        for number in range(200):
            with mlxgen.Cancel() as cancel:
                stream = model.generate(ids, cancel=cancel, max_tokens=1000, ignore_eos=True)
                if number % 4 == 1:
                    time.sleep(number * 0.0002)
                elif number % 4 == 2:
                    stream.next()
                elif number % 4 == 3:
                    stream.close()
                cancel.request()
                if not stream.closed:
                    assert stream.read().end.reason == mlxgen.EndReason.CANCELLED
                again = model.generate([1, 2, 3], max_tokens=4, ignore_eos=True).read()
                assert again.tokens == expected


def test_a_window_goes_on_exactly(engine: mlxgen.Engine, model: mlxgen.Model, prompt: List[int]) -> None:
    """Also where the cancelled or suspended forward pushed out more than a window keeps behind itself."""
    window = mlxgen.KvWindow(64)
    with model.new_cache(window=window) as straight:
        straight.append(prompt[:2000])
        expected = straight.logits()
        tokens = model.generate(prompt[:2000], cache=straight, max_tokens=8, ignore_eos=True).read().tokens
    for wait in (0.02, 0.1, 0.3, 0.6):
        with mlxgen.Cancel() as cancel, model.new_cache(window=window) as cache:
            cache.append(prompt[:600])
            timer = threading.Timer(wait, cancel.request)
            timer.start()
            with contextlib.suppress(mlxgen.CancelledError):
                cache.append(prompt[600:2000], cancel=cancel)
            timer.join()
            held = len(cache)
            assert held >= 600
            cache.fork().close()
            if held < 2000:
                cache.append(prompt[held:2000])
            assert cache.logits() == expected
        with model.new_cache(window=window) as cache:
            cache.append(prompt[:600])
            stream = model.generate(prompt[:2000], cache=cache, max_tokens=8, ignore_eos=True)
            time.sleep(wait)
            engine.suspend(10.0)
            engine.resume()
            assert stream.read().tokens == tokens
