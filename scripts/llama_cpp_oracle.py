#!/usr/bin/env python3
"""Writes tests/data/llama_cpp_smollm2.json: what llama.cpp continues prompts with, greedily.

Usage: llama_cpp_oracle.py MODEL.gguf (in an environment with benches/peers.txt)

For each prompt: its ids, and for each of STEPS steps the chosen id and by how much its score is above the next one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Dict, List

import llama_cpp
import numpy as np

STEPS = 32
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "The three primary colours are",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "Question: What is the largest planet of the solar system?\nAnswer:",
    "1, 2, 3, 4, 5, 6,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The main difference between a lake and a river is",
    "In 1969, the first people who walked on the Moon",
]


def continued(llama: llama_cpp.Llama, prompt: str) -> Dict[str, Any]:
    ids = llama.tokenize(prompt.encode("utf-8"), add_bos=False, special=False)
    llama.reset()
    llama.eval(ids)
    tokens: List[int] = []
    leads: List[float] = []
    for _ in range(STEPS):
        scores = np.array(llama.scores[llama.n_tokens - 1])
        best, next_best = np.argsort(-scores)[:2]
        tokens.append(int(best))
        leads.append(round(float(scores[best] - scores[next_best]), 4))
        llama.eval([int(best)])
    return {"prompt": prompt, "ids": ids, "tokens": tokens, "leads": leads}


def main() -> None:
    llama = llama_cpp.Llama(sys.argv[1], n_ctx=256, logits_all=True, n_threads=2, verbose=False)
    found = [continued(llama, prompt) for prompt in PROMPTS]
    target = Path(__file__).resolve().parents[1] / "tests" / "data" / "llama_cpp_smollm2.json"
    lines = ",\n".join(json.dumps(case) for case in found)
    version = json.dumps(f"llama-cpp-python {llama_cpp.__version__}")
    target.write_text(f'{{"made_with": {version}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
