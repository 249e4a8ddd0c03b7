"""The library's errors: one class for each status code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Dict, Optional, Tuple, Type

from . import _abi


@dataclass(frozen=True)
class ErrorDetail:
    """Where a fault lies, as far as it is known."""

    #: Path of the file that is at fault.
    file: Optional[str] = None
    #: Name of the tensor.
    tensor: Optional[str] = None
    #: A configuration key, an option or an argument.
    field: Optional[str] = None
    #: A byte offset in ``file``, or an index in the array argument ``field``.
    position: Optional[int] = None

    @classmethod
    def from_json(cls, text: str) -> ErrorDetail:
        try:
            known: Dict[str, Any] = json.loads(text) if text else {}
        except ValueError:
            return cls()
        return cls(known.get("file"), known.get("tensor"), known.get("field"), known.get("position"))


class MlxgenError(Exception):
    """A call failed. Subclasses tell the codes apart; ``detail`` tells where the fault lies."""

    #: The status code of this class; an instance may carry another one that has no class.
    code: ClassVar[int] = _abi.INTERNAL

    def __init__(
        self, message: str, detail: ErrorDetail = ErrorDetail(), status: Optional[int] = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.status = type(self).code if status is None else status

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (self.message, self.detail, self.status)


class StreamTimeoutError(MlxgenError, TimeoutError):
    """The time given is over; the same call may be made again."""

    code = _abi.TIMEOUT


class CancelledError(MlxgenError):
    """A load or an append was cancelled."""

    code = _abi.CANCELLED


class InvalidArgumentError(MlxgenError, ValueError):
    """An argument has no meaning; ``detail.field`` names it."""

    code = _abi.INVALID_ARGUMENT


class NotFoundError(MlxgenError):
    """A file does not exist, or the model lacks what was asked for."""

    code = _abi.NOT_FOUND


class InvalidModelError(MlxgenError):
    """A model's file is damaged or contradicts itself."""

    code = _abi.INVALID_MODEL


class UnsupportedError(MlxgenError):
    """The library cannot do that with this model, file or machine."""

    code = _abi.UNSUPPORTED


class OutOfMemoryError(MlxgenError, MemoryError):
    """The work does not fit into the engine's limit or the machine's memory. It was not begun."""

    code = _abi.OUT_OF_MEMORY


class ContextFullError(MlxgenError):
    """More tokens than the model's context or the cache's capacity."""

    code = _abi.CONTEXT_FULL


class BusyError(MlxgenError):
    """The object is in another call, or lent to an open stream."""

    code = _abi.BUSY


class WrongStateError(MlxgenError):
    """The object cannot do that now: it is closed, suspended, or in a forked child."""

    code = _abi.WRONG_STATE


class IncompatibleCheckpointError(MlxgenError):
    """A checkpoint does not fit the model."""

    code = _abi.INCOMPATIBLE_CHECKPOINT


class IoError(MlxgenError):
    """A file could not be read or written."""

    code = _abi.IO


class GpuTimeoutError(MlxgenError):
    """The GPU stopped work that took too long."""

    code = _abi.GPU_TIMEOUT


class GpuNotPermittedError(MlxgenError):
    """The system does not let this process use the GPU now."""

    code = _abi.GPU_NOT_PERMITTED


class InternalError(MlxgenError):
    """A fault of the library itself."""

    code = _abi.INTERNAL


CLASSES: Dict[int, Type[MlxgenError]] = {
    kind.code: kind
    for kind in (
        StreamTimeoutError,
        CancelledError,
        InvalidArgumentError,
        NotFoundError,
        InvalidModelError,
        UnsupportedError,
        OutOfMemoryError,
        ContextFullError,
        BusyError,
        WrongStateError,
        IncompatibleCheckpointError,
        IoError,
        GpuTimeoutError,
        GpuNotPermittedError,
        InternalError,
    )
}


def error_for(status: int, message: str, detail: ErrorDetail) -> MlxgenError:
    """The exception for a status; a code of a newer library becomes a plain MlxgenError."""
    return CLASSES.get(status, MlxgenError)(message, detail, status)
