"""Ends, sampling edges and limits through the real graph, with models whose output is known."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest

import mlxgen
from mlxgen import EndReason
from support.run import run_python
from support.table_model import chain, write_table_model
from support.tiny_tokenizer import BOS, EOS, VOCABULARY

PROBABILITIES = [0.5, 0.25, 0.15, 0.07, 0.03]
FIVE = {last: {i: math.log(p) for i, p in enumerate(PROBABILITIES)} for last in [BOS, *range(5)]}
#: So many draws that the rarest of the five tokens is all but sure to come.
MANY = 150
Table = Callable[..., mlxgen.Model]


def draws(model: mlxgen.Model, count: int, **options: Any) -> Counter[int]:
    """The first tokens of `count` seeds."""
    made: Counter[int] = Counter()
    for seed in range(count):
        made.update(model.generate([BOS], max_tokens=1, seed=seed, **options).read().tokens)
    return made


def test_a_table_says_what_it_should(table: Table) -> None:
    model = table(chain(b"Thequickbrownf"))
    done = model.generate([BOS]).read()
    assert (done.text, done.end.reason) == ("Thequickbrownf", EndReason.EOS)
    assert done.end.usage.generated_tokens == 15


def test_b56_stop_texts(table: Table) -> None:
    """B56"""
    model = table(chain(b"Thequickbrownf"))
    done = model.generate([BOS], stop=["ownf", "zzz"]).read()
    assert (done.text, done.end.reason, done.end.stop) == ("Thequickbr", EndReason.STOP_STRING, "ownf")
    assert model.generate([BOS], stop=["b"]).read().text == "Thequick"
    assert model.generate([BOS], stop=["\nUser:"]).read().text == "Thequickbrownf"
    assert model.generate([BOS], stop=["nfx"]).read().text == "Thequickbrownf"


def test_characters_are_whole(table: Table) -> None:
    text = "é世🦙"
    model = table(chain(text.encode()))
    pieces = list(model.generate([BOS]).texts())
    assert "".join(pieces) == text
    assert all(piece in text for piece in pieces) and "\ufffd" not in "".join(pieces)


def test_b54_b55_sources_of_eos(engine: mlxgen.Engine, tmp_path: Path) -> None:
    """B54, B55: the lists of config and generation config, the tokenizer's own and the caller's."""
    folder = write_table_model(tmp_path / "m", chain(b"abcdefgh"), eos_token_id=[2, 5, 7])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    with engine.load_model(folder) as model:
        assert set(model.info.eos) == {2, 5, 7, EOS}
        assert model.generate([BOS]).read().text == "abcdefgh"
        assert model.generate([BOS], extra_eos=[ord("c")]).read().text == "ab"
        assert model.generate([2, EOS, 5, BOS]).read().text == "abcdefgh"
        ran = model.generate([BOS], ignore_eos=True, max_tokens=12).read()
        assert ran.end.reason == EndReason.MAX_TOKENS and len(ran.tokens) == 12
        first = model.generate([BOS], extra_eos=[ord("a")]).read()
        assert (first.text, first.end.usage.generated_tokens) == ("", 1)
    several = write_table_model(tmp_path / "n", chain(b"ab\6cd"), eos_token_id=1)
    (several / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 6]}))
    with engine.load_model(several) as model:
        done = model.generate([BOS]).read()
        assert (done.text, done.end.reason) == ("ab", EndReason.EOS)
        assert done.end.usage.generated_tokens == 3


@pytest.mark.parametrize("limit", [0, 1, 2, 5])
def test_b58_exactly_as_many_tokens_as_asked(table: Table, limit: int) -> None:
    """B58"""
    model = table({BOS: {65: 5.0}, 65: {66: 5.0}, 66: {65: 5.0}})
    with model.new_cache() as cache:
        done = model.generate([1, BOS], cache=cache, max_tokens=limit).read()
        assert len(done.tokens) == limit == done.end.usage.generated_tokens
        assert done.end.reason == EndReason.MAX_TOKENS
        assert cache.tokens[:2] == [1, BOS]


def test_b44_top_k_and_top_p_together(table: Table) -> None:
    """B44: at least one candidate survives; with top_k 1 only the likeliest."""
    model = table(FIVE)
    for top_p in (0.8, 0.5, 1e-9):
        for temperature in (0.01, 1.0):
            got = draws(model, 20, temperature=temperature, top_k=1, top_p=top_p)
            assert set(got) == {0}, (top_p, temperature)


def test_b45_top_k_and_min_p(table: Table) -> None:
    """B45: top_k at or above the vocabulary is off; 2 keeps two, ties too; min_p is relative to
    the likeliest token before temperature."""
    model = table(FIVE)
    everything = draws(model, MANY, temperature=1.0)
    assert set(everything) == {0, 1, 2, 3, 4}
    for top_k in (0, VOCABULARY, VOCABULARY + 9, 2**32 - 1):
        assert draws(model, MANY, temperature=1.0, top_k=top_k) == everything
    two = draws(model, 200, temperature=1.0, top_k=2)
    assert set(two) == {0, 1} and abs(two[0] / 200 - 2 / 3) < 0.12
    assert set(draws(model, MANY, temperature=1.0, top_k=4)) <= {0, 1, 2, 3}
    for temperature in (1.0, 2.0):
        # 0.3 of 0.5 is 0.15: the third token is just in or just out, the fourth is out.
        assert set(draws(model, MANY, temperature=temperature, min_p=0.31)) == {0, 1}
        assert set(draws(model, MANY, temperature=temperature, min_p=0.29)) == {0, 1, 2}
    assert draws(model, MANY, temperature=1.0, min_p=0.0) == everything
    assert set(draws(model, 20, temperature=5.0, min_p=1.0)) == {0}
    ties = table({BOS: {i: 1.0 for i in range(VOCABULARY)}})
    kept = set(draws(ties, 40, temperature=1.0, top_k=2))
    assert len(kept) == 2


def test_b46_extreme_temperatures_and_top_p(table: Table) -> None:
    """B46: tiny temperatures give the likeliest token; 1 is no limit for top_p, 0 is off too;
    every reported number is finite or an honest minus infinity."""
    model = table(FIVE)
    for temperature in (0.0, 1e-6, 1e-45):
        assert set(draws(model, 20, temperature=temperature)) == {0}, temperature
    everything = draws(model, MANY, temperature=1.0)
    assert draws(model, MANY, temperature=1.0, top_p=1.0) == everything
    extremes: List[Dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1e-45},
        {"temperature": 1.0, "top_p": 0.0},
    ]
    for options in extremes:
        stream = model.generate([BOS], max_tokens=3, seed=1, logprobs=True, top_logprobs=5, **options)
        for event in stream:
            if isinstance(event, mlxgen.TextEvent):
                for value in event.logprobs:
                    assert math.isfinite(value) and value <= 0
                for top in event.top_logprobs:
                    assert all(not math.isnan(entry.logprob) for entry in top)


def test_b52_the_models_own_distribution_is_reported(table: Table) -> None:
    """B52: whatever temperature and top_k are."""
    model = table({BOS: {0: 2.0, 1: 1.0, 2: 0.0}})
    stream = model.generate(
        [BOS], max_tokens=1, temperature=0.5, top_k=1, seed=3, logprobs=True, top_logprobs=3
    )
    event = next(e for e in stream if isinstance(e, mlxgen.TextEvent) and e.tokens)
    values = [entry.logprob for entry in event.top_logprobs[0]]
    assert values == pytest.approx([-0.4076, -1.4076, -2.4076], abs=1e-3)
    assert event.logprobs[0] == values[0]


SEED = """
import json, sys, mlxgen
with mlxgen.Engine() as engine, engine.load_model(sys.argv[1]) as model:
    print(json.dumps([list(model.generate([1], max_tokens=20, temperature=1.0, seed=s, ignore_eos=True)
                           .read().tokens) for s in (0, 1, 2, 2**64 - 1)]))
"""


def test_b48_seeds_in_and_across_processes(engine: mlxgen.Engine, random_llama: Path) -> None:
    """B48"""
    there: List[List[int]] = run_python(SEED, random_llama)
    assert len({tuple(tokens) for tokens in there}) == 4
    with engine.load_model(random_llama) as model:

        def draw(**options: Any) -> List[int]:
            return list(
                model.generate([1], max_tokens=20, temperature=1.0, ignore_eos=True, **options).read().tokens
            )

        assert [draw(seed=seed) for seed in (0, 1, 2, 2**64 - 1)] == there
        assert draw() != draw()


def test_b42_ids_beyond_the_vocabulary(table: Table) -> None:
    """B42: the gather would read stray memory or crash."""
    model = table(chain(b"ab"))
    with model.new_cache() as cache:
        for ids in ([1, VOCABULARY], [1, -1], [1, 4294967295], [1, 2147483648]):
            for call in (cache.append, model.generate):
                with pytest.raises(mlxgen.InvalidArgumentError) as caught:
                    call(ids)
                assert caught.value.detail.position == 1
        cache.append([VOCABULARY - 1])
    assert model.generate([BOS]).read().text == "ab"


def test_b148_no_tokens_to_start_from(table: Table) -> None:
    """B148"""
    model = table(chain(b"ab"))
    with pytest.raises(mlxgen.InvalidArgumentError):
        model.generate([])
    with pytest.raises(mlxgen.InvalidArgumentError):
        model.generate("")  # this tokenizer adds nothing to an empty text
    assert model.generate([BOS]).read().text == "ab"
    with pytest.raises(mlxgen.InvalidArgumentError):
        model.chat([])
    assert model.chat([{"role": "user", "content": ""}], max_tokens=1).read().tokens
    with model.new_cache() as cache:
        cache.append([5, BOS])
        # All of the prompt is cached: its last token is read again.
        done = model.generate([5, BOS], cache=cache).read()
        assert (done.text, done.end.usage.reused_tokens) == ("ab", 1)


def test_b150_the_context_limit(engine: mlxgen.Engine, tmp_path: Path) -> None:
    """B150"""
    folder = write_table_model(
        tmp_path / "m", {BOS: {65: 5.0}, 65: {66: 5.0}, 66: {65: 5.0}}, max_position_embeddings=32
    )
    with engine.load_model(folder) as model:
        assert model.info.context_limit == 32
        with pytest.raises(mlxgen.ContextFullError):
            model.generate([BOS] * 33)
        done = model.generate([BOS] * 30, max_tokens=10).read()
        assert done.end.reason == EndReason.CONTEXT_FULL and 2 <= len(done.tokens) <= 3
    with engine.load_model(folder, context_limit=16) as model:
        with pytest.raises(mlxgen.ContextFullError):
            model.generate([BOS] * 17)
        assert model.generate([BOS] * 10).read().end.reason == EndReason.CONTEXT_FULL
        with model.new_cache() as cache:
            with pytest.raises(mlxgen.ContextFullError):
                cache.append([BOS] * 17)
            assert len(cache) == 0


def test_b139_bad_models_and_failing_work_leave_the_process_alive(
    engine: mlxgen.Engine, tmp_path: Path
) -> None:
    """B139: each failure is an error with a readable message; the next call works."""
    good = write_table_model(tmp_path / "good", chain(b"ok"))

    def changed(name: str, **config: Any) -> Path:
        folder = write_table_model(tmp_path / name, chain(b"ok"))
        known: Dict[str, Any] = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**known, **config}))
        return folder

    torn = changed("torn")
    data = (torn / "model.safetensors").read_bytes()
    (torn / "model.safetensors").write_bytes(data[: len(data) // 2])
    no_json = changed("no-json")
    (no_json / "config.json").write_text("{")
    empty = tmp_path / "empty"
    empty.mkdir()
    bad = [
        (changed("heads", num_attention_heads=5), mlxgen.InvalidModelError),
        (changed("kv-heads", num_key_value_heads=3), mlxgen.InvalidModelError),
        (changed("hidden", hidden_size=64), mlxgen.InvalidModelError),
        (changed("layers", num_hidden_layers=9), mlxgen.InvalidModelError),
        (changed("vocabulary", vocab_size=2**31), mlxgen.InvalidModelError),
        (changed("family", model_type="no such family"), mlxgen.UnsupportedError),
        (torn, mlxgen.InvalidModelError),
        (no_json, mlxgen.InvalidModelError),
        (empty, mlxgen.NotFoundError),
        (tmp_path / "absent", mlxgen.NotFoundError),
    ]
    for folder, kind in bad:
        with pytest.raises(kind) as caught:
            engine.load_model(folder)
        assert len(str(caught.value)) > 10
        assert caught.value.detail.file is not None, folder
        with engine.load_model(good) as model:
            assert model.generate([BOS]).read().text == "ok"


def test_b142_threads(engine: mlxgen.Engine, random_llama: Path) -> None:
    """B142: 2 and 4 threads on one model and on their own; each result equals its single run."""
    import threading

    prompts = [[number, number + 3, 7] for number in range(4)]
    with engine.load_model(random_llama) as shared:

        def tokens(model: mlxgen.Model, ids: List[int]) -> Any:
            return model.generate(ids, max_tokens=24, ignore_eos=True).read().tokens

        expected = [tokens(shared, ids) for ids in prompts]
        wrong: List[Any] = []

        def on_shared(number: int) -> None:
            for _ in range(25):
                if tokens(shared, prompts[number]) != expected[number]:
                    wrong.append(number)

        def on_own(number: int) -> None:
            for _ in range(5):
                with engine.load_model(random_llama) as own:
                    if tokens(own, prompts[number]) != expected[number]:
                        wrong.append(number)

        for target, count in ((on_shared, 2), (on_shared, 4), (on_own, 2), (on_own, 4)):
            threads = [threading.Thread(target=target, args=(number,)) for number in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not wrong
