"""A GGUF file of a model gives the same scores, bit for bit, as the model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
from numpy.typing import NDArray

import mlxgen

from . import gguf_files
from .cases import prompt
from .families import FAMILIES, LONG_PROMPT, SLIDING, WINDOW, longrope
from .reference_process import Reference

#: No wavelength lies between the two limits, so that all factors are exact.
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 2.0,
    "original_max_position_embeddings": 50,
}

#: By name: changes to a family's tiny model, to what the format can say.
CASES: Dict[str, Dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 32},
    "llama-llama3": {"model_type": "llama", "rope_scaling": LLAMA3},
    "llama-linear": {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "qwen2": FAMILIES["qwen2"],
    "qwen2-yarn": FAMILIES["qwen2-yarn"],
    "qwen3": FAMILIES["qwen3"],
    "gemma2": {
        **FAMILIES["gemma2"],
        "query_pre_attn_scalar": 32,
        "sliding_window": WINDOW,
        "final_logit_softcapping": 20.0,
    },
    "gemma3": {
        **FAMILIES["gemma3"],
        "query_pre_attn_scalar": 32,
        "sliding_window_pattern": 6,
        "num_hidden_layers": 7,
    },
    "phi3": {**FAMILIES["phi3"], "sliding_window": WINDOW},
    "phi3-longrope": {
        **FAMILIES["phi3-longrope"],
        "rope_scaling": {**longrope(4), "short_factor": [1.0, 1.25, 1.5, 2.5]},
    },
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 5},
    "olmo2": FAMILIES["olmo2"],
    "olmo3": {**FAMILIES["olmo3"], "layer_types": SLIDING},
    "granite": FAMILIES["granite"],
    "cohere2": {**FAMILIES["cohere2"], "sliding_window_pattern": 4, "num_hidden_layers": 5},
    "glm4": FAMILIES["glm4"],
    "exaone4": {**FAMILIES["exaone4"], "rope_scaling": LLAMA3},
    "seed_oss": FAMILIES["seed_oss"],
    "ernie4_5": FAMILIES["ernie4_5"],
    "nemotron": FAMILIES["nemotron"],
    "minicpm": {**FAMILIES["minicpm"], "scale_depth": 1.1},
    "starcoder2": {**FAMILIES["starcoder2"], "hidden_act": "gelu_pytorch_tanh"},
    "stablelm": FAMILIES["stablelm"],
    "stablelm-parallel": FAMILIES["stablelm-parallel"],
}
#: Another base of the rotation than the format takes where a file says nothing.
THETA = 5000.0
EMBEDDING = {"gemma2": 0.05}
#: What prompts and single steps read; the first is longer than windows and chunks.
LENGTHS = (100, 1)
CHUNK = 24


@pytest.fixture(scope="module")
def folder(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a case; made at the first use."""
    base = tmp_path_factory.mktemp("gguf")

    def get(name: str) -> Path:
        path = base / name
        if not path.exists():
            case = {
                "name": name,
                "dtype": "float32",
                "config": {"rope_theta": THETA, **CASES[name]},
                "embedding": EMBEDDING.get(name, 0.5),
            }
            reference.ask("make_tiny", folder=path, case=case, prompts=[prompt(LONG_PROMPT)])
        return path

    return get


def scores(engine: mlxgen.Engine, path: Path) -> List[NDArray[np.float32]]:
    """After a prompt, and after each of some tokens."""
    found = []
    exact = {"numerics": mlxgen.Numerics.EXACT, "prefill_chunk": CHUNK, "context_limit": 0}
    with engine.load_model(path, **exact) as model, model.new_cache() as cache:
        for length in LENGTHS:
            cache.append(prompt(length))
            found.append(cache.logits_numpy())
    return found


def same(first: List[NDArray[np.float32]], second: List[NDArray[np.float32]]) -> bool:
    return [row.tobytes() for row in first] == [row.tobytes() for row in second]


@pytest.mark.parametrize("name", CASES)
def test_a_gguf_file_gives_the_bits_of_the_folder(
    engine: mlxgen.Engine, folder: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """Also that no key and no change of the tensors can be left out."""
    source = folder(name)
    config = json.loads((source / "config.json").read_text())
    wanted = scores(engine, source)
    path = tmp_path / "model.gguf"
    gguf_files.write(source, path)
    got = scores(engine, path)
    apart = [float(np.abs(one - other).max()) for one, other in zip(wanted, got)]
    assert same(wanted, got), f"scores differ by {apart}"

    family = config["model_type"]
    architecture = gguf_files.ARCHITECTURES.get(family, family)
    changes = set(gguf_files.keys(config)) - gguf_files.silent(config)
    changes |= {"interleaving"} if architecture in gguf_files.INTERLEAVED else set()
    changes |= {"one more"} if architecture in gguf_files.ONE_MORE else set()
    unnoticed = []
    for change in sorted(changes):
        gguf_files.write(source, path, change)
        try:
            if same(wanted, scores(engine, path)):
                unnoticed.append(change)
        except mlxgen.MlxgenError:
            pass
    assert not unnoticed
