"""SmolLM2 in the form that mlx-lm loads, made once from the GGUF file and kept in `target/`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .paths import ROOT, TARGET, smollm2

#: Raise when the conversion changes.
REVISION = 1


def smollm2_folder(kind: str) -> Path:
    """`quantized` (the GGUF's own packed weights, float32 scales), `half` (its own scales),
    `float32` or `bfloat16` (dequantised).

    Made in a process of its own, because this one must not load mlx.
    """
    assert kind in ("quantized", "half", "float32", "bfloat16")
    folder = TARGET / "reference" / f"smollm2-{kind}-{REVISION}"
    if folder.is_dir():
        return folder
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            [sys.executable, "-m", "parity.reference.smollm2", smollm2(), partial, kind],
            check=True,
            cwd=ROOT / "tests",
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "MLX_DISABLE_COMPILE": "1"},
        )
        try:
            partial.rename(folder)
        except OSError:  # another run was faster
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
