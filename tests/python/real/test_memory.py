"""Memory: refused before it is taken, and given back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, List

import pytest

import mlxgen
from support.random_llama import write_random_llama
from support.run import run_python
from support.tiny_tokenizer import VOCABULARY

MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc and RLIMIT_AS")

ANSWER = """
import json, sys, mlxgen
def answer(model):
    return model.chat([{"role": "user", "content": "What is the capital of France?"}], max_tokens=20).read().text
"""

LIMIT = ANSWER + """
engine = mlxgen.Engine(memory_limit=64 << 20)
try:
    engine.load_model(sys.argv[1])
    refused = False
except mlxgen.OutOfMemoryError:
    refused = True
models = engine.memory().models
engine.set_limits(memory_limit=4 << 30)
with engine.load_model(sys.argv[1]) as model:
    print(json.dumps([refused, models, answer(model)]))
"""


def test_a_limit_of_64_mb_refuses_the_model_and_a_raised_one_loads_it(smollm2: Path) -> None:
    refused, models, text = run_python(LIMIT, smollm2)
    assert refused and models == 0 and "Paris" in text


ULIMIT = ANSWER + """
import resource
def virtual():
    for line in open("/proc/self/status"):
        if line.startswith("VmSize"):
            return int(line.split()[1]) * 1024
engine = mlxgen.Engine()
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (virtual() + (96 << 20), hard))
refused = 0
for _ in range(3):
    try:
        engine.load_model(sys.argv[1])
    except mlxgen.OutOfMemoryError:
        refused += 1
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
with engine.load_model(sys.argv[1]) as model:
    print(json.dumps([refused, answer(model)]))
"""


@linux
def test_the_same_under_ulimit_v(smollm2: Path) -> None:
    """A failed allocation inside MLX would be a segmentation fault: it must not come to that."""
    refused, text = run_python(ULIMIT, smollm2)
    assert refused == 3 and "Paris" in text


CYCLES = """
import gc, json, sys, time, mlxgen
def resident():
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
sizes = []
for _ in range(10):
    with mlxgen.Engine() as engine, engine.load_model(sys.argv[1]) as model:
        model.generate(list(range(100)), max_tokens=8).read()
    gc.collect()
    # A release does not wait for the owner thread, which gives the memory back.
    deadline = time.monotonic() + 20
    while resident() > 200 << 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    sizes.append(resident())
print(json.dumps([sizes, mlxgen.live_handles()]))
"""


@linux
def test_ten_cycles_of_load_generate_release_keep_nothing(smollm2: Path) -> None:
    sizes, handles = run_python(CYCLES, smollm2)
    assert handles == 0
    growth = sizes[9] - sizes[1]
    assert growth <= 10 * MIB, [size // MIB for size in sizes]
    assert max(sizes) < 300 * MIB, "a released model is still resident"


def test_b146_the_pool_is_bounded(
    engine: mlxgen.Engine, random_llama: Path, record_property: Any
) -> None:
    """B146: freed buffers of ever new sizes stay under the bound; the host can set it."""
    with mlxgen.Engine(pool_limit=8 * MIB) as bounded, bounded.load_model(random_llama) as model:
        assert bounded.memory().pool_limit == 8 * MIB
        for size in range(100, 3001, 100):
            ids = [i % 256 for i in range(size)]
            assert len(model.generate(ids, max_tokens=2, ignore_eos=True).read().tokens) == 2
            assert bounded.memory().pooled <= 8 * MIB, size
        bounded.set_limits(pool_limit=MIB)
        model.generate([1] * 700, max_tokens=2).read()
        assert bounded.memory().pooled <= MIB
        bounded.trim()
        assert bounded.memory().pooled == 0


PEAK = """
import json, sys, mlxgen
with mlxgen.Engine() as own, own.load_model(sys.argv[1], prefill_chunk=256) as model:
    with model.new_cache() as cache:
        before = own.memory().active
        cache.append([i % 256 for i in range(20_000)])
        memory = own.memory()
        print(json.dumps([memory.peak - before, cache.info().bytes, memory.pooled <= memory.pool_limit]))
"""


def test_b146_the_peak_grows_with_the_cache_and_not_with_chunks(tmp_path: Path) -> None:
    """B146: a prompt of 20,000 in chunks, in a process of its own: the peak is the process's."""
    heads = 2
    folder = write_random_llama(
        tmp_path / "m", num_hidden_layers=1, num_attention_heads=heads, num_key_value_heads=1
    )
    grown, held, bounded = run_python(PEAK, folder)
    # While a slab grows the old and the new one are there; so are the scores of one chunk.
    scores = heads * 256 * 20_000 * 4
    assert bounded and grown <= 3 * held + 4 * scores, (grown, held, scores)


def test_memory_is_accounted(engine: mlxgen.Engine, random_llama: Path) -> None:
    before = engine.memory()
    model = engine.load_model(random_llama)
    loaded = engine.memory()
    assert loaded.models - before.models == model.info.weight_bytes > 0
    assert loaded.active - before.active >= model.info.weight_bytes
    with model.new_cache() as cache:
        cache.append(range(200))
        held: List[int] = [cache.info().bytes]
        assert engine.memory().caches >= held[0] >= 200 * model.info.cache_bytes_per_token
    model.close()
    engine.trim()
    after = engine.memory()
    assert (after.models, after.caches) == (before.models, before.caches)
    assert after.active <= before.active + MIB


def test_growth_beyond_the_limit_is_refused_before_it_happens(random_llama: Path) -> None:
    with mlxgen.Engine() as own, own.load_model(random_llama, context_limit=100_000) as model:
        with model.new_cache() as cache:
            cache.append([1, 2, 3])
            own.set_limits(memory_limit=own.memory().active + 4 * MIB)
            with pytest.raises(mlxgen.OutOfMemoryError):
                cache.append([i % VOCABULARY for i in range(90_000)])
            assert cache.tokens[:3] == [1, 2, 3]
            own.set_limits(memory_limit=0)
            cache.append([5])
