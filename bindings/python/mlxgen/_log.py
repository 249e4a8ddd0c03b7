"""The library's log. It is silent unless asked."""

from __future__ import annotations

import atexit
import enum
import logging
from typing import Callable, Optional

from . import _abi, _callbacks
from ._handle import call
from ._library import library


class LogLevel(enum.IntEnum):
    """How much a log line matters."""

    ERROR = _abi.LOG_ERROR
    WARNING = _abi.LOG_WARNING
    INFO = _abi.LOG_INFO
    DEBUG = _abi.LOG_DEBUG
    TRACE = _abi.LOG_TRACE


LogFunction = Callable[[LogLevel, str], None]

_LOGGING = {
    LogLevel.ERROR: logging.ERROR,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.INFO: logging.INFO,
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.TRACE: 5,
}


def set_log_sink(sink: Optional[LogFunction], level: LogLevel = LogLevel.INFO) -> None:
    """Sends the library's log lines to ``sink``; ``None`` silences it again.

    Args:
        sink: called on the thread that logs. It may not call the library.
        level: the most detailed level to report.
    """
    lib = library()
    if sink is None:
        call(lib.set_log_sink, _abi.LogCallback(), None, _abi.DropCallback(), _abi.LOG_OFF)
        return
    target = sink
    number = _callbacks.register(lambda raw, text: target(LogLevel(raw), text))
    try:
        call(lib.set_log_sink, _callbacks.log, number, _callbacks.drop, level)
    except BaseException:
        _callbacks.forget(number)
        raise
    atexit.unregister(_silence)
    atexit.register(_silence)


def log_to(logger: logging.Logger, level: LogLevel = LogLevel.INFO) -> None:
    """Sends the library's log lines to a logger of the standard ``logging`` module."""
    set_log_sink(lambda raw, text: logger.log(_LOGGING[raw], "%s", text), level)


def _silence() -> None:
    try:
        set_log_sink(None)
    except Exception:  # after a shutdown nothing logs anyway
        pass
