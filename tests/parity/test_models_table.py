"""docs/models.md lists what the comparisons compare, and every model type that the library takes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import mlxgen

from support.paths import ROOT

from .families import DTYPES
from .models_table import text

TABLE = ROOT / "docs" / "models.md"
#: mlx-lm reads these as llamas, and multimodal files hold text models of the listed types.
ALIKE = {"iquestcoder", "xverse", "stablelm_epoch", "gemma3", "mistral3"}


def test_the_table_is_that_of_the_comparisons() -> None:
    everything = {name: {*types, "fast"} for name, types in DTYPES.items()}
    assert TABLE.read_text() == text(everything), "run `make models-table`"


def test_no_model_type_is_taken_without_a_row(engine: mlxgen.Engine, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no such type"}))
    with pytest.raises(mlxgen.UnsupportedError) as raised:
        engine.load_model(tmp_path)
    assert raised.value.detail.field == "model_type"
    known = set(re.search(r"known are ([\w, ]+), which", str(raised.value))[1].split(", "))
    listed = set(re.findall(r"^\| `(\w+)`", TABLE.read_text(), re.M)) - {"model_type"}
    assert known - ALIKE == listed
