"""Cache sets: the keys and values of one sequence of tokens."""

from __future__ import annotations

import json
from array import array
from ctypes import byref, c_size_t, c_void_p, sizeof
from typing import TYPE_CHECKING, Any, List, Optional, cast

from . import _abi
from ._cancel import Cancel
from ._handle import Handle, Tokens, call, take_bytes, take_text, take_tokens, token_array, whole
from ._library import library
from ._prompt import Prompt, has_embeddings, prompt_parts
from ._types import (
    AffineKv,
    CacheInfo,
    KvPages,
    KvPrecision,
    KvTable,
    KvType,
    KvWindow,
    LayerCacheInfo,
)

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from ._model import Model


def _set_precision(options: _abi.CacheOptions, precision: Optional[KvPrecision]) -> None:
    if precision is None:
        return
    if precision.start is not None:
        options.kv_start = whole("kv_start", precision.start, 63)
    if isinstance(precision, AffineKv):
        options.kv_bits = whole("kv_bits", precision.bits, 32)
        options.kv_group = whole("kv_group", precision.group, 32)
    elif isinstance(precision, KvTable):
        text = precision.text.encode()
        options.kv_config, options.kv_config_size = text, len(text)
    else:
        options.turboquant_key_bits = whole("turboquant_key_bits", precision.key_bits, 32)
        options.turboquant_value_bits = whole("turboquant_value_bits", precision.value_bits, 32)
        options.turboquant_deferred = precision.deferred


def cache_options(
    capacity: int,
    kv_type: KvType,
    precision: Optional[KvPrecision],
    window: Optional[KvWindow],
    pages: Optional[KvPages],
) -> _abi.CacheOptions:
    """The options as the library takes them."""
    options = _abi.CacheOptions()
    library().cache_options_init(byref(options), sizeof(options))
    options.capacity = whole("capacity", capacity, 64)
    options.kv_type = kv_type
    _set_precision(options, precision)
    if window is not None:
        options.window = whole("window", window.tokens, 64)
        options.window_keep = whole("window_keep", window.keep, 64)
    if pages is not None:
        options.page_tokens = whole("page_tokens", pages.tokens, 32)
        options.page_capacity = whole("page_capacity", pages.capacity, 64)
    return options


class CacheSet(Handle):
    """The state of one sequence: which tokens a model has read. One call at a time.

    While a stream has it, only :attr:`tokens`, :meth:`info` and ``len`` answer (with what was
    last committed); other calls raise BusyError. ``len(cache)`` is the number of tokens.

    Args:
        model: whose tokens it will hold.
        capacity: most tokens it may hold; 0: the model's context limit.
        kv_type: element type of keys and values.
        precision: how keys and values are reduced.
        window: which tokens are kept, in layers without a window of their own; None: all.
        pages: keys and values in pages; None: not.

    Raises:
        InvalidArgumentError: an option without a meaning, or two that exclude each other.
        UnsupportedError: the model keeps keys and values in another type, or its heads do not take
            the precision.
        OutOfMemoryError: there is no room for it.
    """

    KIND = "cache"

    def __init__(
        self,
        model: Model,
        capacity: int = 0,
        kv_type: KvType = KvType.AUTO,
        precision: Optional[KvPrecision] = None,
        window: Optional[KvWindow] = None,
        pages: Optional[KvPages] = None,
    ) -> None:
        super().__init__(None)
        options = cache_options(capacity, kv_type, precision, window, pages)
        made = c_void_p()
        call(library().cache_new, model._pointer, byref(options), byref(made))
        super().__init__(made.value)

    def append(self, tokens: Prompt, *, cancel: Optional[Cancel] = None) -> None:
        """Lets the model read more tokens. The scores after the last one are kept.

        Args:
            tokens: ids below the vocabulary, or a list of parts, some of which are
                :class:`Embeddings`; at least one.
            cancel: stops the work; the chunks finished by then stay, as ``len`` tells.

        Raises:
            InvalidArgumentError: no token, or an id outside the vocabulary
                (``detail.position`` is its index).
            ContextFullError: they do not fit; nothing was read.
            OutOfMemoryError: there is no memory for them.
            CancelledError: ``cancel`` was requested.
            BusyError: another call or a stream has the cache set.
        """
        stop = cancel._pointer if cancel is not None else None
        if has_embeddings(tokens):
            parts, count, _alive = prompt_parts(tokens)
            call(library().cache_append_parts, self._pointer, parts, count, stop)
            return
        ids, count = token_array(cast(Tokens, tokens))
        call(library().cache_append, self._pointer, ids, count, stop)

    def logits(self) -> "array[float]":
        """The scores after the last appended token: float32, one per id of the vocabulary.

        ``numpy.asarray`` and ``memoryview`` take the result without a copy.

        Raises:
            WrongStateError: the last change of the cache set was not an append.
        """
        made = c_void_p()
        call(library().cache_logits, self._pointer, byref(made))
        scores = array("f")
        scores.frombytes(take_bytes(made))
        return scores

    def logits_numpy(self) -> NDArray[numpy.float32]:
        """Like :meth:`logits`, as a NumPy array of shape ``(vocabulary,)``; needs NumPy."""
        import numpy

        result: NDArray[numpy.float32] = numpy.frombuffer(self.logits(), dtype=numpy.float32)
        return result

    def __len__(self) -> int:
        count = c_size_t()
        call(library().cache_token_count, self._pointer, byref(count))
        return count.value

    def __bool__(self) -> bool:
        # An empty cache set is still a cache set: `cache or default` must not drop it.
        return True

    @property
    def tokens(self) -> List[int]:
        """The ids that it covers."""
        made = c_void_p()
        call(library().cache_tokens, self._pointer, byref(made))
        return take_tokens(made)

    def truncate(self, keep: int) -> int:
        """Forgets what follows the first ``keep`` tokens; returns how many were dropped.

        Raises:
            WrongStateError: a layer cannot forget; nothing changed.
        """
        dropped = c_size_t()
        call(library().cache_truncate, self._pointer, whole("keep", keep, 64), byref(dropped))
        return dropped.value

    def fork(self) -> CacheSet:
        """An independent cache set with the same tokens."""
        made = c_void_p()
        call(library().cache_fork, self._pointer, byref(made))
        return CacheSet._adopt(made)

    def info(self) -> CacheInfo:
        """Its sizes, and how each layer keeps its state."""
        raw = _abi.CacheDescription(struct_size=sizeof(_abi.CacheDescription))
        made = c_void_p()
        call(library().cache_info, self._pointer, byref(raw), byref(made))
        layers: List[Any] = json.loads(take_text(made))
        return CacheInfo(
            tokens=raw.tokens,
            capacity=raw.capacity,
            bytes=raw.bytes,
            trimmable=bool(raw.trimmable),
            layers=tuple(
                LayerCacheInfo(
                    layer["signature"],
                    layer["offset"],
                    layer["bytes"],
                    layer["shared_bytes"],
                    layer["trimmable"],
                    layer["minimum_reusable_offset"],
                )
                for layer in layers
            ),
        )
