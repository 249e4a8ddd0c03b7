"""B152: widths that are no multiple of any tile, every bit width, prompts of 1, 2 and 720."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import pytest

import mlxgen

from .cases import prompt
from .compare import compare_scores, compare_tokens, expect
from .reference_process import Reference

ODD = {
    "hidden_size": 96,
    "intermediate_size": 544,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 40,
    "vocab_size": 290,
}
CASES: List[Dict[str, Any]] = [
    {"name": "float32", "dtype": "float32", "config": ODD},
    {"name": "bfloat16-biases", "dtype": "bfloat16", "config": {**ODD, "attention_bias": True}},
    *(
        {
            "name": f"{bits}-bit-group-{group}",
            "dtype": "bfloat16" if bits == 3 else "float32",
            "config": {**ODD, "tie_word_embeddings": bits % 2 == 0, "head_dim": 64},
            "quantize": {"group_size": group, "bits": bits},
        }
        for bits, group in ((2, 32), (3, 32), (4, 32), (5, 32), (6, 32), (8, 32))
    ),
    {
        "name": "4-bit-group-64-partly",
        "dtype": "float32",
        # 96 and 544 are no multiples of 64: those layers stay as they are.
        "config": {**ODD, "num_attention_heads": 4, "head_dim": 32},
        "quantize": {"group_size": 64, "bits": 4},
    },
]
SIZES = (1, 2, 720)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_b152_odd_shapes(
    engine: mlxgen.Engine, reference: Reference, tmp_path: Path, case: Dict[str, Any]
) -> None:
    folder = tmp_path / "model"
    reference.ask("make_tiny", folder=folder, case=case, prompts=[prompt(7)])
    with engine.load_model(folder, numerics=mlxgen.Numerics.EXACT) as model:
        for size in SIZES:
            expected = expect(
                reference, folder, prompt(size), 2048, 12, tmp_path / "scores.npy"
            )
            compare_scores(model, expected)
            compare_tokens(model, expected)
