"""The names of all tests, which documents and laws refer to."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.paths import ROOT

__all__ = ["files_of_tests"]


@cache
def files_of_tests() -> dict[str, list[Path]]:
    """Name of a test -> the files that define it, in order. By their text: to parse all tests takes seconds."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.M):
            found.setdefault(name, []).append(path)
    return found
