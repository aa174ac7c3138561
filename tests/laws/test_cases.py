"""The numbered cases of docs/semantics.md: the name of the test of a case begins with its number."""

from __future__ import annotations

import ast
import re

from tests.paths import ROOT

CASES = 95
NUMBERS = re.compile(r"test_(\d+(?:_and_\d+)*)_")


def numbered() -> dict[int, list[str]]:
    """Number of the case -> its tests, as ``file::name``."""
    found: dict[int, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (m := NUMBERS.match(node.name)):
                for number in m[1].split("_and_"):
                    found.setdefault(int(number), []).append(f"{path.relative_to(ROOT / 'tests')}::{node.name}")
    return found


def test_every_case_has_a_test_and_every_number_is_a_case():
    assert sorted(numbered()) == list(range(1, CASES + 1))
