"""Python callables behind C callbacks.

One C function per kind lives as long as the process and finds the Python callable by a number
that travels as the `user` pointer. So no C function pointer can outlive its code, whichever
thread the library calls from and whenever it lets go.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from typing import Any, Callable, Dict, Optional

from . import _abi

_numbers = itertools.count(1)
_callables: Dict[int, Callable[..., None]] = {}
_lock = threading.Lock()


def register(function: Callable[..., None]) -> int:
    """A number for `function`; it stays known until :func:`forget`."""
    with _lock:
        number = next(_numbers)
        _callables[number] = function
    return number


def forget(number: Optional[int]) -> None:
    with _lock:
        _callables.pop(number or 0, None)


def _run(number: Optional[int], *arguments: Any) -> None:
    function = _callables.get(number or 0)
    if function is None:
        return
    # ctypes reports an exception through sys.unraisablehook; it never reaches the library.
    function(*arguments)


def _log(user: Optional[int], level: int, message: Optional[int], size: int) -> None:
    text = ctypes.string_at(message, size).decode("utf-8", "replace") if message else ""
    _run(user, level, text)


#: Pass these with a registered number as `user`.
log = _abi.LogCallback(_log)
wakeup = _abi.WakeupCallback(_run)
progress = _abi.ProgressCallback(_run)
drop = _abi.DropCallback(forget)
