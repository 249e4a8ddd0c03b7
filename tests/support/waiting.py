"""Waiting for what another thread does soon."""

from __future__ import annotations

import time
from typing import Callable


def comes_true(condition: Callable[[], bool], timeout: float = 5) -> bool:
    """Whether it does within the time. A release, for one, does not wait for the thread that frees."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
