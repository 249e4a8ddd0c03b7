"""What every object shares: one reference to a handle, and the way calls report failure."""

from __future__ import annotations

import ctypes
from array import array
from ctypes import byref, c_size_t, c_uint32, c_void_p
from typing import Any, Callable, Iterable, List, Optional, Tuple, Type, TypeVar, Union

from . import _abi
from ._library import library
from .errors import ErrorDetail, InvalidArgumentError, WrongStateError, error_for

Self = TypeVar("Self", bound="Handle")

#: Token ids: any iterable of integers, or a buffer of 32-bit unsigned integers.
Tokens = Union[Iterable[int], "array[int]", memoryview]


def take_error(status: int, error: c_void_p) -> Exception:
    """The exception for a failed call; releases the error object."""
    lib = library()
    size = c_size_t()
    pointer = lib.error_message(error, byref(size))
    message = ctypes.string_at(pointer, size.value).decode("utf-8", "replace") if pointer else ""
    pointer = lib.error_detail(error, byref(size))
    detail = ctypes.string_at(pointer, size.value).decode("utf-8", "replace") if pointer else ""
    lib.error_release(error)
    if not message:
        message = lib.status_name(status).decode()
    return error_for(status, message, ErrorDetail.from_json(detail))


def call(function: Callable[..., int], *arguments: Any) -> None:
    """Calls a function whose last parameter is the error; raises what it reports."""
    error = c_void_p()
    status = function(*arguments, byref(error))
    if status != _abi.OK:
        raise take_error(status, error)


def take_bytes(buffer: c_void_p) -> bytes:
    """The content of a buffer; releases the buffer."""
    lib = library()
    try:
        return ctypes.string_at(lib.buffer_data(buffer), lib.buffer_size(buffer))
    finally:
        lib.buffer_release(buffer)


def take_text(buffer: c_void_p) -> str:
    return take_bytes(buffer).decode("utf-8")


def take_tokens(buffer: c_void_p) -> List[int]:
    tokens = array("I")
    tokens.frombytes(take_bytes(buffer))
    return tokens.tolist()


def token_array(tokens: Tokens, field: str = "tokens") -> Tuple[Any, int]:
    """A C array of token ids and its length.

    Raises:
        InvalidArgumentError: an id is not an integer from 0 to 2**32 - 1; ``detail.position``
            is its index.
    """
    if isinstance(tokens, (str, bytes)):
        raise TypeError("tokens are integers; tokenize a text first")
    view = tokens if isinstance(tokens, memoryview) else None
    if view is None and isinstance(tokens, array):
        view = memoryview(tokens)
    if view is not None and view.format == "I" and view.contiguous and view.ndim == 1:
        return (c_uint32 * len(view)).from_buffer_copy(view), len(view)
    values = list(tokens)
    try:
        return (c_uint32 * len(values)).from_buffer(array("I", values)), len(values)
    except OverflowError:
        position = next(i for i, token in enumerate(values) if not 0 <= token < 2**32)
        raise InvalidArgumentError(
            f"{field}[{position}] is {values[position]}, which is not a token id",
            ErrorDetail(field=field, position=position),
        ) from None


def whole(field: str, value: int, bits: int) -> int:
    """A number for a C field of so many bits, into which ctypes would squeeze any.

    Raises:
        InvalidArgumentError: it does not fit.
    """
    if not 0 <= value < 1 << bits:
        raise InvalidArgumentError(
            f"{field} must be from 0 to {(1 << bits) - 1}, not {value}", ErrorDetail(field=field)
        )
    return value


def seconds_to_ms(seconds: float, field: str = "timeout") -> int:
    """Milliseconds for the C ABI, rounded up so that a short wait is not none at all."""
    if not seconds >= 0:
        raise InvalidArgumentError(f"{field} must be at least 0", ErrorDetail(field=field))
    return min(int(-(-seconds * 1000 // 1)), _abi.WAIT_FOREVER - 1) if seconds < 1e9 else _abi.WAIT_FOREVER - 1


class Handle:
    """An object of the library. Closing it gives its reference back; any order is right.

    Use it as a context manager, call :meth:`close`, or let it go out of scope.
    """

    #: Name of the object in the C ABI, such as ``engine``.
    KIND = ""

    def __init__(self, pointer: Optional[int]) -> None:
        # The reference sits in a list because `list.pop` hands it to exactly one of several
        # threads that close at once.
        self._reference: List[int] = [] if pointer is None else [pointer]
        # Kept on the object: at interpreter exit this module may be gone before the object.
        self._release: Callable[[int], None] = getattr(library(), f"{self.KIND}_release")

    @classmethod
    def _adopt(cls: Type[Self], pointer: c_void_p) -> Self:
        """An object for an owned handle that a call has just given out."""
        made = cls.__new__(cls)
        Handle.__init__(made, pointer.value)
        return made

    @property
    def _pointer(self) -> int:
        try:
            return self._reference[0]
        except IndexError:
            raise WrongStateError(f"this {type(self).__name__} is closed") from None

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return not self._reference

    def close(self) -> None:
        """Gives the reference back. Closing twice does nothing."""
        try:
            pointer = self._reference.pop()
        except IndexError:
            return
        self._release(pointer)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # __init__ may have failed before the attributes existed.
        reference = getattr(self, "_reference", None)
        if reference:
            try:
                self._release(reference.pop())
            except IndexError:
                pass

    def __repr__(self) -> str:
        state = "closed" if self.closed else hex(self._pointer)
        return f"<mlxgen.{type(self).__name__} {state}>"

    # A copy would give the same reference back twice.
    def __copy__(self) -> None:
        raise TypeError(f"a {type(self).__name__} cannot be copied")

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled")
