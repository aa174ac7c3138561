"""The page about the builder: its examples run and print what it shows, and it names every public function."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any

import backpass_client as bp
from backpass_client import builder
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "builder.md").read_text()
INTERNAL = {"Dtype", "Function", "explain"}


def examples() -> list[tuple[str, str]]:
    """(Python code, the output that the page shows after it, if it shows one)."""
    blocks = re.findall(r"^```(python)?\n(.*?)^```$", PAGE, re.M | re.S)
    following = [*blocks[1:], ("python", "")]
    return [
        (code, "" if next_kind else shown)
        for (kind, code), (next_kind, shown) in zip(blocks, following, strict=True)
        if kind
    ]


def test_the_examples_of_the_page_print_what_it_shows(url: str) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    for code, shown in examples():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code.replace("http://127.0.0.1:8080", url), namespace)  # noqa: S102
        assert printed.getvalue().split() == shown.split(), code


def test_the_page_names_every_public_function_and_layer() -> None:
    for name in {*builder.__all__, *bp.nn.__all__} - INTERNAL:
        assert re.search(rf"\b{name}\b", PAGE), name
