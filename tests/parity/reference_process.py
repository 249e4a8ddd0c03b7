"""Talks to the reference: mlx-lm in its own process, with the same BLAS and as many threads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Optional

from support.paths import REAL_LIBRARY, ROOT

#: Threads of the BLAS on both sides. Products change with them in the last bits.
THREADS = min(os.cpu_count() or 1, 2)


def kernels() -> Optional[str]:
    """Which of its kernels our OpenBLAS uses. An OpenBLAS that is older than the processor takes
    antique ones; the library then chooses better, and the reference has to follow: other kernels
    give other last bits."""
    os.environ.setdefault("MLXGEN_LIBRARY", str(REAL_LIBRARY))
    import mlxgen

    found = re.search(r"OpenBLAS (\w+)", mlxgen.build_info().backend)
    return found[1] if found else None


def environment(same_blas: bool = True, threads: int = THREADS) -> Dict[str, str]:
    """The environment of a process that runs mlx-lm. `same_blas` puts OpenBLAS before the
    reference BLAS that the wheel brings; our library links OpenBLAS itself."""
    variables = dict(os.environ)
    variables["MLX_DISABLE_COMPILE"] = "1"
    variables["HF_HUB_OFFLINE"] = "1"
    variables["TOKENIZERS_PARALLELISM"] = "false"
    variables["OPENBLAS_NUM_THREADS"] = str(threads)
    variables["PYTHONPATH"] = str(ROOT / "tests")
    if same_blas and sys.platform == "linux":
        variables["LD_PRELOAD"] = "libopenblas.so.0"
        if core := kernels():
            variables["OPENBLAS_CORETYPE"] = core
    return variables


class Reference:
    """One reference process. Each method of the server is a method here, with keywords."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "parity.reference.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=ROOT / "tests",
        )
        self.mlx_version: str = self._read()["mlx"]

    def _read(self) -> Dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the reference ended with code {self._process.wait()}")
        answer: Dict[str, Any] = json.loads(line)
        return answer

    def ask(self, op: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        request = {"op": op, **arguments}
        plain = {k: str(v) if isinstance(v, Path) else v for k, v in request.items()}
        self._process.stdin.write(json.dumps(plain) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(f"reference: {answer['error']}")
        return answer["result"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        if self._process.stdout is not None:
            self._process.stdout.close()
