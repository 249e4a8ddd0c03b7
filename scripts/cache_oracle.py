#!/usr/bin/env python3
"""Writes what mlx-lm's caches do with random sequences of operations: tests/data/cache_oracle.json, which
src/cache/oracle_tests.rs compares with. Columns are noise that the tests make again from the tokens' numbers; the file
holds hashes of what is returned and kept.

Needs mlx 0.32.2, mlx-lm 0.32.2 and numpy; writes elsewhere if told to:

    python3 scripts/cache_oracle.py [FILE]
"""

import json
import pathlib
import random
import sys

import mlx.core as mx
import numpy as np
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    trim_prompt_cache,
)

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "cache_oracle.json"
#: Added to a token's number, that of its query.
QUERIES = 500_000
GOLDEN = 0x9E3779B97F4A7C15
DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
WORDS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}
STEPS = 30


def noise(seeds, dims):
    """Numbers in [-2, 2) by splitmix64, a row for each seed."""
    z = seeds[..., None] + np.arange(1, dims + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) / (1 << 22) - 2.0


def columns(look, ids, keys):
    """Keys or values of these tokens, `[1, heads, tokens, dims]`."""
    heads = np.arange(look["heads"], dtype=np.uint64)[:, None]
    seeds = np.array(ids, dtype=np.uint64)[None] << np.uint64(9) | heads << np.uint64(1)
    seeds = (seeds | np.uint64(keys)) * np.uint64(0xD1342543DE82EF95)
    numbers = noise(seeds, look["key_dims"] if keys else look["value_dims"])
    return mx.array(numbers.astype(np.float32)[None]).astype(DTYPES[look["dtype"]])


def hashed(arrays):
    """A number for the bytes of these arrays, one after another, in row-major order."""
    views = [np.array(mx.contiguous(a).view(WORDS[a.dtype.size])).tobytes() for a in arrays]
    data = np.frombuffer(b"".join(views), dtype=np.uint8).astype(np.uint64) + np.uint64(1)
    weights = np.arange(1, data.size + 1, dtype=np.uint64) * np.uint64(GOLDEN) | np.uint64(1)
    return f"{int((data * weights).sum(dtype=np.uint64)):016x}"


def planes(pair):
    """The arrays of keys and values, quantised or not."""
    return [a for part in pair for a in (part if isinstance(part, (list, tuple)) else (part,))]


def seen(mask, queries, keys):
    """How the mask is given, and a number for what it lets through."""
    if mask is None:
        form, allowed = "none", np.ones((queries, keys), dtype=bool)
    elif isinstance(mask, str):
        form, allowed = mask, np.tri(queries, keys, keys - queries, dtype=bool)
    else:
        form, allowed = "array", np.broadcast_to(np.array(mask), (queries, keys))
    return form, hashed([mx.array(allowed.astype(np.uint8))])


def kept(cache):
    """Where a cache stands, and the columns that it holds, used or not."""
    held = [] if cache.empty() else planes((cache.keys, cache.values))
    state = {"offset": cache.offset, "columns": held[0].shape[2] if held else 0, "held": hashed(held)}
    if isinstance(cache, RotatingKVCache):
        state["idx"] = cache._idx
    return state


class Driver:
    """One cache and its tokens' numbers."""

    def __init__(self, cache, look):
        self.cache, self.look, self.next = cache, look, 0

    def append(self, count, window=None):
        ids = range(self.next, self.next + count)
        self.next += count
        mask = self.cache.make_mask(count, window_size=window, return_array=False)
        fetched = planes(
            self.cache.update_and_fetch(
                columns(self.look, ids, True), columns(self.look, ids, False)
            )
        )
        form, allowed = seen(mask, count, fetched[0].shape[2])
        attended = {}
        if isinstance(self.cache, QuantizedKVCache) and count <= 12:
            attended["attended"] = self.attend(ids, mask)
        return {
            "append": count,
            "window": window,
            "mask": form,
            "seen": allowed,
            "fetched": hashed(fetched),
            **attended,
            **kept(self.cache),
        }

    def attend(self, ids, mask):
        """Attention over quantised keys and values. Products with others go through a BLAS, whose last bits are
        its own. Three queries' heads share one of the keys, except where values have another size: there mlx-lm
        0.32.2 fails."""
        shared = 3 if self.look["key_dims"] == self.look["value_dims"] else 1
        heads = shared * self.look["heads"]
        queries = columns({**self.look, "heads": heads}, [QUERIES + token for token in ids], True)
        keys, values = self.cache.keys_and_values()
        return hashed(
            [scaled_dot_product_attention(queries, keys, values, self.cache, scale=0.125, mask=mask)]
        )

    def trim(self, count):
        return {"trim": count, "trimmed": trim_prompt_cache([self.cache], count), **kept(self.cache)}

    def quantise(self, bits, group):
        self.cache = self.cache.to_quantized(group_size=group, bits=bits)
        return {"quantise": bits, "group": group, **kept(self.cache)}


def sequence(name, cache, look, seed, windows, at_most, big=0, quantise=None):
    """A case of random appends and trims. `windows` may be asked for; `big` appends come now and then."""
    draw = random.Random(seed)
    driver = Driver(cache, look)
    steps = []
    for number in range(STEPS):
        if quantise and number == STEPS // 2:
            steps.append(driver.quantise(*quantise))
        choice = draw.random()
        window = draw.choice(windows) if windows and draw.random() < 0.3 else None
        if choice < 0.45:
            steps.append(driver.append(1, window))
        elif choice < 0.75:
            steps.append(driver.append(draw.randint(2, at_most), window))
        elif choice < 0.85 and big:
            steps.append(driver.append(draw.randint(big // 2, big), window))
        else:
            steps.append(driver.trim(draw.randint(1, 8)))
    return {"name": name, "look": look, "steps": steps}


def sequences():
    looks = [
        {"heads": 2, "key_dims": 64, "value_dims": 32, "dtype": "float32"},
        {"heads": 1, "key_dims": 32, "value_dims": 64, "dtype": "bfloat16"},
        {"heads": 2, "key_dims": 32, "value_dims": 32, "dtype": "float16"},
    ]
    for seed, look in enumerate(looks):
        yield {"kind": "plain", **sequence("plain", KVCache(), look, seed, (3, 20), 12, 300)}
        case = sequence("plain, quantised", KVCache(), look, seed, (), 12, 300, (8, 32))
        yield {"kind": "plain", **case}
        for bits in (4, 8):
            cache = QuantizedKVCache(group_size=32, bits=bits)
            case = sequence(f"{bits} bits", cache, look, seed + 10, (5,), 12, 300)
            yield {"kind": "affine", "bits": bits, "group": 32, **case}
        for size, keep in ((1, 0), (8, 0), (8, 2), (9, 8), (40, 0), (40, 4), (300, 0)):
            # A single token's narrower mask is not rolled around what is kept.
            windows = (1, 3, 7) if keep == 0 and size > 7 else ()
            cache = RotatingKVCache(max_size=size, keep=keep)
            case = sequence(
                f"{size} keep {keep}", cache, look, seed + size + keep, windows, 12, size if size > 1 else 0
            )
            yield {"kind": "rotating", "size": size, "keep": keep, **case}


def b60():
    """Trimmed though the first tokens were overwritten: what lies in the window then."""
    cache = RotatingKVCache(max_size=8)
    row = lambda number: mx.full((1, 1, 1, 1), float(number))
    for number in range(20):
        cache.update_and_fetch(row(number), row(number))
    guarded = trim_prompt_cache([cache], 3)
    returned = cache.trim(3)
    keys, _ = cache.update_and_fetch(row(100), row(100))
    window = [int(x) for x in np.array(keys).flatten()]
    return {"guarded": guarded, "returned": returned, "offset": cache.offset, "window": window}


def arrays():
    """Slots: which are filled, and bytes."""
    cache = ArraysCache(3)
    steps = [{"empty": cache.empty(), "nbytes": cache.nbytes}]
    for slot in (1, 0, 1):
        cache[slot] = mx.zeros((1, 2 + slot, 4))
        filled = [state is not None for state in cache.state[0]]
        mask = cache.make_mask(5)
        steps.append(
            {
                "slot": slot,
                "filled": filled,
                "nbytes": cache.nbytes,
                "mask": seen(mask, 5, 5)[0],
                "trimmed": trim_prompt_cache([cache], 1),
            }
        )
    return steps


def lists():
    """A plain and a rotating cache of 8 in a list: what a trim gives."""
    cache = CacheList(KVCache(), RotatingKVCache(max_size=8))
    look = {"heads": 1, "key_dims": 4, "value_dims": 4, "dtype": "float32"}
    steps, number = [], 0
    for count, trim in ((3, 1), (2, 5), (6, 2), (1, 1), (1, 1), (5, 3)):
        ids = range(number, number + count)
        number += count
        fetched = []
        for part in cache.caches:
            pair = part.update_and_fetch(columns(look, ids, True), columns(look, ids, False))
            fetched.append(hashed(planes(pair)))
        steps.append(
            {
                "append": count,
                "fetched": fetched,
                "trim": trim,
                "trimmed": trim_prompt_cache([cache], trim),
                "offsets": [part.offset for part in cache.caches],
                "nbytes": cache.nbytes,
            }
        )
    return {"look": look, "steps": steps}


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    mx.set_default_device(mx.cpu)
    oracle = {"sequences": list(sequences()), "b60": b60(), "arrays": arrays(), "list": lists()}
    lines = []
    for name, value in oracle.items():
        if name == "sequences":
            cases = ",\n".join(json.dumps(case, separators=(",", ":")) for case in value)
            lines.append(f'"{name}":[\n{cases}\n]')
        else:
            lines.append(f'"{name}":{json.dumps(value, separators=(",", ":"))}')
    out.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
