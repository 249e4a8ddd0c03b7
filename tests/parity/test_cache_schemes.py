"""Cache sets with options, numerics exact: every score bit-equal to mlx-lm's with the same options."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import pytest

import mlxgen
from mlxgen import AffineKv, KvPages, KvTable, KvWindow

from .cases import GREEDY, prompt
from .compare import Expected, Mismatch, compare_scores, compare_tokens, expect
from .reference_process import Reference

#: Heads of 64 elements, so that groups of 32 and 64 fill them.
MODELS = {
    "heads-of-64-float32": {"dtype": "float32", "config": {"head_dim": 64}},
    "heads-of-64-bfloat16": {"dtype": "bfloat16", "config": {"head_dim": 64}},
}

Ask = Callable[[str, int, int, Dict[str, Any]], Expected]


@pytest.fixture(scope="module")
def folders(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Path]:
    base = tmp_path_factory.mktemp("heads")
    for name, case in MODELS.items():
        reference.ask(
            "make_tiny",
            folder=base / name,
            case={"name": name, **case},
            prompts=[prompt(size) for size in (7, 64, 300)],
        )
    return {name: base / name for name in MODELS}


@pytest.fixture(scope="module")
def expected(
    reference: Reference, folders: Dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Ask:
    out = tmp_path_factory.mktemp("expected") / "scores.npy"

    def get(name: str, size: int, chunk: int, scheme: Dict[str, Any]) -> Expected:
        return expect(
            reference, folders[name], prompt(size), chunk, GREEDY, out, scheme=scheme
        )

    return get


def load(engine: mlxgen.Engine, folder: Path, chunk: int) -> mlxgen.Model:
    return engine.load_model(folder, numerics=mlxgen.Numerics.EXACT, prefill_chunk=chunk)


#: Prompt, chunk and start: from the beginning; in the middle of a prompt that is read in pieces,
#: and behind one that is read at once; in the middle of the generation.
STARTS = [(7, 64, 0), (300, 64, 0), (300, 64, 100), (300, 2048, 100), (64, 64, 90), (300, 2048, 340)]


@pytest.mark.parametrize(("size", "chunk", "start"), STARTS)
@pytest.mark.parametrize(("bits", "group"), [(4, 64), (8, 32)])
@pytest.mark.parametrize("name", MODELS)
def test_quantised_keys_and_values_equal_mlx_lm(
    engine: mlxgen.Engine,
    folders: Dict[str, Path],
    expected: Ask,
    name: str,
    bits: int,
    group: int,
    size: int,
    chunk: int,
    start: int,
) -> None:
    scheme = {"kv_bits": bits, "kv_group_size": group, "quantized_kv_start": start}
    wanted = expected(name, size, chunk, scheme)
    with load(engine, folders[name], chunk) as model:
        same = {"precision": AffineKv(bits, group, start)}
        compare_scores(model, wanted, **same)
        compare_tokens(model, wanted, **same)
        with pytest.raises(Mismatch):
            compare_scores(model, wanted, precision=AffineKv(12 - bits, group, start))
        with pytest.raises(Mismatch):
            compare_scores(model, wanted)
        with model.new_cache(**same) as cache:
            cache.append(wanted.prompt)
            cache.append(wanted.tokens)
            for layer in cache.info().layers:
                assert layer.signature == f"kv:quant:{bits}:{group}"
                minimum = layer.minimum_reusable_offset
                assert (minimum == 0) if start == 0 else (minimum >= start)


@pytest.mark.parametrize(
    ("size", "chunk", "keep"),
    [(7, 64, 0), (64, 64, 0), (300, 7, 0), (300, 64, 0), (300, 2048, 0), (7, 64, 4)],
)
@pytest.mark.parametrize("name", MODELS)
def test_b64_a_window_smaller_than_the_prompt_equals_mlx_lm(
    engine: mlxgen.Engine,
    folders: Dict[str, Path],
    expected: Ask,
    name: str,
    size: int,
    chunk: int,
    keep: int,
) -> None:
    """A window of 32 tokens. With kept tokens only where no chunk of the prompt passes the window:
    mlx-lm 0.32.2 hides them there from all tokens of the chunk but the first, though its next single
    token sees them, so what a token sees would depend on how the prompt was cut."""
    wanted = expected(name, size, chunk, {"window": 32, "keep": keep})
    with load(engine, folders[name], chunk) as model:
        compare_scores(model, wanted, window=KvWindow(32, keep))
        compare_tokens(model, wanted, window=KvWindow(32, keep))
        with pytest.raises(Mismatch):
            compare_scores(model, wanted, window=KvWindow(31, keep))
        with pytest.raises(Mismatch):
            compare_scores(model, wanted, window=KvWindow(32, keep + 1))


@pytest.mark.parametrize("name", MODELS)
def test_b62_b64_what_a_window_keeps_does_not_depend_on_chunks(
    engine: mlxgen.Engine, folders: Dict[str, Path], name: str
) -> None:
    """Kept tokens are seen whatever the chunks: scores agree but for the rounding of another order."""
    scores = []
    for chunk in (1, 3, 8, 33, 64, 300):
        with load(engine, folders[name], chunk) as model:
            with model.new_cache(window=KvWindow(32, keep=4)) as cache:
                cache.append(prompt(100))
                scores.append(cache.logits_numpy())
    bound = 1e-3 if "float32" in name else 0.5
    for other in scores[1:]:
        assert abs(other - scores[0]).max() < bound


@pytest.mark.parametrize("page", [1, 4, 16, 256])
@pytest.mark.parametrize("name", MODELS)
def test_pages_change_no_bit(
    engine: mlxgen.Engine, folders: Dict[str, Path], expected: Ask, name: str, page: int
) -> None:
    wanted = expected(name, 300, 64, {})
    with load(engine, folders[name], 64) as model:
        compare_scores(model, wanted, pages=KvPages(page))
        compare_tokens(model, wanted, pages=KvPages(page))


def test_a_table_of_layers_quantises_the_layers_that_it_names(
    engine: mlxgen.Engine, folders: Dict[str, Path]
) -> None:
    with load(engine, folders["heads-of-64-float32"], 64) as model:
        text = '[{"layer_idx": 1, "bits": 8, "group_size": 32}]'
        with model.new_cache(precision=KvTable(text)) as cache:
            cache.append(prompt(10))
            cache.append([1])
            signatures = [layer.signature for layer in cache.info().layers]
            assert signatures[:2] == ["kv:plain", "kv:quant:8:32"]
        for bad in ('[{"layer_idx": 9, "bits": 8}]', '[{"layer_idx": 0, "bits": 8}]' * 2):
            with pytest.raises(mlxgen.InvalidArgumentError) as caught:
                model.new_cache(precision=KvTable(bad))
            assert caught.value.detail.field == "kv_config"
