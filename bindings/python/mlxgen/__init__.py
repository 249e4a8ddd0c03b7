"""Python binding of libmlxgen, an embeddable LLM inference core over MLX.

    import mlxgen

    with mlxgen.Engine() as engine, engine.load_model("model.gguf") as model:
        for text in model.chat([{"role": "user", "content": "Hello"}]).texts():
            print(text, end="", flush=True)

Pure ctypes: nothing to build, no dependency. The dynamic library is looked for at the first use:
the environment variable ``MLXGEN_LIBRARY``, then beside this package, then the build output of
the checkout that this package lies in.
"""

from __future__ import annotations

import json
from ctypes import byref, c_void_p
from typing import Any, Dict

from ._cache import CacheSet
from ._cancel import Cancel
from ._engine import Engine
from ._estimate import estimate
from ._handle import call, seconds_to_ms, take_text
from ._library import LibraryNotFoundError, find_library, library
from ._log import LogLevel, log_to, set_log_sink
from ._model import Model
from ._stream import AsyncEvents, Stream
from ._tokenizer import Tokenizer
from ._prompt import Embeddings, Prompt
from ._types import (
    AffineKv,
    BuildInfo,
    CacheInfo,
    Completion,
    ComputeType,
    Device,
    EndEvent,
    EndReason,
    Event,
    KvPages,
    KvPrecision,
    KvTable,
    KvType,
    KvWindow,
    LayerCacheInfo,
    LoadPhase,
    MemoryEstimate,
    MemoryInfo,
    ModelInfo,
    Numerics,
    PrefillEvent,
    RenderedChat,
    ReuseStop,
    TextEvent,
    Timings,
    TokenLogprob,
    ToolArguments,
    TurboQuantKv,
    Usage,
)
from .errors import (
    BusyError,
    CancelledError,
    ContextFullError,
    ErrorDetail,
    GpuNotPermittedError,
    GpuTimeoutError,
    IncompatibleCheckpointError,
    InternalError,
    InvalidArgumentError,
    InvalidModelError,
    IoError,
    MlxgenError,
    NotFoundError,
    OutOfMemoryError,
    StreamTimeoutError,
    UnsupportedError,
    WrongStateError,
)

__version__ = "0.1.0"


def abi_version() -> int:
    """The library's ABI number."""
    number: int = library().abi_version()
    return number


def version() -> str:
    """The library's version."""
    text: bytes = library().version_string()
    return text.decode()


def build_info() -> BuildInfo:
    """How the library was built."""
    made = c_void_p()
    call(library().build_info, byref(made))
    known: Dict[str, Any] = json.loads(take_text(made))
    return BuildInfo(
        version=known["version"],
        abi=known["abi"],
        backend=known["backend"],
        target=known["target"],
        features=tuple(known["features"]),
        debug=known["debug"],
    )


def has_feature(name: str) -> bool:
    """Whether the library has a feature, such as ``gguf``."""
    data = name.encode("utf-8")
    return bool(library().has_feature(data, len(data)))


def live_handles() -> int:
    """How many objects of the library are alive in this process."""
    number: int = library().live_handles()
    return number


def shutdown(timeout: float = 10.0) -> None:
    """Ends all streams and waits for the library's threads. A new `Engine` starts afresh.

    A program need not call this: it may simply exit.

    Raises:
        StreamTimeoutError: work did not end in time.
    """
    call(library().shutdown, seconds_to_ms(timeout))


__all__ = [
    "AffineKv",
    "AsyncEvents",
    "BuildInfo",
    "BusyError",
    "CacheInfo",
    "CacheSet",
    "Cancel",
    "CancelledError",
    "Completion",
    "ComputeType",
    "ContextFullError",
    "Device",
    "Embeddings",
    "EndEvent",
    "EndReason",
    "Engine",
    "ErrorDetail",
    "Event",
    "GpuNotPermittedError",
    "GpuTimeoutError",
    "IncompatibleCheckpointError",
    "InternalError",
    "InvalidArgumentError",
    "InvalidModelError",
    "IoError",
    "KvPages",
    "KvPrecision",
    "KvTable",
    "KvType",
    "KvWindow",
    "LayerCacheInfo",
    "LibraryNotFoundError",
    "LoadPhase",
    "LogLevel",
    "MemoryEstimate",
    "MemoryInfo",
    "MlxgenError",
    "Model",
    "ModelInfo",
    "NotFoundError",
    "Numerics",
    "OutOfMemoryError",
    "PrefillEvent",
    "Prompt",
    "RenderedChat",
    "ReuseStop",
    "Stream",
    "StreamTimeoutError",
    "TextEvent",
    "Timings",
    "TokenLogprob",
    "Tokenizer",
    "ToolArguments",
    "TurboQuantKv",
    "UnsupportedError",
    "Usage",
    "WrongStateError",
    "abi_version",
    "build_info",
    "estimate",
    "find_library",
    "has_feature",
    "live_handles",
    "log_to",
    "set_log_sink",
    "shutdown",
    "version",
]
