"""docs/models.md lists what the comparisons compare, and every model type that the library takes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import List

import pytest

import mlxgen

from support.paths import ROOT

from .families import DTYPES
from .models_table import SCHEMES, SCHEME_TESTS, Outcomes, rows, text

TABLE = ROOT / "docs" / "models.md"
#: mlx-lm reads these as llamas, and multimodal files hold text models of the listed types.
ALIKE = {"iquestcoder", "xverse", "stablelm_epoch", "gemma3", "mistral3"}


def test_the_table_is_that_of_the_comparisons() -> None:
    everything = {name: {*types, "fast", *SCHEME_TESTS} for name, types in DTYPES.items()}
    assert TABLE.read_text() == text(everything), "run `make models-table`"


def test_a_row_names_what_passed_alone() -> None:
    """A scheme goes with any comparison that failed or did not run, a row with any of the family itself."""
    everything = [("test_families.py", "t", dtype) for dtype in DTYPES["qwen3"]]
    everything += [("test_families_fast.py", "t", "")]
    everything += [("test_family_schemes.py", test, "") for test in sorted(SCHEME_TESTS)]

    def row(left_out: int, passed: bool) -> List[str]:
        outcomes = Outcomes()
        for place, (file, test, dtype) in enumerate(everything):
            if place != left_out:
                outcomes.add(file, test, {"name": "qwen3", "dtype": dtype}, True)
            elif not passed:
                outcomes.add(file, test, {"name": "qwen3", "dtype": dtype}, False)
        return rows(outcomes.passed())

    (whole,) = row(-1, True)
    assert whole.endswith("| affine, TurboQuant, window, pages |")
    for place, (_, test, _) in enumerate(everything):
        named = [scheme for scheme, tests in SCHEMES.items() if test not in tests]
        for passed in (True, False):
            if test in SCHEME_TESTS:
                assert row(place, passed)[0].endswith(f"| {', '.join(named) or '–'} |")
            else:
                assert row(place, passed) == []


def test_the_scheme_tests_are_there() -> None:
    defined = set()
    for name in ("test_family_schemes.py", "test_family_schemes_fast.py"):
        defined |= set(re.findall(r"^def (test_\w+)", (ROOT / "tests" / "parity" / name).read_text(), re.M))
    assert SCHEME_TESTS <= defined


def test_no_model_type_is_taken_without_a_row(engine: mlxgen.Engine, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no such type"}))
    with pytest.raises(mlxgen.UnsupportedError) as raised:
        engine.load_model(tmp_path)
    assert raised.value.detail.field == "model_type"
    known = set(re.search(r"known are ([\w, ]+), which", str(raised.value))[1].split(", "))
    listed = set(re.findall(r"^\| `(\w+)`", TABLE.read_text(), re.M)) - {"model_type"}
    assert known - ALIKE == listed
