"""The programs in the README are the ones that are built and run."""

from __future__ import annotations

import re

import pytest

from support.paths import ROOT


@pytest.mark.parametrize(
    "language, source",
    [("c", "examples/c/minimal.c"), ("swift", "examples/swift/chat/Sources/minimal/main.swift")],
)
def test_the_readme_quotes_the_tested_program(language: str, source: str) -> None:
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", readme, re.M | re.S)
    assert (ROOT / source).read_text() in blocks
