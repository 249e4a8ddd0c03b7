"""What llama.cpp's formats do to scores, computed without llama.cpp: mlx-lm's graph in float32, with the inputs of
matrices and the keys and values rounded as those formats round them.

A matrix in Q4_1 or Q8_0 is multiplied with activations of 8 bits: blocks of 32 whole numbers from -127 to 127, with
a float16 scale, the greatest magnitude over 127. Beside it, for Q4_1, stands the sum of the block for the minima of
the weights, in float16. Keys and values are kept in float16.
"""

from __future__ import annotations

from typing import Any, List

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten
from mlx_lm.models.cache import KVCache

BLOCK = 32
MOST = 127


def half(values: mx.array) -> mx.array:
    """Rounded to float16."""
    return values.astype(mx.float16).astype(mx.float32)


class Rounded:
    """The product with a matrix of `layer`, which mlx-lm holds in affine groups of one block each."""

    def __init__(self, layer: Any) -> None:
        parts = layer.weight, layer.scales
        minima = mx.zeros_like(layer.biases) if layer.bits == 4 else layer.biases
        self._weight = mx.dequantize(*parts, minima, layer.group_size, layer.bits)
        # Eight bits are a scale and signed numbers, whose offset is part of mlx's form alone.
        self._minima = layer.biases if layer.bits == 4 else None
        mx.eval(self._weight)

    def __call__(self, values: mx.array) -> mx.array:
        blocks = values.reshape(*values.shape[:-1], -1, BLOCK)
        scales = mx.abs(blocks).max(axis=-1, keepdims=True) / MOST
        numbers = mx.where(scales > 0, mx.round(blocks / mx.where(scales > 0, scales, 1)), 0)
        product = (numbers * half(scales)).reshape(values.shape) @ self._weight.T
        if self._minima is not None:
            sums = half((numbers * scales).sum(axis=-1))
            product = product + sums @ self._minima.T
        return product


class RoundedLinear(nn.Module):
    def __init__(self, layer: nn.QuantizedLinear) -> None:
        super().__init__()
        assert layer.bits == 4 and "bias" not in layer
        self._product = Rounded(layer)

    def __call__(self, values: mx.array) -> mx.array:
        return self._product(values)


class RoundedEmbedding(nn.Module):
    """Rows as they are; as the head, rounded."""

    def __init__(self, layer: nn.QuantizedEmbedding) -> None:
        super().__init__()
        assert layer.bits == 8
        self._rows = layer
        self._product = Rounded(layer)

    def __call__(self, tokens: mx.array) -> mx.array:
        return self._rows(tokens)

    def as_linear(self, values: mx.array) -> mx.array:
        return self._product(values)


class HalfCache(KVCache):
    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        return super().update_and_fetch(half(keys), half(values))


def round_inputs(model: Any) -> None:
    """Puts `Rounded` in the place of every matrix of a quantised model."""
    found = {nn.QuantizedLinear: RoundedLinear, nn.QuantizedEmbedding: RoundedEmbedding}
    changed = [
        (name, found[type(module)](module))
        for name, module in model.named_modules()
        if type(module) in found
    ]
    model.update_modules(tree_unflatten(changed))


def scores(model: Any, tokens: List[int]) -> np.ndarray:
    """float32 `[len(tokens), vocabulary]`: the scores after each of the tokens."""
    cache = [HalfCache() for _ in model.layers]
    found = model(mx.array([tokens]), cache=cache)[0].astype(mx.float32)
    return np.array(found)
