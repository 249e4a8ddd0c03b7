"""Caches that mlx-lm 0.32.2 does not have, of its own parts: what ours do where it raises an error, and what the
library's kernels read."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache

#: Dimensions that share a scale in TurboQuant's codes, and what is added to scales before a division by them.
CODE_GROUP = 32
EPSILON = 1e-8

#: Of keys or values: those that are read again once they were stored in few bits.
Rounding = Callable[[mx.array], mx.array]


class QuantizedRing:
    """A window of quantised keys and values: each of their planes, words, scales and biases, is a ring of mlx-lm's."""

    def __init__(self, like: RotatingKVCache, group_size: int, bits: int) -> None:
        self.group_size, self.bits, self.max_size = group_size, bits, like.max_size
        self._rings = [RotatingKVCache(like.max_size, keep=like.keep) for _ in range(3)]
        if like.keys is None:
            return
        planes = zip(self._quantized(like.keys), self._quantized(like.values))
        for ring, (keys, values) in zip(self._rings, planes):
            ring.state = (keys, values, *like.state[2:])

    def _quantized(self, x: mx.array) -> Tuple[mx.array, ...]:
        return mx.quantize(x, group_size=self.group_size, bits=self.bits)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Tuple[Any, Any]:
        planes = zip(self._rings, self._quantized(keys), self._quantized(values))
        fetched = [ring.update_and_fetch(key, value) for ring, key, value in planes]
        return tuple(key for key, _ in fetched), tuple(value for _, value in fetched)

    @property
    def offset(self) -> int:
        return self._rings[0].offset

    @property
    def state(self) -> List[Any]:
        return [ring.state for ring in self._rings]

    def make_mask(self, *arguments: Any, **options: Any) -> Any:
        return self._rings[0].make_mask(*arguments, **options)


class Dequantized:
    """Quantised keys and values that are read as floats: for attention that caps its scores, which has no products
    with quantised ones."""

    def __init__(self, inner: QuantizedKVCache) -> None:
        self._inner = inner

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Tuple[mx.array, mx.array]:
        group, bits = self._inner.group_size, self._inner.bits
        read = self._inner.update_and_fetch(keys, values)
        found = [mx.dequantize(*planes, group_size=group, bits=bits).astype(keys.dtype) for planes in read]
        return found[0], found[1]

    @property
    def offset(self) -> int:
        return self._inner.offset

    @property
    def state(self) -> Any:
        return self._inner.state

    def make_mask(self, *arguments: Any, **options: Any) -> Any:
        return self._inner.make_mask(*arguments, **options)


class Planes(list):  # type: ignore[type-arg]
    """Quantised keys or values where a model asks for their type, and for another: they stay what they are."""

    @property
    def dtype(self) -> mx.Dtype:
        return self[1].dtype

    def astype(self, dtype: mx.Dtype) -> "Planes":
        return self


class TypedQuantized(QuantizedKVCache):
    """Gives `Planes`."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Tuple[Planes, Planes]:
        read = super().update_and_fetch(keys, values)
        return Planes(read[0]), Planes(read[1])


class _ReducedRing(RotatingKVCache):
    def to_quantized(self, group_size: int = 64, bits: int = 4) -> QuantizedRing:
        return QuantizedRing(self, group_size, bits)


class _ReadAsFloats(KVCache):
    def to_quantized(self, group_size: int = 64, bits: int = 4) -> Dequantized:
        return Dequantized(super().to_quantized(group_size=group_size, bits=bits))


class _ReadWithType(KVCache):
    def to_quantized(self, group_size: int = 64, bits: int = 4) -> TypedQuantized:
        made = TypedQuantized(group_size=group_size, bits=bits)
        made.state = super().to_quantized(group_size=group_size, bits=bits).state
        return made


#: Where mlx-lm's attention does not take what a quantised cache of its own gives.
FULL: Dict[str, type] = {"gemma2": _ReadAsFloats, "stablelm": _ReadWithType}


def reducible(model: Any) -> List[Any]:
    """The caches of a model, all of which `generate_step` can quantise."""
    full = FULL.get(model.model_type, KVCache)
    return [
        _ReducedRing(cache.max_size, keep=cache.keep) if isinstance(cache, RotatingKVCache) else full()
        for cache in make_prompt_cache(model)
    ]


def quantized_from_the_first(model: Any, group: int, bits: int) -> List[Any]:
    """The same quantised before anything is in them, but for windows, which are quantised behind a forward."""
    return [
        cache if isinstance(cache, RotatingKVCache) else cache.to_quantized(group_size=group, bits=bits)
        for cache in reducible(model)
    ]


def affine(bits: int, group: int) -> Rounding:
    """MLX's groups with scales and biases in half precision."""

    def rounded(x: mx.array) -> mx.array:
        words, scales, biases = mx.quantize(x, group_size=group, bits=bits)
        halves = [part.astype(mx.float16).astype(x.dtype) for part in (scales, biases)]
        return mx.dequantize(words, *halves, group_size=group, bits=bits)

    return rounded


def codes_of_keys(bits: int) -> Rounding:
    """TurboQuant's."""
    signed = bits == 8
    steps = (1 << bits) - 1 - int(signed)
    lowest, highest = (-steps // 2, steps // 2) if signed else (0, steps)

    def rounded(x: mx.array) -> mx.array:
        groups = x.reshape(*x.shape[:-1], -1, CODE_GROUP)
        low, high = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True)
        scale = (high - low) / steps
        divisor = scale + EPSILON
        zero = mx.round((high + low) / (2 * divisor) if signed else low / divisor)
        numbers = mx.clip(mx.round(groups / divisor - zero), lowest, highest)
        scale, zero = (part.astype(mx.float16).astype(mx.float32) for part in (scale, zero))
        return ((numbers + zero) * scale).reshape(x.shape)

    return rounded


def codes_of_values(centroids: List[float]) -> Rounding:
    """TurboQuant's."""
    levels = mx.array(centroids, mx.float32)
    boundaries = np.array([(a + b) / 2 for a, b in zip(centroids, centroids[1:])], np.float32)

    def rounded(x: mx.array) -> mx.array:
        signs = 1 - 2 * mx.random.randint(0, 2, (x.shape[-1],), key=mx.random.key(42)).astype(mx.float32)
        groups = mx.hadamard_transform(x * signs).reshape(*x.shape[:-1], -1, CODE_GROUP)
        scale = mx.sqrt(mx.mean(mx.square(groups), axis=-1, keepdims=True))
        numbers = np.searchsorted(boundaries, np.array(groups / (scale + EPSILON)), side="left")
        read = levels[mx.array(numbers)] * scale.astype(mx.float16).astype(mx.float32)
        return mx.hadamard_transform(read.reshape(x.shape)) * signs

    return rounded


def _rounded(base: type, keys: Rounding, values: Rounding, start: int) -> type:
    """A kind whose keys and values are those that are read again, from `start` tokens on, those before too."""

    class Rounded(base):  # type: ignore[misc]
        _reduced = False

        def update_and_fetch(self, new_keys: mx.array, new_values: mx.array) -> Tuple[mx.array, mx.array]:
            if self.offset >= start:
                if not self._reduced and self.keys is not None:
                    self.keys, self.values = keys(self.keys), values(self.values)
                self._reduced = True
                new_keys, new_values = keys(new_keys), values(new_values)
            return super().update_and_fetch(new_keys, new_values)

    return Rounded


def rounded(model: Any, form: Dict[str, Any]) -> List[Any]:
    """Caches of float32 whose numbers are those of `form`: `start`, and `bits` and `group` or, for all layers without
    a window, `key_bits` and `centroids`. Layers without a window of their own have `window`, if it is there."""
    codes = "centroids" in form
    keys = codes_of_keys(form["key_bits"]) if codes else affine(form["bits"], form["group"])
    values = codes_of_values(form["centroids"]) if codes else keys
    made: List[Any] = []
    for cache in make_prompt_cache(model):
        window = cache.max_size if isinstance(cache, RotatingKVCache) else form.get("window")
        if window is None:
            made.append(_rounded(KVCache, keys, values, form["start"])())
        elif codes:
            made.append(RotatingKVCache(window))
        else:
            made.append(_rounded(RotatingKVCache, keys, values, form["start"])(window))
    return made
