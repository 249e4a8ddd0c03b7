"""What the Rust tests of caches compare with is what mlx-lm does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

from .reference_process import environment

COMMITTED = ROOT / "tests" / "data" / "cache_oracle.json"


def test_the_recorded_sequences_are_those_of_the_reference(tmp_path: Path) -> None:
    made = tmp_path / "cache_oracle.json"
    script = ROOT / "scripts" / "cache_oracle.py"
    subprocess.run([sys.executable, script, made], check=True, env=environment(), timeout=200)
    assert made.read_bytes() == COMMITTED.read_bytes()
