"""Answers requests, one JSON object a line, on standard input and output.

Started by `parity.reference_process.Reference`. Whatever libraries print goes to standard error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import _get_classes, load_model

from . import oracle, rounded, tiny


class Server:
    def __init__(self) -> None:
        self._loaded = ""
        self._model: Any = None

    def model(self, folder: str, perturb: str = "") -> Any:
        """The model in `folder`; the last one stays loaded. `perturb` names a weight of which one
        element is changed to minus twice itself."""
        wanted = f"{folder} {perturb}"
        if wanted != self._loaded:
            self._model, _ = load_model(Path(folder))
            if perturb:
                weight = dict(tree_flatten(self._model.parameters()))[perturb]
                changed = np.array(weight.astype(mx.float32))
                changed.flat[3] *= -2
                changed = mx.array(changed).astype(weight.dtype)
                self._model.update(tree_unflatten([(perturb, changed)]))
            self._loaded = wanted
        return self._model

    def fields(self, folder: str) -> List[str]:
        """The fields of a configuration that mlx-lm's model reads."""
        config = json.loads((Path(folder) / "config.json").read_text())
        _, arguments = _get_classes(config)
        return [field.name for field in dataclasses.fields(arguments)]

    def make_tiny(self, folder: str, case: Dict[str, Any], prompts: Any) -> Any:
        return tiny.make(Path(folder), case, prompts)

    def float32_of(self, folder: str, out: str) -> None:
        """Writes the model in `folder` to the folder `out`, with all weights as the float32 that they stand for."""
        tiny.write_float32(self.model(folder), Path(folder), Path(out))

    def run(
        self,
        folder: str,
        prompt: Any,
        chunk: int,
        count: int,
        out: str,
        perturb: str = "",
        scheme: Any = None,
    ) -> Any:
        """Greedy tokens, and in the file `out` the scores of each of their steps."""
        model = self.model(folder, perturb)
        tokens, scores = oracle.run(model, prompt, chunk, count, scheme)
        np.save(out, scores)
        return tokens

    def embedded(self, folder: str, parts: Any, chunk: int, count: int, out: str) -> Any:
        """As `run` behind parts that are ids or rows of embeddings."""
        tokens, scores = oracle.embedded(self.model(folder), parts, chunk, count)
        np.save(out, scores)
        return tokens

    def forced(self, folder: str, tokens: Any, out: str) -> None:
        """In the file `out` the scores after each of the tokens, read in one forward."""
        scores = self.model(folder)(mx.array([tokens]))[0]
        np.save(out, np.array(scores.astype(mx.float32)))

    def inputs_rounded(self, folder: str, tokens: Any, out: str) -> None:
        """As `forced`, as llama.cpp's formats round."""
        wanted = f"{folder} rounded"
        if wanted != self._loaded:
            self._model, _ = load_model(Path(folder))
            rounded.round_inputs(self._model)
            self._loaded = wanted
        np.save(out, rounded.scores(self._model, tokens))

    def rounded(self, folder: str, tokens: Any, forwards: Any, form: Any, first: int, out: str) -> None:
        """In the file `out`, `oracle.rounded` from the scores after token `first` on."""
        np.save(out, oracle.rounded(self.model(folder), tokens, forwards, form)[first:])

    def sampled(self, folder: str, prompt: Any, options: Any, seed: int, count: int) -> Any:
        return oracle.sampled(self.model(folder), prompt, options, seed, count)

    def first_tokens(self, folder: str, prompt: Any, options: Any, seeds: Any) -> Any:
        return oracle.first_tokens(self.model(folder), prompt, options, seeds)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    server = Server()
    answers.write(json.dumps({"ready": True, "mlx": mx.__version__}) + "\n")
    answers.flush()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            result = getattr(server, request.pop("op"))(**request)
            answer = {"result": result}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
