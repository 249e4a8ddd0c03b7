"""What the Rust tests of caches compare with is what mlx-lm does."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.paths import ROOT

from .reference_process import environment

COMMITTED = ROOT / "tests" / "data" / "cache_oracle.json"


def test_the_recorded_sequences_are_those_of_the_reference(tmp_path: Path) -> None:
    made = tmp_path / "cache_oracle.json"
    script = ROOT / "scripts" / "cache_oracle.py"
    subprocess.run([sys.executable, script, made], check=True, env=environment(), timeout=200)
    assert steps(made) == steps(COMMITTED)


def steps(file: Path) -> Any:
    """The record, without what depends on the processor where that is another than the record's."""
    oracle = json.loads(file.read_text(encoding="utf-8"))
    if platform.machine() != "x86_64":
        for case in oracle["sequences"]:
            for step in case["steps"]:
                step.pop("attended", None)
    return oracle
