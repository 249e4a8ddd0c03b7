"""Where things lie in the repository."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "target"
HEADER = ROOT / "include" / "mlxgen.h"
BINDING = ROOT / "bindings" / "python"
LIBRARY_NAME = "libmlxgen.dylib" if sys.platform == "darwin" else "libmlxgen.so"
REAL_LIBRARY = TARGET / "dist" / "lib" / LIBRARY_NAME
FAKE_LIBRARY = TARGET / "dist-fake" / "lib" / LIBRARY_NAME


def smollm2() -> Path:
    """SmolLM2-135M-Instruct as GGUF, as `make demo` fetches it."""
    chosen = os.environ.get("MLXGEN_SMOLLM2")
    path = Path(chosen) if chosen else TARGET / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: `make demo` fetches it (or set MLXGEN_SMOLLM2)")
    return path
