"""Streams: events, ends, text, options."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, List, Tuple

import pytest

import mlxgen
from mlxgen import EndReason, PrefillEvent, ReuseStop, TextEvent

EOS, IM_END = 257, 259


def events(stream: mlxgen.Stream) -> Tuple[List[PrefillEvent], List[TextEvent], mlxgen.EndEvent]:
    prefills: List[PrefillEvent] = []
    texts: List[TextEvent] = []
    end = None
    for event in stream:
        assert end is None, "nothing follows an end"
        if isinstance(event, PrefillEvent):
            prefills.append(event)
        elif isinstance(event, TextEvent):
            texts.append(event)
        else:
            end = event
    assert end is not None
    return prefills, texts, end


def test_events_of_a_generation(load: Callable[..., mlxgen.Model]) -> None:
    model = load(script={"text": "Hello"}, prefill_chunk=4)
    prefills, texts, end = events(model.generate(range(10)))
    assert [event.done for event in prefills] == sorted(event.done for event in prefills)
    assert prefills[-1].done <= 10 and all(event.total == 10 for event in prefills)
    assert all(event.reuse_stop == ReuseStop.NOTHING_CACHED for event in prefills)
    assert "".join(event.text for event in texts) == "Hello"
    assert [token for event in texts for token in event.tokens] == list(b"Hello")
    assert (end.reason, end.stop) == (EndReason.EOS, None)
    assert (end.usage.prompt_tokens, end.usage.reused_tokens) == (10, 0)
    assert end.usage.generated_tokens == 6  # with the end-of-sequence token
    times = end.timings
    assert min(times.queued, times.prefill, times.decode) >= 0
    assert times.first_token >= times.queued


def test_characters_are_whole(load: Callable[..., mlxgen.Model]) -> None:
    text = "aé世🦙\u0301e\u0301 ✓"
    model = load(script={"text": text})
    _, texts, _ = events(model.generate([1]))
    assert "".join(event.text for event in texts) == text
    assert "\ufffd" not in "".join(event.text for event in texts)
    assert [token for event in texts for token in event.tokens] == list(text.encode())


def test_broken_bytes_become_replacement_characters(load: Callable[..., mlxgen.Model]) -> None:
    model = load(script={"ids": [0xF0, 0x9F, 97, 0xC3, EOS]})
    assert model.generate([1]).read().text.replace("\ufffd", "") == "a"


@pytest.mark.parametrize(
    ("stop", "text", "matched"),
    [
        (["own fox"], "The quick br", "own fox"),
        (["b"], "The quick ", "b"),
        (["\nUser:"], "The quick brown fox", None),
        (["brown", "quick"], "The ", "quick"),
        (["fox!"], "The quick brown fox", None),
        (["x"], "The quick brown fo", "x"),
        (["zzz", "T"], "", "T"),
    ],
)
def test_b56_stop_texts(
    load: Callable[..., mlxgen.Model], stop: List[str], text: str, matched: Any
) -> None:
    """B56: nothing of the stop text and nothing after it comes out, however it is split."""
    model = load(script={"text": "The quick brown fox"})
    _, texts, end = events(model.generate([1], stop=stop))
    assert "".join(event.text for event in texts) == text
    assert end.stop == matched
    assert end.reason == (EndReason.EOS if matched is None else EndReason.STOP_STRING)


def test_stop_texts_are_checked(model: mlxgen.Model) -> None:
    with pytest.raises(TypeError):
        model.generate([1], stop="abc")
    with pytest.raises(mlxgen.InvalidArgumentError) as caught:
        model.generate([1], stop=["a", ""])
    assert caught.value.detail.field is not None and "stop" in caught.value.detail.field
    with pytest.raises(mlxgen.InvalidArgumentError):
        model.generate([1], stop=[b"\xff"])
    with model.generate([1], stop=["a\0b", "\U0001f999"], max_tokens=3) as stream:
        assert stream.read().end.reason == EndReason.MAX_TOKENS


def test_b54_any_of_several_eos(load: Callable[..., mlxgen.Model]) -> None:
    """B54: every id of the list ends the generation; its text is not shown, but it is counted."""
    for eos in ([1, 6], [6, 1], [6]):
        model = load(eos=eos, script={"ids": [97, 98, 6, 99]})
        done = model.generate([1]).read()
        assert (done.text, done.end.reason) == ("ab", EndReason.EOS)
        assert done.end.usage.generated_tokens == 3


def test_b55_sources_of_eos(load: Callable[..., mlxgen.Model]) -> None:
    """B55: the model's ids and the caller's; only generated tokens end it."""
    model = load(eos=[2, 5], script={"ids": [97, 98, 99, 5]})
    # In the prompt they end nothing.
    assert model.generate([2, 5, 2]).read().text == "abc"
    assert model.generate([1], extra_eos=[98]).read().text == "a"
    assert model.generate([1], extra_eos=[98]).read().end.reason == EndReason.EOS
    # As first token: no text.
    first = model.generate([1], extra_eos=[97]).read()
    assert (first.text, first.end.reason) == ("", EndReason.EOS)
    assert first.end.usage.generated_tokens == 1
    # Ignored, it is a token like others.
    ignored = model.generate([1], ignore_eos=True, max_tokens=6).read()
    assert ignored.end.reason == EndReason.MAX_TOKENS
    assert ignored.tokens[:4] == (97, 98, 99, 5) and len(ignored.tokens) == 6
    # The caller's own still end it.
    both = model.generate([1], ignore_eos=True, extra_eos=[99]).read()
    assert both.text == "ab"
    with pytest.raises(mlxgen.InvalidArgumentError) as caught:
        model.generate([1], extra_eos=[3, 260])
    assert (caught.value.detail.field, caught.value.detail.position) == ("extra_eos", 1)


@pytest.mark.parametrize("limit", [1, 2, 5, 64, 200])
def test_b58_exactly_as_many_tokens_as_asked(model: mlxgen.Model, limit: int) -> None:
    """B58"""
    done = model.generate([1, 2], max_tokens=limit).read()
    assert len(done.tokens) == limit and done.end.usage.generated_tokens == limit
    assert done.end.reason == EndReason.MAX_TOKENS


def test_b58_no_tokens_reads_the_prompt(model: mlxgen.Model) -> None:
    """B58: a limit of 0 processes the prompt and generates nothing."""
    with model.new_cache() as cache:
        done = model.generate([1, 2, 3], cache=cache, max_tokens=0).read()
        assert (done.tokens, done.text) == ((), "")
        assert done.end.reason == EndReason.MAX_TOKENS
        assert done.end.usage.generated_tokens == 0
        assert cache.tokens == [1, 2, 3]


def test_b150_the_context_limit(load: Callable[..., mlxgen.Model]) -> None:
    """B150: a prompt beyond it is refused up front; output stops at it with its own reason."""
    model = load(context_limit=32)
    with pytest.raises(mlxgen.ContextFullError):
        model.generate([1] * 33)
    done = model.generate([1] * 30, max_tokens=10).read()
    assert done.end.reason == EndReason.CONTEXT_FULL
    assert 2 <= len(done.tokens) <= 3 and done.end.usage.generated_tokens == len(done.tokens)
    with model.new_cache(capacity=16) as small:
        with pytest.raises(mlxgen.ContextFullError):
            model.generate([1] * 17, cache=small)
        assert len(small) == 0
        full = model.generate([1] * 10, cache=small).read()
        assert full.end.reason == EndReason.CONTEXT_FULL
        assert len(small) <= 16


def test_reuse_of_a_cache(model: mlxgen.Model) -> None:
    cold = model.generate([1, 2, 3, 4], max_tokens=8).read()
    with model.new_cache() as cache:
        cache.append([1, 2])
        prefills, texts, end = events(model.generate([1, 2, 3, 4], cache=cache, max_tokens=8))
        assert end.usage.reused_tokens == 2
        assert prefills[-1].reused == 2
        assert prefills[-1].reuse_stop == ReuseStop.CACHE_EXHAUSTED
        got = tuple(token for event in texts for token in event.tokens)
        assert got == cold.tokens
        held = cache.tokens
        assert held[:4] == [1, 2, 3, 4]
        assert held[4:] == list(got[: len(held) - 4]) and len(held) >= 4 + 7
        # Another way from the third token on.
        _, _, end = events(model.generate([1, 2, 9], cache=cache, max_tokens=1))
        assert end.usage.reused_tokens == 2
        # All of the prompt is there: its last token is read again.
        prefills, _, end = events(model.generate([1, 2, 9], cache=cache, max_tokens=1))
        assert end.usage.reused_tokens == 2
        assert prefills[-1].reuse_stop in (ReuseStop.PROMPT_COVERED, ReuseStop.DIVERGED)


def test_a_lent_cache_answers_only_questions(load: Callable[..., mlxgen.Model]) -> None:
    model = load(step_micros=500)
    with model.new_cache() as cache:
        with model.generate([1, 2, 3], cache=cache) as stream:
            for _ in range(5):
                stream.next()
            for call in (
                lambda: cache.append([1]),
                lambda: cache.truncate(0),
                cache.fork,
                cache.logits,
                lambda: model.generate([1], cache=cache),
            ):
                with pytest.raises(mlxgen.BusyError):
                    call()
            assert cache.tokens[:3] == [1, 2, 3] and len(cache) >= 3
            assert cache.info().tokens >= 3
        kept = cache.tokens
        cache.append([7])
        assert cache.tokens == [*kept, 7]


def test_closing_keeps_exactly_what_was_read(load: Callable[..., mlxgen.Model]) -> None:
    model = load(step_micros=300)
    whole = model.generate([5, 6], max_tokens=300).read().tokens
    for taken in (0, 1, 3, 20):
        with model.new_cache() as cache:
            stream = model.generate([5, 6], cache=cache, max_tokens=300)
            got: List[int] = []
            while len(got) < taken:
                event = stream.next()
                if isinstance(event, TextEvent):
                    got.extend(event.tokens)
            stream.close()
            held = cache.tokens
            assert held == [5, 6, *whole][: len(held)]
            assert tuple(got) == whole[: len(got)]
            # It goes on from there as a cold run would.
            if len(held) > 2:
                more = model.generate(held, cache=cache, max_tokens=5).read().tokens
                assert more == model.generate(held, max_tokens=5).read().tokens


def test_seeds(model: mlxgen.Model) -> None:
    """B48: equal for equal seeds, different for others, 0 is a seed, none is a random one."""

    def draw(**options: Any) -> Tuple[int, ...]:
        return model.generate([1, 2], max_tokens=20, temperature=1.0, **options).read().tokens

    assert draw(seed=1) == draw(seed=1) != draw(seed=2)
    assert draw(seed=0) == draw(seed=0) != draw(seed=2**64 - 1)
    assert draw() != draw()
    greedy = [model.generate([1, 2], max_tokens=20, seed=seed).read().tokens for seed in (1, 2)]
    assert greedy[0] == greedy[1]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("top_k", -1),
        ("top_k", 2**32),
        ("seed", -1),
        ("seed", 2**64),
        ("max_tokens", -1),
        ("top_logprobs", 21),
    ],
)
def test_options_without_meaning(model: mlxgen.Model, option: str, value: Any) -> None:
    with pytest.raises(mlxgen.InvalidArgumentError) as caught:
        model.generate([1], logprobs=True, **{option: value})
    assert caught.value.detail.field == option
    assert isinstance(caught.value, ValueError)


def test_logprobs(model: mlxgen.Model) -> None:
    _, texts, _ = events(model.generate([1], max_tokens=5, logprobs=True, top_logprobs=3))
    tokens = 0
    for event in texts:
        assert len(event.logprobs) == len(event.tokens) == len(event.top_logprobs)
        for token, logprob, top in zip(event.tokens, event.logprobs, event.top_logprobs):
            assert logprob <= 0 and len(top) == 3
            assert [entry.logprob for entry in top] == sorted(
                (entry.logprob for entry in top), reverse=True
            )
            assert (top[0].token, top[0].logprob) == (token, logprob)  # greedy
            tokens += 1
    assert tokens == 5
    _, texts, _ = events(model.generate([1], max_tokens=5))
    assert all(not event.logprobs and not event.top_logprobs for event in texts)


def test_next_with_and_without_waiting(load: Callable[..., mlxgen.Model]) -> None:
    model = load(step_micros=200_000)
    with model.generate([1], max_tokens=2) as stream:
        while isinstance(stream.next(), PrefillEvent):
            pass
        with pytest.raises(mlxgen.StreamTimeoutError) as caught:
            stream.next(timeout=0)
        assert isinstance(caught.value, TimeoutError)
        begin = time.monotonic()
        with pytest.raises(mlxgen.StreamTimeoutError):
            stream.next(timeout=0.06)
        assert 0.05 <= time.monotonic() - begin < 0.19
        assert stream.next(timeout=2) is not None
        while stream.next() is not None:
            pass
        assert stream.next() is None
        assert stream.next(timeout=0) is None
        with pytest.raises(mlxgen.InvalidArgumentError):
            stream.next(timeout=-1)


def test_a_stream_that_nobody_pulls_pauses(load: Callable[..., mlxgen.Model]) -> None:
    model = load()
    with model.new_cache() as cache:
        stream = model.generate([1], cache=cache, max_tokens=4000)
        time.sleep(0.2)
        first = len(cache)
        time.sleep(0.1)
        assert len(cache) == first < 4000
        # Others go on meanwhile.
        assert len(model.generate([2], max_tokens=500).read().tokens) == 500
        assert len(stream.read().tokens) == 4000


@pytest.mark.parametrize("place", ["prefill", "step", "read"])
@pytest.mark.parametrize("code", [8, 14, 15, 16, None])
def test_an_error_is_an_exception_and_never_an_end(
    load: Callable[..., mlxgen.Model], place: str, code: Any
) -> None:
    fault = {"at": place, "count": 1, "after": 0 if place == "prefill" else 3}
    if code is not None:
        fault["code"] = code
    model = load(faults=[fault])
    kind = mlxgen.errors.CLASSES[16 if code is None else code]
    with model.new_cache() as cache:
        stream = model.generate([1, 2, 3], cache=cache, max_tokens=10)
        seen = []
        with pytest.raises(kind):
            for _ in range(100):
                seen.append(stream.next())
        assert not any(isinstance(event, mlxgen.EndEvent) for event in seen)
        assert stream.next() is None
        stream.close()
        held = cache.tokens
        again = model.generate([1, 2, 3], cache=cache, max_tokens=10).read()
        assert again.tokens == model.generate([1, 2, 3], max_tokens=10).read().tokens
        assert held == [1, 2, 3, *again.tokens][: len(held)]


def test_iterating_closes_at_the_end_and_on_errors(load: Callable[..., mlxgen.Model]) -> None:
    model = load(faults=[{"at": "read", "after": 5, "code": 16}])
    stream = model.generate([1], max_tokens=3)
    for _ in stream:
        pass
    assert stream.closed and list(stream) == []
    with pytest.raises(ValueError):
        stream.read()
    failing = model.generate([1], max_tokens=30)
    with pytest.raises(mlxgen.InternalError):
        list(failing)
    assert failing.closed


def test_texts(load: Callable[..., mlxgen.Model]) -> None:
    model = load(script={"text": "one two"})
    assert "".join(model.generate([1]).texts()) == "one two"
    assert "".join(model.generate("prompt text").texts()) == "one two"
    assert model.chat([{"role": "user", "content": "Hi"}], max_tokens=3).read().text == "one"


def test_b140_misuse_is_an_error(model: mlxgen.Model) -> None:
    """B140: closed, foreign and stale handles give an error; nothing crashes."""
    from mlxgen._library import library

    stream = model.generate([1], max_tokens=2)
    stream.close()
    stream.close()
    with pytest.raises(mlxgen.WrongStateError):
        stream.next()
    cache = model.new_cache()
    pointer = cache._pointer
    cache.close()
    with pytest.raises(mlxgen.WrongStateError):
        cache.append([1])
    lib = library()
    lib.cache_release(pointer)  # again
    lib.cache_release(None)
    assert lib.cache_retain(pointer) is None
    from ctypes import byref, c_size_t, c_void_p

    for wrong in (pointer, model._pointer, 1, 0xDEAD_BEEF, None, 2**64 - 1):
        error, count = c_void_p(), c_size_t(77)
        assert lib.cache_token_count(wrong, byref(count), byref(error)) == 4
        assert count.value == 77  # untouched
        lib.error_release(error)
        assert lib.cache_token_count(wrong, byref(count), None) == 4


def test_b144_cancel_at_any_time(load: Callable[..., mlxgen.Model]) -> None:
    """B144: before, during and after; the next request works at once."""
    model = load(prefill_micros_per_token=200, step_micros=300, prefill_chunk=16)
    prompt = [i % 256 for i in range(2000)]
    for round_number in range(60):
        with mlxgen.Cancel() as cancel, model.new_cache() as cache:
            if round_number % 3 == 0:
                cancel.request()
            stream = model.generate(prompt, cache=cache, cancel=cancel, max_tokens=50)
            if round_number % 3 == 1:
                time.sleep(0.0005 * round_number)
                cancel.request()
            elif round_number % 3 == 2:
                stream = _reopen_short(model, cache, stream, cancel)
                stream.next()
                cancel.request()
            begin = time.monotonic()
            end = stream.read().end
            assert time.monotonic() - begin < 0.5
            assert end.reason == EndReason.CANCELLED
            held = cache.tokens
            assert held == prompt[: len(held)] or held[:3] == [1, 2, 3]
            assert len(model.generate([1], max_tokens=2).read().tokens) == 2
    with mlxgen.Cancel() as cancel:
        done = model.generate([1], max_tokens=2, cancel=cancel).read()
        cancel.request()
        cancel.request()
        assert done.end.reason == EndReason.MAX_TOKENS


def _reopen_short(
    model: mlxgen.Model, cache: mlxgen.CacheSet, stream: mlxgen.Stream, cancel: mlxgen.Cancel
) -> mlxgen.Stream:
    stream.close()
    return model.generate([1, 2, 3], cache=cache, cancel=cancel, max_tokens=3000)


def test_closing_from_another_thread(load: Callable[..., mlxgen.Model]) -> None:
    model = load(step_micros=400_000)
    stream = model.generate([1], max_tokens=100)
    outcome: List[object] = []

    def consume() -> None:
        while not outcome:
            try:
                if stream.next() is None:
                    outcome.append("done")
            except mlxgen.BusyError:
                pass  # the other thread came between two waits
            except mlxgen.MlxgenError as error:
                outcome.append(type(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    time.sleep(0.1)
    with pytest.raises(mlxgen.BusyError):
        stream.next(timeout=0)
    stream.close()
    consumer.join(timeout=5)
    assert not consumer.is_alive() and outcome in ([mlxgen.WrongStateError], ["done"])
