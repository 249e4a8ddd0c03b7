#!/usr/bin/env python3
"""Writes what transformers and jinja2 print for a suite of templates.

The suite lies in scripts/chat_suite/: snippets.txt holds one expression or small template a line
(`\\n` stands for a line break), *.jinja are whole chat templates, conversations.json what they are
given. The result, tests/data/chat_oracle.json, is what tests/text_chat_oracle.rs compares with.

Needs transformers 5.24 and jinja2 3.1.6:

    python scripts/chat_oracle.py
"""

import json
import pathlib
import sys

import jinja2
import transformers
from transformers.tokenization_utils_base import _normalize_chat_messages
from transformers.utils.chat_template_utils import render_jinja_template

ROOT = pathlib.Path(__file__).resolve().parent
SUITE = ROOT / "chat_suite"
OUT = ROOT.parent / "tests" / "data" / "chat_oracle.json"

SPECIAL = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}


def render(template, messages, tools=None, documents=None, add=False, carry_on=False, extra=None):
    """The text, or None where Python refuses."""
    try:
        rendered, _ = render_jinja_template(
            conversations=[_normalize_chat_messages(messages)],
            tools=tools,
            documents=documents,
            chat_template=template,
            add_generation_prompt=add,
            continue_final_message=carry_on,
            **{**SPECIAL, **(extra or {})},
        )
        return rendered[0]
    except Exception as fault:  # every refusal counts the same
        print(f"  refused: {template[:60]!r}: {type(fault).__name__}: {fault}"[:200], file=sys.stderr)
        return None


def snippets(shared):
    for line in (SUITE / "snippets.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("## "):
            template = line.replace("\\n", "\n")
            yield {
                "name": line,
                "template": template,
                "expected": render(template, shared["messages"], extra=shared["extra"]),
            }


def conversations(cases):
    for path in sorted(SUITE.glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        for case in cases:
            yield {
                "template": path.stem,
                "case": case["name"],
                "expected": render(
                    template,
                    case["messages"],
                    tools=case.get("tools"),
                    documents=case.get("documents"),
                    add=case.get("add_generation_prompt", False),
                    carry_on=case.get("continue_final_message", False),
                    extra=case.get("extra"),
                ),
            }


def main():
    given = json.loads((SUITE / "conversations.json").read_text(encoding="utf-8"))
    result = {
        "made_with": {"transformers": transformers.__version__, "jinja2": jinja2.__version__},
        "shared": given["shared"],
        "templates": {path.stem: path.read_text(encoding="utf-8") for path in sorted(SUITE.glob("*.jinja"))},
        "cases": {case["name"]: case for case in given["cases"]},
        "snippets": list(snippets(given["shared"])),
        "conversations": list(conversations(given["cases"])),
    }
    OUT.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    refused = sum(entry["expected"] is None for entry in result["snippets"] + result["conversations"])
    print(f"{len(result['snippets'])} snippets, {len(result['conversations'])} conversations, {refused} refused")


if __name__ == "__main__":
    main()
