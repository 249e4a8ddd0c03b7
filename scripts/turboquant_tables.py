#!/usr/bin/env python3
"""Makes src/mlx/turboquant/tables.rs: the signs and centroids of TurboQuant.

Both are drawn from MLX's generator of random numbers, with the seeds that other implementations of the
format use, and so are part of the format. Needs the Python package mlx 0.32.2:

    python3 scripts/turboquant_tables.py > src/mlx/turboquant/tables.rs

Signs: 1 - 2 r with r = randint(0, 2, (dims,), key 42).

Centroids of 2, 4, 5 and 8 bits: the Lloyd-Max quantiser (S. P. Lloyd, "Least squares quantization in PCM",
IEEE Trans. Inf. Theory 28, 1982) of 200000 samples of normal(key 0). It starts from equal steps between the
least and the largest sample; then each centroid becomes the mean of the samples between the midpoints to its
neighbours, 500 times; one without samples stays. Those of 3 bits are the textbook's of the normal distribution.
"""

import struct
from bisect import bisect_right
from decimal import Decimal
from itertools import accumulate

import mlx.core as mx

SIZES = (64, 128, 256, 512)
FITTED = (2, 4, 5, 8)
ROUNDS = 500
TEXTBOOK = (0.24508999, 0.75600999, 1.34390998, 2.15194988)

HEAD = """\
//! The signs and centroids of TurboQuant. Made by `scripts/turboquant_tables.py`, which says how; do not edit.
"""


def signs(dims: int) -> list[int]:
    drawn = mx.random.randint(0, 2, (dims,), key=mx.random.key(42))
    return [1 - 2 * int(value) for value in drawn.tolist()]


def fitted(bits: int) -> list[float]:
    samples = sorted(mx.random.normal((200_000,), key=mx.random.key(0)).tolist())
    sums = [0.0, *accumulate(samples)]
    low, high, last = samples[0], samples[-1], (1 << bits) - 1
    centroids = [low + (high - low) * index / last for index in range(last + 1)]
    for _ in range(ROUNDS):
        middles = [(left + right) / 2 for left, right in zip(centroids, centroids[1:])]
        cuts = [0, *(bisect_right(samples, middle) for middle in middles), len(samples)]
        means = [
            (sums[to] - sums[start]) / (to - start) if start < to else old
            for start, to, old in zip(cuts, cuts[1:], centroids)
        ]
        if means == centroids:
            break
        centroids = means
    return centroids


def centroids(bits: int) -> list[float]:
    if bits == 3:
        return [-value for value in reversed(TEXTBOOK)] + list(TEXTBOOK)
    return fitted(bits)


def shortest(value: float) -> str:
    """The shortest decimal that is this number in float32."""
    single = struct.unpack("f", struct.pack("f", value))[0]
    for digits in range(1, 10):
        text = f"{single:.{digits}g}"
        if struct.unpack("f", struct.pack("f", float(text)))[0] == single:
            break
    return f"{Decimal(text):f}"


def const(doc: str, name: str, kind: str, items: list[str]) -> str:
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > 110:
            lines.append(line)
            line = "   "
        line += f" {item},"
    body = "\n".join([*lines, line])
    return f"\n/// {doc}\n#[rustfmt::skip]\npub const {name}: [{kind}; {len(items)}] = [\n{body}\n];\n"


def text() -> str:
    """The whole file."""
    mx.set_default_device(mx.cpu)
    out = HEAD
    for dims in SIZES:
        words = [0] * (dims // 64)
        for index, sign in enumerate(signs(dims)):
            words[index // 64] |= (sign < 0) << index % 64
        doc = f"The signs for {dims} dimensions: bit i of word w is set where number 64 w + i is negative."
        out += const(doc, f"NEGATIVE_{dims}", "u64", [f"{word:#018x}" for word in words])
    for bits in sorted((3, *FITTED)):
        doc = f"What the numbers of {bits} bits stand for, in order."
        out += const(doc, f"CENTROIDS_{bits}", "f32", [shortest(value) for value in centroids(bits)])
    return out


if __name__ == "__main__":
    print(text(), end="")
