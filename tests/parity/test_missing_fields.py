"""What a configuration leaves out is what mlx-lm takes then, and `null` is the same as leaving it out.

mlx-lm takes an explicit `null` literally where it has no rule for it: `tie_word_embeddings: null` is false there, even
where a missing one is true. Files of transformers write `null` for what was not chosen, so here both mean the family's
default. Where mlx-lm refuses a file that leaves a field out, the default is that of the model's published code.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import pytest

import mlxgen

from .cases import prompt
from .families import FAMILIES
from .reference_process import Reference

Folder = Callable[[str, str], Path]
TOKENS = prompt(40)
#: What published code takes where mlx-lm has no default.
PUBLISHED_TIES = {"qwen3": False, "exaone4": False, "ernie4_5": True, "helium": False}


class Variants:
    """One model under changed configurations, each in a folder of its own: the reference keeps models by their path."""

    def __init__(self, source: Path, base: Path) -> None:
        self._source, self._base, self._count = source, base, 0
        self._config: Dict[str, Any] = json.loads((source / "config.json").read_text())

    def _write(self, config: Dict[str, Any]) -> Path:
        self._count += 1
        folder: Path = shutil.copytree(self._source, self._base / str(self._count))
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def of(self, **changes: Any) -> Path:
        return self._write({**self._config, **changes})

    def without(self, name: str) -> Path:
        return self._write({key: value for key, value in self._config.items() if key != name})


def ours(engine: mlxgen.Engine, path: Path) -> Tuple[Optional[bytes], str]:
    """Scores, or the code and the field of the refusal."""
    try:
        with engine.load_model(path, numerics=mlxgen.Numerics.EXACT) as model, model.new_cache() as cache:
            cache.append(TOKENS)
            return cache.logits_numpy().tobytes(), ""
    except mlxgen.MlxgenError as error:
        return None, f"{type(error).__name__} {error.detail.field} {error.detail.tensor}"


def theirs(reference: Reference, path: Path, out: Path) -> Optional[bytes]:
    """None where mlx-lm cannot load it."""
    try:
        reference.ask("run", folder=path, prompt=TOKENS, chunk=2048, count=1, out=out)
    except RuntimeError:
        return None
    scores: bytes = np.load(out)[0].tobytes()
    return scores


@pytest.mark.parametrize("name", FAMILIES)
def test_missing_is_mlx_lms_default_and_null_the_same(
    engine: mlxgen.Engine, reference: Reference, family_folder: Folder, tmp_path: Path, name: str
) -> None:
    variants = Variants(family_folder(name, "float32"), tmp_path)
    out = tmp_path / "scores.npy"
    fields: List[str] = reference.ask("fields", folder=variants.of())
    assert "hidden_size" in fields
    compared = []
    for field in sorted({*fields, "tie_word_embeddings", "bos_token_id", "eos_token_id"} - {"model_type"}):
        path = variants.without(field)
        found = ours(engine, path)
        expected = theirs(reference, path, out)
        if expected is not None:
            compared.append(field)
            assert found[0] == expected, f"{field}: {found[1] or 'other scores'}"
        assert ours(engine, variants.of(**{field: None})) == found, field
    print(f"\n{name}: {len(compared)} of {len(fields)} fields may be missing in mlx-lm: {', '.join(compared)}")
    assert len(compared) >= 2


@pytest.mark.parametrize("name", PUBLISHED_TIES)
def test_ties_that_mlx_lm_wants_to_be_told(
    engine: mlxgen.Engine, reference: Reference, family_folder: Folder, tmp_path: Path, name: str
) -> None:
    variants = Variants(family_folder(name, "float32"), tmp_path)
    field = "tie_word_embeddings"
    path = variants.without(field)
    found = ours(engine, path)
    assert theirs(reference, path, tmp_path / "scores.npy") is None
    told = ours(engine, variants.of(**{field: PUBLISHED_TIES[name]}))
    assert found == told and told[0] is not None
    assert ours(engine, variants.of(**{field: not PUBLISHED_TIES[name]})) != told
