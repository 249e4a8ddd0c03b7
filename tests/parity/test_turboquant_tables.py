"""The committed tables of TurboQuant are those that their script makes with the reference's MLX."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Dict, List

from support.paths import ROOT

SCRIPT = ROOT / "scripts" / "turboquant_tables.py"
COMMITTED = ROOT / "src" / "mlx" / "turboquant" / "tables.rs"


def number(text: str) -> float:
    text = text.strip()
    return int(text, 16) if text.startswith("0x") else float(text)


def tables(text: str) -> Dict[str, List[float]]:
    """The constants of a Rust file by name."""
    found = re.findall(r"pub const (\w+): \[\w+; (\d+)\] = \[([^\]]*)\];", text)
    made = {name: [number(item) for item in body.split(",") if item.strip()] for name, _, body in found}
    assert all(len(made[name]) == int(count) for name, count, _ in found)
    return made


def test_the_script_makes_the_committed_tables() -> None:
    # In a process of its own: this one may have the library's MLX.
    made = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True).stdout
    committed = COMMITTED.read_text()
    fresh, kept = tables(made), tables(committed)
    assert list(fresh) == list(kept)
    assert len(kept) == 9
    for name, numbers in kept.items():
        assert len(numbers) == len(fresh[name])
        if name.startswith("NEGATIVE"):
            assert numbers == fresh[name], name
        for found, expected in zip(numbers, fresh[name]):
            assert abs(found - expected) <= 1e-6, name
    # All but the numbers is as the script writes it, so that a new run changes nothing else.
    literal = re.compile(r"-?\d+\.\d+|0x[0-9a-f]+")
    assert literal.sub("", made).split() == literal.sub("", committed).split()
