"""Docstrings of the client as Markdown: the lines `name: meaning` of a contract become a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["Contracts", "markdown"]

NAME = re.compile(r"^((?:\*{0,2}\w+)(?:, \*{0,2}\w+)*):\s+(\S.*)$")


class Contracts(griffe.Extension):
    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """`text`, whose lines `name: meaning`, with indented lines that go on, are entries of a list."""
    lines: list[str] = []
    in_list = False
    for line in text.split("\n"):
        found = NAME.match(line)
        if found is not None and (in_list or not (lines and lines[-1])):  # not in the middle of a paragraph
            if not in_list:
                lines.append("")
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            lines.append(f"* {names}: {found[2]}")
            in_list = True
        elif in_list and line.startswith(" "):
            lines.append(f"    {line.strip()}")
        else:
            if in_list and line:
                lines.append("")
            in_list = in_list and not line
            lines.append(line)
    return "\n".join(lines)
