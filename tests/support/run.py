"""Runs pieces of Python in a process of their own, with the library of this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Dict

import mlxgen

from .paths import BINDING, ROOT


def python(code: str, *arguments: object, timeout: float = 60) -> "subprocess.CompletedProcess[str]":
    """Runs the code, whatever becomes of it."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=variables(),
    )


def variables(**more: str) -> Dict[str, str]:
    """The environment of a process that uses the binding and the library of this one."""
    return {
        **os.environ,
        "MLXGEN_LIBRARY": str(mlxgen.find_library()),
        "PYTHONPATH": os.pathsep.join([str(BINDING), str(ROOT / "tests")]),
        **more,
    }


def run_python(code: str, *arguments: object, timeout: float = 280, **environment: str) -> Any:
    """Runs the code; what it prints last, as JSON, is the result. It must end with 0 and leave
    standard error empty."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=variables(**environment),
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{done.returncode}: {done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1])
