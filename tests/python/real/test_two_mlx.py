"""A host with an MLX of its own: Python's, loaded before ours or after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

import pytest

from support.run import run_python

HOST = """
def host():
    import mlx.core as mx
    a = mx.random.normal((64, 96), key=mx.random.key(1))
    b = mx.random.normal((96, 80), key=mx.random.key(2))
    w, scales, biases = mx.quantize(mx.random.normal((128, 96), key=mx.random.key(3)), 32, 4)
    c = mx.fast.rms_norm(a @ b, mx.ones((80,)), 1e-5)
    d = mx.quantized_matmul(a, w, scales, biases, group_size=32, bits=4)
    try:
        a @ a
        failed = "no error"
    except ValueError as error:
        failed = "ValueError"
    mx.eval(c, d)
    return [c.tolist(), d.tolist(), failed, mx.__version__]
"""
OURS = """
def ours():
    import mlxgen
    with mlxgen.Engine(threads=2) as engine, engine.load_model(sys.argv[1]) as model:
        with model.new_cache() as cache:
            cache.append(list(range(1, 40)))
            scores = cache.logits().tolist()
        tokens = list(model.generate([1, 2, 3], max_tokens=32, ignore_eos=True).read().tokens)
        try:
            engine.load_model("/nowhere")
        except mlxgen.NotFoundError:
            pass
        return [scores, tokens]
"""
COPIES = """
def copies():
    return sorted({line.split()[-1] for line in open("/proc/self/maps") if "libmlx" in line})
"""
BEGIN = "import json, sys\n" + HOST + OURS + COPIES


def run(body: str, model: Path) -> Any:
    return run_python(BEGIN + body, model, MLX_DISABLE_COMPILE="1")


@pytest.fixture(scope="module")
def alone(random_llama: Path) -> List[Any]:
    host = run("print(json.dumps(host()))", random_llama)
    ours = run("print(json.dumps(ours()))", random_llama)
    assert len(set(ours[1])) > 10 and host[2] == "ValueError"
    return [host, ours]


@pytest.mark.parametrize(
    "body",
    [
        "h = host(); o = ours()",
        "o = ours(); h = host()",
        "import mlx.core; o = ours(); h = host()",
        "h = host(); o = ours(); assert h == host() and o == ours()",
        "import mlxgen; mlxgen.version(); h = host(); o = ours()",
    ],
    ids=["host first", "ours first", "imported, not used", "in turn", "ours loaded, not used"],
)
def test_both_compute_what_they_compute_alone(
    alone: List[Any], random_llama: Path, body: str
) -> None:
    """Bit for bit: neither gets the other's MLX or BLAS."""
    host, ours, copies = run(body + "; print(json.dumps([h, o, copies()]))", random_llama)
    assert host == alone[0]
    assert ours == alone[1]
    assert len([path for path in copies if "python" in path or "site-packages" in path]) >= 1
    assert len(copies) >= 3, copies  # ours, our MLX, the host's MLX


def test_both_at_once_from_two_threads(alone: List[Any], random_llama: Path) -> None:
    body = """
import threading
results = {}
def work(name, function):
    results[name] = [function() for _ in range(3)]
threads = [threading.Thread(target=work, args=pair) for pair in (("h", host), ("o", ours))]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([results["h"], results["o"]]))
"""
    host, ours = run(body, random_llama)
    assert host == [alone[0]] * 3
    assert ours == [alone[1]] * 3
