"""mlx-lm's answers: greedy tokens, scores of each step, sampled tokens, surviving sets."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from . import caches

STEP_CONSTANT = 0x9E3779B97F4A7C15


#: What chooses the cache: `window` with `keep`, for layers without one of their own, or `layer_windows`, one or null
#: for each layer, or options of `generate_step`: kv_bits, kv_group_size, quantized_kv_start. With these, `caches` may
#: be `reducible` or `quantized_from_the_first`: see `caches`.
Scheme = Dict[str, Any]

#: Of those, what `generate_step` takes.
STEP_OPTIONS = ("kv_bits", "kv_group_size", "quantized_kv_start")


def new_cache(model: Any, scheme: Optional[Scheme]) -> Any:
    """An empty cache. A llama ignores max_kv_size, because it makes its caches itself; here it gets
    those that `make_prompt_cache` makes for other models, there with `keep` 4."""
    if scheme and "layer_windows" in scheme:
        see_own_windows(model)
        windows = scheme["layer_windows"]
        return [RotatingKVCache(window) if window else KVCache() for window in windows]
    if scheme and "window" in scheme:
        return [
            cache if isinstance(cache, RotatingKVCache) else RotatingKVCache(scheme["window"], keep=scheme["keep"])
            for cache in make_prompt_cache(model)
        ]
    kind = scheme.get("caches") if scheme else None
    if kind == "reducible":
        return caches.reducible(model)
    if scheme and kind == "quantized_from_the_first":
        return caches.quantized_from_the_first(model, scheme["kv_group_size"], scheme["kv_bits"])
    return make_prompt_cache(model)


def see_own_windows(model: Any) -> None:
    """Has each layer of a model take the mask of its own cache. Some models of mlx-lm leave out the windows that
    their configuration and the published code have, and make one mask for all layers."""
    attention = type(model.layers[0].self_attn)
    for layer in model.layers:
        layer.self_attn.sees_own_window = True
    if hasattr(attention, "all_alike"):
        return
    attention.all_alike = attention.__call__

    def own(self: Any, x: Any, mask: Any = None, cache: Any = None) -> Any:
        if getattr(self, "sees_own_window", False):
            window = getattr(cache, "max_size", None)
            alike = {"return_array": True} if hasattr(self, "attn_logit_softcapping") else {}
            mask = create_attention_mask(x, cache, window_size=window, **alike)
            mask = None if x.shape[1] == 1 else mask
        return attention.all_alike(self, x, mask, cache)

    attention.__call__ = own


def greedy(
    model: Any,
    prompt: List[int],
    chunk: int,
    count: int,
    scheme: Optional[Scheme] = None,
    cache: Any = None,
) -> List[int]:
    """`count` greedy tokens, by mlx-lm's own generator."""
    steps = generate_step(
        mx.array(prompt),
        model,
        max_tokens=count,
        prefill_step_size=chunk,
        prompt_cache=cache or new_cache(model, scheme),
        **{name: value for name, value in (scheme or {}).items() if name in STEP_OPTIONS},
    )
    return [int(token) for token, _ in steps]


def prefill(model: Any, prompt: List[int], chunk: int) -> Any:
    """A cache that covers all of the prompt but its last token, read as `generate_step` does."""
    cache = make_prompt_cache(model)
    rest = prompt
    while len(rest) > 1:
        count = min(chunk, len(rest) - 1)
        model(mx.array(rest[:count])[None], cache=cache)
        mx.eval([layer.state for layer in cache])
        rest = rest[count:]
        mx.clear_cache()
    return cache


def run(
    model: Any, prompt: List[int], chunk: int, count: int, scheme: Optional[Scheme] = None
) -> Tuple[List[int], np.ndarray]:
    """`count` greedy tokens, by mlx-lm's own generator, and float32 `[count, vocabulary]`: the scores from which each
    was chosen."""
    rows: List[mx.array] = []

    def recorded(tokens: mx.array, **more: Any) -> mx.array:
        found = model(tokens, **more)
        rows.append(found[0, -1].astype(mx.float32))
        return found

    tokens = greedy(recorded, prompt, chunk, count, scheme, new_cache(model, scheme))
    # The generator reads all of the prompt but its last token in chunks, and one step more than it is asked for.
    first = -(-(len(prompt) - 1) // chunk)
    assert len(rows) == first + count + 1
    return tokens, np.stack([np.array(row) for row in rows[first:-1]])


def rounded(model: Any, tokens: List[int], forwards: List[int], form: Dict[str, Any]) -> np.ndarray:
    """float32 `[len(tokens), vocabulary]`: the scores after each of the tokens, read in forwards of so many, over keys
    and values that are rounded as `caches.rounded` says."""
    cache, rows = caches.rounded(model, form), []
    for count in forwards:
        rows.append(model(mx.array([tokens[:count]]), cache=cache)[0].astype(mx.float32))
        mx.eval(rows[-1], [layer.state for layer in cache])
        tokens = tokens[count:]
    assert not tokens, "forwards take all tokens"
    return np.concatenate([np.array(row) for row in rows])


def embedded(
    model: Any, parts: List[Any], chunk: int, count: int
) -> Tuple[List[int], np.ndarray]:
    """Greedy tokens and the scores of their steps behind parts that are ids or rows of embeddings."""
    table = model.model.embed_tokens
    rows = [
        table(mx.array(part))
        if isinstance(part[0], int)
        else mx.array(part).astype(table(mx.array([0])).dtype)
        for part in parts
    ]
    whole = mx.concatenate(rows)
    steps = generate_step(
        mx.array([], mx.uint32), model, max_tokens=count, prefill_step_size=chunk, input_embeddings=whole
    )
    tokens = [int(token) for token, _ in steps]
    cache, left = make_prompt_cache(model), whole
    while len(left) > 1:
        width = min(chunk, len(left) - 1)
        model(mx.zeros((1, width), mx.uint32), cache=cache, input_embeddings=left[:width][None])
        mx.eval([layer.state for layer in cache])
        left = left[width:]
    found = [model(mx.zeros((1, 1), mx.uint32), cache=cache, input_embeddings=left[None])]
    found += [model(mx.array([[token]]), cache=cache) for token in tokens[:-1]]
    return tokens, np.stack([np.array(row[0, -1].astype(mx.float32)) for row in found])


def step_key(seed: int, step: int) -> mx.array:
    """The key of a step's draw, made of the seed and the step alone."""
    return mx.random.key((seed ^ ((step + 1) * STEP_CONSTANT)) % 2**64)


def filtered(logprobs: mx.array, options: Dict[str, Any]) -> mx.array:
    """mlx-lm's filters in mlx-lm's order; top-k at or above the vocabulary is off."""
    if 0 < (top_p := options.get("top_p", 1.0)) < 1:
        logprobs = apply_top_p(logprobs, top_p)
    if (min_p := options.get("min_p", 0.0)) != 0:
        logprobs = apply_min_p(logprobs, min_p)
    if 0 < (top_k := options.get("top_k", 0)) < logprobs.shape[-1]:
        logprobs = apply_top_k(logprobs, top_k)
    return logprobs


def sampled(
    model: Any,
    prompt: List[int],
    options: Dict[str, Any],
    seed: int,
    count: int,
    cache: Optional[Any] = None,
) -> List[int]:
    """`count` tokens drawn with the key of each step."""
    cache = prefill(model, prompt, 2048)
    token, tokens = prompt[-1], []
    for step in range(count):
        logits = model(mx.array([[token]]), cache=cache)[:, -1, :]
        logprobs = filtered(logits - mx.logsumexp(logits, keepdims=True), options)
        scaled = logprobs * (1.0 / options["temperature"])
        token = int(mx.random.categorical(scaled, key=step_key(seed, step)).item())
        tokens.append(token)
    return tokens


def first_tokens(
    model: Any, prompt: List[int], options: Dict[str, Any], seeds: List[int]
) -> Dict[str, Any]:
    """Which ids survive the filters after the prompt, and what each seed draws first."""
    cache = prefill(model, prompt, 2048)
    logits = model(mx.array([[prompt[-1]]]), cache=cache)[:, -1, :]
    logprobs = logits - mx.logsumexp(logits, keepdims=True)
    kept = filtered(logprobs, options)
    scaled = kept * (1.0 / options["temperature"])
    draws = [
        int(mx.random.categorical(scaled, key=step_key(seed, 0)).item()) for seed in seeds
    ]
    flat = np.array(kept.astype(mx.float32))[0]
    survivors = [int(i) for i in np.nonzero(np.isfinite(flat))[0]]
    return {
        "survivors": survivors,
        "draws": draws,
        "logprobs": [float(x) for x in np.array(logprobs.astype(mx.float32))[0]],
    }
