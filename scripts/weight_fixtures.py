#!/usr/bin/env python3
"""Makes tests/fixtures/weights.json: what other implementations make of given weights.

The inputs are noise that the tests make again from each case's name; the file holds only hashes
of the results. Needs the Python packages mlx 0.32.2, numpy and gguf 0.19.0:

    python3 scripts/weight_fixtures.py > tests/fixtures/weights.json
"""

import json
import os
import struct
import tempfile

import gguf
import mlx.core as mx
import numpy as np

MASK = (1 << 64) - 1
ROWS, COLUMNS = 6, 128
# Number, elements and bytes of a block, and where its float16 are.
FORMATS = {
    "Q4_0": (2, 32, 18, [0]),
    "Q4_1": (3, 32, 20, [0, 2]),
    "Q5_0": (6, 32, 22, [0]),
    "Q5_1": (7, 32, 24, [0, 2]),
    "Q8_0": (8, 32, 34, [0]),
    "Q2_K": (10, 256, 84, [80, 82]),
    "Q3_K": (11, 256, 110, [108]),
    "Q4_K": (12, 256, 144, [0, 2]),
    "Q5_K": (13, 256, 176, [0, 2]),
    "Q6_K": (14, 256, 210, [208]),
}
# The formats that MLX's reader keeps packed.
MLX_FORMATS = ("Q4_0", "Q4_1", "Q8_0")
# Float16 of magnitudes below 2; of any; infinities and NaN among them.
MASKS = {"ordinary": 0xBFFF, "large": 0xFBFF, "any": 0xFFFF}


def fnv(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


class Noise:
    """splitmix64, seeded by the hash of a name."""

    def __init__(self, name: str):
        self.state = fnv(name.encode())

    def next(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def bytes(self, count: int) -> bytes:
        return bytes(self.next() & 0xFF for _ in range(count))

    def halves(self, count: int, mask: int) -> bytes:
        """16-bit floats; the mask keeps the exponent from being all ones."""
        return b"".join(struct.pack("<H", self.next() & mask) for _ in range(count))


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf_file(name: str, number: int, axes: list, data: bytes) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text(name)
    head += struct.pack("<I", len(axes)) + b"".join(struct.pack("<Q", axis) for axis in axes)
    head += struct.pack("<IQ", number, 0)
    return head + bytes(-len(head) % 32) + data


def columns_of(format_name: str) -> int:
    return max(COLUMNS, 2 * FORMATS[format_name][1])


def blocks(case: str, format_name: str, mask: int) -> bytes:
    noise = Noise(case)
    _, elements, size, half_places = FORMATS[format_name]
    out = b""
    for _ in range(ROWS * columns_of(format_name) // elements):
        block = bytearray(noise.bytes(size))
        for place in half_places:
            block[place : place + 2] = noise.halves(1, mask)
        out += bytes(block)
    return out


def one_nan(values: np.ndarray) -> np.ndarray:
    """NaN of all kinds as one of them."""
    return np.where(np.isnan(values), np.float32(np.nan), values).astype(np.float32)


def raw(array: mx.array) -> bytes:
    bits = {2: mx.uint16, 4: mx.uint32}[array.dtype.size]
    return np.array(array.view(bits)).tobytes()


def gguf_cases(folder: str):
    for format_name, (number, _, _, _) in FORMATS.items():
        for scales, mask in MASKS.items():
            case = f"gguf {format_name} {scales}"
            data = blocks(case, format_name, mask)
            kind = gguf.GGMLQuantizationType(number)
            array = np.frombuffer(data, np.uint8).reshape(ROWS, -1)
            with np.errstate(all="ignore"):
                yield f"{case} values", one_nan(gguf.quants.dequantize(array, kind)).tobytes()
            content = gguf_file("t.weight", number, [columns_of(format_name), ROWS], data)
            yield f"{case} file", content
            if format_name not in MLX_FORMATS or scales == "any":
                continue
            path = os.path.join(folder, "t.gguf")
            with open(path, "wb") as file:
                file.write(content)
            loaded = mx.load(path)
            for part in ("weight", "scales", "biases"):
                yield f"{case} {part}", raw(loaded[f"t.{part}"])
                if part != "weight":
                    yield f"{case} {part} float32", raw(loaded[f"t.{part}"].astype(mx.float32))
                    yield f"{case} {part} bfloat16", raw(loaded[f"t.{part}"].astype(mx.bfloat16))


def microscaled_cases():
    for mode, bits, group in (("mxfp4", 4, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32)):
        case = f"microscaled {mode}"
        noise = Noise(case)
        # A group for each scale.
        packed = np.frombuffer(noise.bytes(256 * group * bits // 8), np.uint32).reshape(256, -1)
        scales = np.arange(256, dtype=np.uint8).reshape(256, 1)
        yield f"{case} packed", packed.tobytes()
        for type_name, dtype in (("float32", mx.float32), ("bfloat16", mx.bfloat16)):
            values = mx.dequantize(
                mx.array(packed), mx.array(scales), None, group, bits, mode=mode, dtype=dtype
            )
            # Each group for itself, because not all are numbers.
            for scale in (0, 1, 2, 10, 100, 126, 127, 128, 200, 250, 252, 255):
                wide = one_nan(np.array(values[scale].astype(mx.float32)))
                yield f"{case} {scale} {type_name}", wide.tobytes()


def affine_cases():
    types = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for type_name, dtype in types.items():
                case = f"affine {bits} {group} {type_name}"
                noise = Noise(case)
                packed = np.frombuffer(noise.bytes(ROWS * COLUMNS * bits // 8), np.uint32)
                packed = mx.array(packed.reshape(ROWS, -1))
                count = ROWS * COLUMNS // group

                def parameters():
                    halves = mx.array(np.frombuffer(noise.halves(count, 0xBFFF), np.uint16))
                    if type_name == "F32":
                        # A float16 and more digits: not every product is exact.
                        return halves.view(mx.float16).astype(mx.float32) * mx.array(1.1, mx.float32)
                    return halves.view(dtype)

                scales, biases = parameters(), parameters()
                scales, biases = scales.reshape(ROWS, -1), biases.reshape(ROWS, -1)
                yield f"{case} scales", raw(scales)
                values = mx.dequantize(
                    packed, scales.astype(mx.float32), biases.astype(mx.float32), group_size=group, bits=bits
                )
                yield f"{case} values", raw(values)


def cast_cases():
    types = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
    for from_name, from_type in types.items():
        for to_name, to_type in types.items():
            case = f"cast {from_name} {to_name}"
            noise = Noise(case)
            if from_name == "F32":
                # Exponents of float16's whole range and beyond, random digits, both signs.
                bits = [
                    (noise.next() & 0x807FFFFF) | ((96 + noise.next() % 56) << 23) for _ in range(1500)
                ]
                array = mx.array(np.array(bits, np.uint32)).view(from_type)
            else:
                array = mx.array(np.frombuffer(noise.halves(1500, 0xBFFF), np.uint16)).view(from_type)
            yield f"{case} input", raw(array)
            yield f"{case} output", raw(array.astype(to_type))


def row_cases():
    """The order in which converters of GGUF files store the rows of q and k."""
    for heads, head_dim in ((4, 16), (3, 64), (1, 2)):
        rows = np.arange(heads * head_dim, dtype=np.uint32)
        stored = rows.reshape(heads, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)
        yield f"rows {heads} {head_dim}", stored.astype(np.uint32).tobytes()


def main():
    hashes = {}
    with tempfile.TemporaryDirectory() as folder:
        for cases in (gguf_cases(folder), microscaled_cases(), affine_cases(), cast_cases(), row_cases()):
            for name, data in cases:
                hashes[name] = f"{fnv(data):016x}"
    print(json.dumps(hashes, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
