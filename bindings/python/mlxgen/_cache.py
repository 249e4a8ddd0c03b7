"""Cache sets: the keys and values of one sequence of tokens."""

from __future__ import annotations

import json
from array import array
from ctypes import byref, c_size_t, c_void_p, sizeof
from typing import TYPE_CHECKING, Any, List, Optional

from . import _abi
from ._cancel import Cancel
from ._handle import Handle, Tokens, call, take_bytes, take_text, take_tokens, token_array, whole
from ._library import library
from ._types import CacheInfo, KvType, LayerCacheInfo

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from ._model import Model


class CacheSet(Handle):
    """The state of one sequence: which tokens a model has read. One call at a time.

    While a stream has it, only :attr:`tokens`, :meth:`info` and ``len`` answer (with what was
    last committed); other calls raise BusyError. ``len(cache)`` is the number of tokens.

    Args:
        model: whose tokens it will hold.
        capacity: most tokens it may hold; 0: the model's context limit.
        kv_type: element type of keys and values.

    Raises:
        UnsupportedError: the model keeps keys and values in another type.
        OutOfMemoryError: there is no room for it.
    """

    KIND = "cache"

    def __init__(self, model: Model, capacity: int = 0, kv_type: KvType = KvType.AUTO) -> None:
        super().__init__(None)
        lib = library()
        options = _abi.CacheOptions()
        lib.cache_options_init(byref(options), sizeof(options))
        options.capacity = whole("capacity", capacity, 64)
        options.kv_type = kv_type
        made = c_void_p()
        call(lib.cache_new, model._pointer, byref(options), byref(made))
        super().__init__(made.value)

    def append(self, tokens: Tokens, *, cancel: Optional[Cancel] = None) -> None:
        """Lets the model read more tokens. The scores after the last one are kept.

        Args:
            tokens: ids below the vocabulary; at least one.
            cancel: stops the work; the chunks finished by then stay, as ``len`` tells.

        Raises:
            InvalidArgumentError: no token, or an id outside the vocabulary
                (``detail.position`` is its index).
            ContextFullError: they do not fit; nothing was read.
            OutOfMemoryError: there is no memory for them.
            CancelledError: ``cancel`` was requested.
            BusyError: another call or a stream has the cache set.
        """
        ids, count = token_array(tokens)
        stop = cancel._pointer if cancel is not None else None
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
                    layer["signature"], layer["offset"], layer["bytes"], layer["trimmable"]
                )
                for layer in layers
            ),
        )
