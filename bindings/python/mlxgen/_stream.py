"""Streams: generations in progress."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import threading
import time
import weakref
from ctypes import byref, c_uint32, c_void_p, sizeof
from typing import TYPE_CHECKING, Callable, Iterator, List, Optional, Sequence, Tuple, Union

from . import _abi, _callbacks
from ._cancel import Cancel
from ._handle import Handle, Tokens, call, seconds_to_ms, take_error, token_array, whole
from ._library import library
from ._prompt import Prompt, prompt_parts
from ._types import (
    Completion,
    EndEvent,
    EndReason,
    Event,
    PrefillEvent,
    ReuseStop,
    TextEvent,
    Timings,
    TokenLogprob,
    Usage,
)
from .errors import BusyError, StreamTimeoutError, WrongStateError

if TYPE_CHECKING:
    from ._cache import CacheSet
    from ._model import Model

# A blocking wait is cut into pieces, between which the interpreter can serve Ctrl-C and another
# thread can close the stream.
_SLICE_MS = 50

_open_streams: "weakref.WeakSet[Stream]" = weakref.WeakSet()


def _close_all() -> None:
    """No library thread may call Python code once the interpreter is gone."""
    for stream in list(_open_streams):
        stream.close()


atexit.register(_close_all)


def _text(address: Optional[int], size: int) -> str:
    return ctypes.string_at(address, size).decode("utf-8") if address and size else ""


def _convert(raw: _abi.Event) -> Event:
    """An event of its own: the library's view is gone at the next call."""
    if raw.kind == _abi.EVENT_TEXT:
        count, top = raw.token_count, raw.top_count
        tops: Tuple[Tuple[TokenLogprob, ...], ...] = ()
        if top and raw.top_tokens:
            tops = tuple(
                tuple(
                    TokenLogprob(raw.top_tokens[i], raw.top_logprobs[i])
                    for i in range(row * top, (row + 1) * top)
                )
                for row in range(count)
            )
        return TextEvent(
            text=_text(raw.text, raw.text_size),
            tokens=tuple(raw.tokens[:count]) if count else (),
            logprobs=tuple(raw.logprobs[:count]) if count and raw.logprobs else (),
            top_logprobs=tops,
            replayed=bool(raw.replayed),
        )
    if raw.kind == _abi.EVENT_PREFILL:
        return PrefillEvent(
            raw.prefill_done, raw.prefill_total, raw.prefill_reused, ReuseStop(raw.reuse_stop)
        )
    if raw.kind == _abi.EVENT_END:
        return EndEvent(
            EndReason(raw.end_reason),
            _text(raw.stop_text, raw.stop_text_size) if raw.stop_text else None,
            Usage(raw.prompt_tokens, raw.reused_tokens, raw.generated_tokens),
            Timings(
                raw.queued_seconds,
                raw.prefill_seconds,
                raw.decode_seconds,
                raw.first_token_seconds,
            ),
        )
    raise NotImplementedError(f"event kind {raw.kind} is newer than this package")


class Stream(Handle):
    """A generation. Iterate over it (``for`` or ``async for``) to get its events.

    It has its cache set until it is closed; iterating to the end closes it. Closing earlier ends
    the generation, waits until the engine has let go, and leaves the cache set with exactly the
    tokens that the model has read.

    Args:
        model: the model.
        prompt: token ids; at least one. What the cache set already covers is not computed again.
        cache: keeps what is read and generated; without one the stream has its own.
        temperature: 0 is greedy.
        top_p: kept probability mass; active in (0, 1). 0 keeps all, like 1 and as in mlx-lm: for
            the likeliest token alone set ``top_k=1``.
        min_p: kept share of the greatest probability; active in (0, 1].
        top_k: kept candidates; 0: all.
        seed: makes sampling repeatable; without one each run differs.
        max_tokens: most tokens to generate; ``None``: up to the context limit; 0: only read
            the prompt.
        stop: texts that end the generation; they are not part of the output.
        extra_eos: ids that end it, besides the model's own.
        ignore_eos: do not end at the model's own ids.
        logprobs: report the log-probability of each token.
        top_logprobs: report that many of the likeliest tokens too, at most 20.
        cancel: ends the generation with ``EndReason.CANCELLED``.

    Raises:
        InvalidArgumentError: an option or a token id has no meaning.
        ContextFullError: the prompt is longer than the context.
        OutOfMemoryError: there is no memory for it.
        BusyError: another call or stream has the cache set.
        WrongStateError: the cache set differs from the prompt and cannot be cut there.
    """

    KIND = "stream"

    def __init__(
        self,
        model: Model,
        prompt: Prompt,
        *,
        cache: Optional[CacheSet] = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        top_k: int = 0,
        seed: Optional[int] = None,
        max_tokens: Optional[int] = None,
        stop: Sequence[Union[str, bytes]] = (),
        extra_eos: Tokens = (),
        ignore_eos: bool = False,
        logprobs: bool = False,
        top_logprobs: int = 0,
        cancel: Optional[Cancel] = None,
    ) -> None:
        super().__init__(None)
        # An event's texts and arrays are the library's until the next call on the stream, so a
        # call and the copying of what it brought are one step that no other thread may enter.
        self._calling = threading.Lock()
        self._closing = False
        lib = library()
        options = _abi.GenerateOptions()
        lib.generate_options_init(byref(options), sizeof(options))
        options.temperature = temperature
        options.top_p = top_p
        options.min_p = min_p
        options.top_k = whole("top_k", top_k, 32)
        if seed is not None:
            options.seed = whole("seed", seed, 64)
            options.has_seed = 1
        if max_tokens is not None:
            options.max_tokens = whole("max_tokens", max_tokens, 64)
            options.has_max_tokens = 1
        if isinstance(stop, (str, bytes)):
            raise TypeError("stop is a list of texts")
        texts = [text.encode("utf-8") if isinstance(text, str) else text for text in stop]
        if texts:
            options.stop = (_abi.Text * len(texts))(*(_abi.Text(text, len(text)) for text in texts))
            options.stop_count = len(texts)
        eos, eos_count = token_array(extra_eos, "extra_eos")
        if eos_count:
            options.extra_eos = ctypes.cast(eos, ctypes.POINTER(c_uint32))
            options.extra_eos_count = eos_count
        options.ignore_eos = ignore_eos
        options.logprobs = logprobs
        options.top_logprobs = whole("top_logprobs", top_logprobs, 32)
        options.cancel = cancel._pointer if cancel is not None else None
        parts, part_count, _alive = prompt_parts(prompt)
        made = c_void_p()
        call(
            lib.stream_open,
            model._pointer,
            cache._pointer if cache is not None else None,
            parts,
            part_count,
            byref(options),
            byref(made),
        )
        super().__init__(made.value)
        self._raw = _abi.Event()
        lib.event_init(byref(self._raw), sizeof(self._raw))
        _open_streams.add(self)

    def next(self, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event, or ``None`` once the stream is done (after its EndEvent).

        Args:
            timeout: seconds to wait; 0: only what is ready; ``None``: as long as it takes.

        Raises:
            StreamTimeoutError: no event in that time; call again.
            BusyError: another thread waits for this stream.
            WrongStateError: the stream was closed, before or by another thread meanwhile.
            InvalidModelError: the model's scores are NaN or infinite; the next call says done.
            MlxgenError: the generation failed in another way; the next call says done.
        """
        wait = _SLICE_MS if timeout is None else seconds_to_ms(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if not self._calling.acquire(blocking=False):
                # Who closes has the lock too, and has said so before.
                if self._closing:
                    raise WrongStateError("this Stream is closed")
                raise BusyError("another thread waits for this stream")
            try:
                if self._closing:
                    raise WrongStateError("this Stream is closed")
                event, over = self._next_within(min(wait, _SLICE_MS))
            finally:
                self._calling.release()
            if event is not None or over:
                return event
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StreamTimeoutError("no event in the time given")
                wait = seconds_to_ms(left)

    def _next_within(self, wait_ms: int) -> Tuple[Optional[Event], bool]:
        """An event if one came, and whether the stream is done."""
        error = c_void_p()
        lib = library()
        status = lib.stream_next(self._pointer, wait_ms, byref(self._raw), byref(error))
        if status == _abi.OK:
            return _convert(self._raw), False
        if status == _abi.DONE:
            return None, True
        if status != _abi.TIMEOUT:
            raise take_error(status, error)
        lib.error_release(error)
        return None, False

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        """The next event; closes the stream at its end or when it fails."""
        if self.closed:
            raise StopIteration
        try:
            event = self.next()
        except Exception:
            self.close()
            raise
        if event is None:
            self.close()
            raise StopIteration
        return event

    def texts(self) -> Iterator[str]:
        """Only the text, as it comes."""
        for event in self:
            if isinstance(event, TextEvent) and event.text:
                yield event.text

    def read(self) -> Completion:
        """The whole rest of the generation."""
        texts: List[str] = []
        tokens: List[int] = []
        end: Optional[EndEvent] = None
        for event in self:
            if isinstance(event, TextEvent):
                texts.append(event.text)
                tokens.extend(event.tokens)
            elif isinstance(event, EndEvent):
                end = event
        if end is None:
            raise ValueError("the stream was read to its end before")
        return Completion("".join(texts), tuple(tokens), end)

    def set_wakeup(self, wakeup: Optional[Callable[[], None]]) -> None:
        """Lets the library say that an event is ready, so that nobody has to wait in a call.

        Args:
            wakeup: called on a thread of the library. It may only signal: any call of the
                library from it raises WrongStateError. It does not run any more once this
                stream is closed. ``None``: no more.
        """
        number = _callbacks.register(wakeup) if wakeup is not None else None
        try:
            call(
                library().stream_set_wakeup,
                self._pointer,
                _callbacks.wakeup if number is not None else _abi.WakeupCallback(),
                number,
                _callbacks.drop if number is not None else _abi.DropCallback(),
            )
        except BaseException:
            _callbacks.forget(number)
            raise

    def __aiter__(self) -> AsyncEvents:
        return AsyncEvents(self)

    def close(self) -> None:
        """Ends the generation and waits until the engine has let go. Closing twice does nothing.

        Takes at most what a cancellation takes. Another thread's :meth:`next` comes back with
        WrongStateError; iterating there ends with that error, or like a stream that is done.
        """
        self._closing = True
        _open_streams.discard(self)
        with self._calling:
            if not self.closed:
                error = c_void_p()
                lib = library()
                # The only failures are those of a process that can do nothing more: a forked
                # child, a library that was shut down.
                if lib.stream_close(self._pointer, byref(error)) != _abi.OK:
                    lib.error_release(error)
            super().close()

    async def aclose(self) -> None:
        """:meth:`close` without blocking the event loop."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncEvents:
    """The events of a stream for ``async for``. The event loop stays free while it waits."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        if not stream.closed:
            stream.set_wakeup(self._wake)

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass

    def __aiter__(self) -> AsyncEvents:
        return self

    async def __anext__(self) -> Event:
        while not self._stream.closed:
            # Cleared before asking: an event that comes after the question sets it again.
            self._ready.clear()
            try:
                event = self._stream.next(timeout=0)
            except StreamTimeoutError:
                await self._ready.wait()
                continue
            except Exception:
                await self._stream.aclose()
                raise
            if event is not None:
                return event
            await self._stream.aclose()
        raise StopAsyncIteration
