"""Cancel tokens."""

from __future__ import annotations

from ctypes import byref, c_void_p

from ._handle import Handle, call
from ._library import library


class Cancel(Handle):
    """Stops the work it was given to: a load, an append, a generation, several at once.

    Make it before the work starts. May be used from any thread; once requested it stays so.
    """

    KIND = "cancel"

    def __init__(self) -> None:
        super().__init__(None)
        made = c_void_p()
        call(library().cancel_new, byref(made))
        super().__init__(made.value)

    def request(self) -> None:
        """Asks for cancellation. Never waits. Does nothing once closed."""
        if not self.closed:
            library().cancel_request(self._pointer)

    @property
    def requested(self) -> bool:
        """Whether cancellation was asked for."""
        return bool(library().cancel_is_requested(self._pointer))
