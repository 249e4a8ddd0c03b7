"""These tests need no numerics: the fake library does."""

from __future__ import annotations

import os

from support.paths import FAKE_LIBRARY

os.environ.setdefault("MLXGEN_LIBRARY", str(FAKE_LIBRARY))
