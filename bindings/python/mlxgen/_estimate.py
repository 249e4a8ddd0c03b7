"""What a model would take, before it is loaded."""

from __future__ import annotations

import os
from ctypes import byref, sizeof
from typing import TYPE_CHECKING, Optional, Union

from . import _abi
from ._cache import cache_options
from ._cancel import Cancel
from ._handle import call, whole
from ._library import library
from ._model import model_options
from ._types import ComputeType, KvPages, KvPrecision, KvType, KvWindow, MemoryEstimate, Numerics

if TYPE_CHECKING:
    from ._engine import Engine


def estimate(
    path: Union[str, "os.PathLike[str]"],
    *,
    engine: Optional[Engine] = None,
    context: int = 0,
    budget: int = 0,
    numerics: Numerics = Numerics.FAST,
    compute_type: ComputeType = ComputeType.AUTO,
    prefill_chunk: int = 0,
    context_limit: int = 0,
    capacity: int = 0,
    kv_type: KvType = KvType.AUTO,
    precision: Optional[KvPrecision] = None,
    window: Optional[KvWindow] = None,
    pages: Optional[KvPages] = None,
    cancel: Optional[Cancel] = None,
) -> MemoryEstimate:
    """What a model and a cache set of it would take, from configuration and headers alone.

    Nothing is loaded, what the engine holds already is not counted, and no later call depends on
    the answer. The tokenizer and the data of the weights are not read: a load may still refuse a
    model that has an estimate.

    Args:
        path: as for :class:`Model`.
        engine: where it would compute, and whose limit counts; None: one with the defaults.
        context: tokens to ask about; 0: the most that there can be.
        budget: bytes to compare with; 0: the engine's limit.
        numerics, compute_type, prefill_chunk, context_limit: as for :class:`Model`.
        capacity, kv_type, precision, window, pages: as for :class:`CacheSet`.
        cancel: stops the reading of headers.

    Raises:
        MlxgenError: those of :class:`Model` and :class:`CacheSet`, except that memory only lacks
            for headers.
    """
    options = model_options(numerics, compute_type, prefill_chunk, context_limit)
    options.cancel = cancel._pointer if cancel is not None else None
    cache = cache_options(capacity, kv_type, precision, window, pages)
    raw = _abi.MemoryEstimate(struct_size=sizeof(_abi.MemoryEstimate))
    name = os.fsencode(path)
    call(
        library().model_estimate,
        engine._pointer if engine is not None else None,
        name,
        len(name),
        byref(options),
        byref(cache),
        whole("context", context, 64),
        whole("budget", budget, 64),
        byref(raw),
    )
    return MemoryEstimate(
        weight_bytes=raw.weight_bytes,
        file_bytes=raw.file_bytes,
        load_bytes=raw.load_bytes,
        cache_bytes_per_token=raw.cache_bytes_per_token,
        cache_bytes=raw.cache_bytes,
        workspace_bytes=raw.workspace_bytes,
        total_bytes=raw.total_bytes,
        context=raw.context,
        context_limit=raw.context_limit,
        budget=raw.budget,
        max_context=raw.max_context,
        fits=bool(raw.fits),
    )
