"""SmolLM2 in the form that mlx-lm loads, made once from the GGUF file and kept in `target/`."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .paths import ROOT, TARGET, smollm2

#: Raise when the conversion changes.
REVISION = 2


def smollm2_folder(kind: str) -> Path:
    """`quantized` (the GGUF's own packed weights, float32 scales), `half` (its own scales),
    `float32` or `bfloat16` (dequantised)."""
    folder = TARGET / "reference" / f"smollm2-{kind}-{REVISION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    # One process makes it while the others wait, so whatever else lies there is of an older revision or an ended run.
    with (folder.parent / f"smollm2-{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            for old in folder.parent.glob(f"smollm2-{kind}-*"):
                shutil.rmtree(old)
            partial = folder.with_name(f"{folder.name}.partial")
            write_smollm2(kind, partial)
            partial.rename(folder)
    return folder


def write_smollm2(kind: str, folder: Path) -> None:
    """Makes the folder, in a process of its own, because this one must not load mlx."""
    done = subprocess.run(
        [sys.executable, "-m", "parity.reference.smollm2", smollm2(), folder, kind],
        cwd=ROOT / "tests",
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "MLX_DISABLE_COMPILE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        raise RuntimeError(f"cannot make {folder} (code {done.returncode}):\n{done.stdout}")
