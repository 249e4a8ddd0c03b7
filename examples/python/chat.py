"""Answers a question, or holds a conversation, with a language model.

    PYTHONPATH=bindings/python python examples/python/chat.py [-v] MODEL [PROMPT]

MODEL is a folder (safetensors) or a .gguf file. Without PROMPT it reads one question a line and
keeps the conversation in a cache set, so that each turn computes only what is new. The answer goes
to standard output, everything else to standard error. Ctrl-C stops the answer.
"""

from __future__ import annotations

import argparse
import sys
from typing import Dict, List

import mlxgen


def answer(
    model: mlxgen.Model,
    messages: List[Dict[str, str]],
    cache: mlxgen.CacheSet,
    options: argparse.Namespace,
) -> str:
    """Streams the answer to standard output and returns it."""
    said: List[str] = []
    with model.chat(
        messages,
        cache=cache,
        temperature=options.temperature,
        seed=options.seed,
        max_tokens=options.tokens,
    ) as stream:
        try:
            for event in stream:
                if isinstance(event, mlxgen.TextEvent):
                    said.append(event.text)
                    print(event.text, end="", flush=True)
                elif isinstance(event, mlxgen.EndEvent) and options.verbose:
                    usage, timings = event.usage, event.timings
                    print(
                        f"\n{usage.prompt_tokens} prompt tokens ({usage.reused_tokens} reused), "
                        f"first token after {timings.first_token:.2f} s, "
                        f"{usage.generated_tokens} tokens in {timings.decode:.2f} s",
                        file=sys.stderr,
                        end="",
                    )
        except KeyboardInterrupt:  # leaving the block closes the stream
            print(" [stopped]", end="")
    print()
    return "".join(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("prompt", nargs="?")
    parser.add_argument("-n", "--tokens", type=int, default=512, help="most tokens of an answer")
    parser.add_argument("-t", "--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("-r", "--seed", type=int, help="makes sampling repeatable")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell what it took")
    options = parser.parse_args()
    try:
        with mlxgen.Engine() as engine, engine.load_model(options.model) as model:
            with model.new_cache() as cache:
                if options.prompt is not None:
                    answer(model, [{"role": "user", "content": options.prompt}], cache, options)
                    return 0
                messages: List[Dict[str, str]] = []
                for line in sys.stdin:
                    messages.append({"role": "user", "content": line.rstrip("\n")})
                    text = answer(model, messages, cache, options)
                    messages.append({"role": "assistant", "content": text})
    except mlxgen.MlxgenError as error:
        print(f"chat: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
