"""`docs/models.md`: which families were compared, written by a run of the comparisons themselves.

`MLXGEN_MODELS_TABLE=docs/models.md pytest` with `parity/test_families.py`, `test_families_fast.py`,
`test_family_schemes.py` and `test_family_schemes_fast.py` writes it. A model without all comparisons of the first two
gets no row; its row names the schemes of caches of which all comparisons passed.
"""

from __future__ import annotations

from typing import Dict, List, Set

from .families import CHUNKS, DTYPES, FAMILIES, LONG, PROMPT_SIZES, WINDOW

#: The tests that compare a scheme of caches, `exact` and `fast`.
SCHEMES: Dict[str, Set[str]] = {
    "affine": {
        "test_quantised_keys_and_values_equal_mlx_lm",
        "test_scores_are_those_of_rounded_keys_and_values",
        "test_nothing_depends_on_how_the_tokens_came",
    },
    "TurboQuant": {
        "test_codes_are_those_of_rounded_keys_and_values",
        "test_scores_are_those_of_rounded_keys_and_values",
        "test_nothing_depends_on_how_the_tokens_came",
    },
    "window": {
        "test_windows_equal_mlx_lm_and_pages_equal_plain",
        "test_a_window_with_kept_tokens_is_that_of_exact",
        "test_nothing_depends_on_how_the_tokens_came",
    },
    "pages": {
        "test_windows_equal_mlx_lm_and_pages_equal_plain",
        "test_pages_change_no_bit_of_streams_and_scores",
        "test_nothing_depends_on_how_the_tokens_came",
    },
}
SCHEME_TESTS: Set[str] = set().union(*SCHEMES.values())

HEAD = f"""# Models

Written by the comparisons in `tests/parity` (`make models-table`); do not edit.

Each row is a tiny random model of a family, made by mlx-lm 0.32.2. *exact*: scores equal to mlx-lm's bit for bit for
prompts of {", ".join(map(str, PROMPT_SIZES))} tokens, read in chunks of {" and ".join(map(str, CHUNKS))} (windows have
{WINDOW} tokens), and {LONG} greedy tokens with at least 20 distinct ids. *fast*: float32 activations and kernels of our
own, within 0.0001 of the greatest score, and the same bits however the prompt is cut. *caches*: the schemes that were
compared under both (`tests/parity/test_family_schemes.py`, `test_family_schemes_fast.py`): `exact`, affine groups and
windows bit for bit with mlx-lm or, where it refuses them, its parts, pages with the same scheme without them, TurboQuant
codes by scores over keys and values that the reference rounds; `fast`, by such scores, and the same bits however the
tokens came.

| `model_type` | what is special | exact | fast | caches |
|---|---|---|---|---|
"""

FOOT = """
Where the reference leaves out what a file asks for, the file decides: sliding windows of `mistral`, `phi3`,
`starcoder2` and `gemma2`, the activation of `starcoder2`, and LongRoPE's list for short sequences (tests:
`tests/parity/test_family_cases.py`). `rope_parameters`, `rope_traditional`, `layer_types` and the scales of `longrope` are obeyed
in every family, also where mlx-lm does not read them. A rotation that depends on the length (`dynamic`, `longrope`) takes,
under `fast`, the length that the whole prompt reaches, and under `exact`, as in mlx-lm, that of each forward; keys that a cache
holds stay as they were turned. Layers that slide keep their window alone; where mlx-lm keeps everything behind a mask
(`ministral3` inside `mistral3`, `smollm3` with windows), the last bits may differ.

A field that is missing, or `null`, has the value that mlx-lm takes for a missing one (`tests/parity/test_missing_fields.py` leaves
out each that a family reads); where mlx-lm wants to be told, that of the model's published code. mlx-lm takes an explicit
`null` in `tie_word_embeddings` for false. Numbers that only Python knows (`NaN`, `Infinity`, or `{"__float__": "NaN"}`) are
refused where they are used, with the field, and do no harm elsewhere.

The text models inside `gemma3` and `mistral3` files are read by the same descriptions; their other parts are ignored.

GGUF files are read of the architectures llama, qwen2, qwen3, gemma2, gemma3, phi3, smollm3, olmo2, granite, cohere2, glm4,
exaone4, seed_oss, ernie4_5, nemotron, minicpm, starcoder2 and stablelm: `tests/parity/test_gguf_families.py` writes tiny models as
such files and finds the scores of their folders, bit for bit.
"""

#: Fields that do not distinguish a family.
PLAIN = {"model_type", "head_dim", "tie_word_embeddings", "rope_theta", "max_position_embeddings", "hidden_act"}


def special(name: str) -> str:
    fields = {key: value for key, value in FAMILIES[name].items() if key not in PLAIN and value is not None}
    return ", ".join(f"`{key}`" for key in fields) or "–"


def rows(passed: Dict[str, Set[str]]) -> List[str]:
    """`passed`: by name of a model the types in which it is exact, `fast`, and tests of `SCHEMES`."""
    found = []
    for name, fields in FAMILIES.items():
        types = [dtype for dtype in DTYPES[name] if dtype in passed.get(name, set())]
        if types == DTYPES[name] and "fast" in passed[name]:
            schemes = ", ".join(scheme for scheme, tests in SCHEMES.items() if tests <= passed[name]) or "–"
            found.append(f"| `{fields['model_type']}` | {special(name)} | {', '.join(types)} | yes | {schemes} |")
    return found


def text(passed: Dict[str, Set[str]]) -> str:
    return HEAD + "\n".join(rows(passed)) + "\n" + FOOT


class Outcomes:
    """Collects what passed and what did not."""

    def __init__(self) -> None:
        self._seen: Dict[str, Dict[str, bool]] = {}

    def add(self, file: str, test: str, parameters: Dict[str, object], passed: bool) -> None:
        name = parameters.get("name")
        if name not in FAMILIES:
            return
        what = {"test_families.py": str(parameters.get("dtype")), "test_families_fast.py": "fast"}.get(file)
        if file in ("test_family_schemes.py", "test_family_schemes_fast.py") and test in SCHEME_TESTS:
            what = test
        if what:
            before = self._seen.setdefault(str(name), {})
            before[what] = before.get(what, True) and passed

    def passed(self) -> Dict[str, Set[str]]:
        return {name: {what for what, good in seen.items() if good} for name, seen in self._seen.items()}


