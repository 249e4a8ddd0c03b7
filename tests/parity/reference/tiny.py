"""Tiny random llamas, made and saved by mlx-lm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import _get_classes, quantize_model, save_config, save_model

from support.tiny_tokenizer import BOS, EOS, VOCABULARY, write_tokenizer

from .oracle import greedy

MINIMUM_DISTINCT = 20

BASE: Dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}


def weights(model: Any, gain: float, key: mx.array, embedding: float = 0.5) -> List[Any]:
    """Random weights whose blocks speak `gain` times louder than a usual initialisation.

    An unscaled random model repeats one token, which hides faults.
    """
    made = []
    for name, old in tree_flatten(model.parameters()):
        key, draw = mx.random.split(key)
        normal = mx.random.normal(old.shape, key=draw)
        if name.endswith("norm.weight") or ".norms." in name:
            value = 1.0 + 0.1 * normal
        elif name.endswith("bias"):
            value = 0.3 * normal
        elif "embed_tokens" in name:
            value = embedding * normal
        else:
            value = normal * (gain / old.shape[-1] ** 0.5)
        made.append((name, value))
    return made


def make(folder: Path, case: Dict[str, Any], prompts: List[List[int]]) -> Dict[str, Any]:
    """Makes the model of `case` in `folder`; searches a gain under which greedy output varies.

    `case` has `config` (changes to BASE; null takes a field away), `dtype`, optionally `quantize` (group_size, bits,
    perhaps mode, and `layers`: other parameters by module path), `shards`, and `embedding`, the size of embeddings.
    """
    config = {**BASE, **case.get("config", {})}
    config = {name: value for name, value in config.items() if value is not None}
    dtype = getattr(mx, case["dtype"])
    tried = []
    for seed, gain in enumerate((2.0, 3.0, 4.0, 6.0, 2.5, 3.5, 5.0, 8.0)):
        model_class, arguments = _get_classes(config)
        model = model_class(arguments.from_dict(config))
        key = mx.random.key(1000 + seed)
        model.update(tree_unflatten(weights(model, gain, key, case.get("embedding", 0.5))))
        model.set_dtype(dtype)
        saved = dict(config, torch_dtype=case["dtype"])
        if quantize := case.get("quantize"):
            layers = quantize.get("layers", {})
            model, saved = quantize_model(
                model,
                saved,
                quantize["group_size"],
                quantize["bits"],
                mode=quantize.get("mode", "affine"),
                quant_predicate=lambda path, _: layers.get(path, True),
            )
        mx.eval(model.parameters())
        distinct = min(len(set(greedy(model, prompt, 2048, 64))) for prompt in prompts)
        if distinct >= MINIMUM_DISTINCT:
            break
        tried.append((gain, distinct))
    else:
        raise AssertionError(f"{case['name']}: greedy output never varies enough: {tried}")
    folder.mkdir(parents=True)
    save_model(folder, model, donate_model=False)
    save_config(saved, config_path=folder / "config.json")
    if count := case.get("shards"):
        _split(folder, count)
    write_tokenizer(folder)
    return {"gain": gain, "distinct": distinct}


def write_float32(model: Any, folder: Path, out: Path) -> None:
    """The weights of `model`, quantised or not, as a float32 model beside `folder`'s configuration."""
    packed = {name: module for name, module in model.named_modules() if hasattr(module, "bits")}
    weights = {}
    for name, value in tree_flatten(model.parameters()):
        path, part = name.rsplit(".", 1)
        if path not in packed or part == "bias":
            weights[name] = value.astype(mx.float32)
        elif part == "weight":
            module = packed[path]
            scales, biases = module.scales, getattr(module, "biases", None)
            if biases is not None:
                scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
            weights[name] = mx.dequantize(
                value,
                scales,
                biases,
                module.group_size,
                module.bits,
                mode=module.mode,
                dtype=mx.float32,
            )
    config = json.loads((folder / "config.json").read_text())
    for section in ("quantization", "quantization_config"):
        config.pop(section, None)
    out.mkdir(parents=True)
    mx.save_safetensors(str(out / "model.safetensors"), weights, metadata={"format": "mlx"})
    save_config(config, config_path=out / "config.json")


def _split(folder: Path, count: int) -> None:
    """Spreads the one weight file over `count` shards with an index."""
    single = folder / "model.safetensors"
    tensors = dict(mx.load(str(single)))
    mx.eval(tensors)
    single.unlink()
    names = sorted(tensors)
    where = {}
    for shard in range(count):
        file = f"model-{shard + 1:05}-of-{count:05}.safetensors"
        mine = {name: tensors[name] for name in names[shard::count]}
        mx.save_safetensors(str(folder / file), mine, metadata={"format": "mlx"})
        where.update({name: file for name in mine})
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
