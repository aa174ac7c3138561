"""Quotes of CSV files: the parser reads a file with a wrong quote as other rows than its author wrote.

A quote that is not closed makes one cell of all the rest of the file, and one that is closed by the next cell's quote
makes one cell of the rows in between. The parser reports neither.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from service.datasets.mistakes import refused

__all__ = ["check_quotes"]

PART = 2**20
QUOTED = rb'"(?:[^"]++|"")*+"'


def check_quotes(path: Path, delimiter: str, longest: int) -> None:
    """Raises HttpProblem 422 if a quote that begins a cell is not closed, or if text follows the closing one.

    longest: bytes of the longest cell that the parser takes. A longer one is refused, here or by the parser.
    """
    separators = re.escape(delimiter.encode()) + rb"\r\n"
    spaces = rb"[" + b" \t".replace(delimiter.encode(), b"") + rb"]*+"
    cell = rb"(?:" + QUOTED + spaces + rb'|(?!")[^' + separators + rb"]*+)"
    cells = re.compile(rb"(?:" + cell + rb"[" + separators + rb"])*+")
    closed = re.compile(QUOTED + spaces)
    at, rest = 0, b""  # the first byte of `rest` begins a cell and has the position `at`
    with path.open("rb") as file:
        if file.read(3) == codecs.BOM_UTF8:
            at = 3
        file.seek(at)
        while True:
            part = file.read(PART)
            rest += part
            if b'"' in rest:
                end = cells.match(rest).end()  # type: ignore[union-attr]  # it matches nothing, too
            else:
                end = 1 + max(map(rest.rfind, (delimiter.encode(), b"\n", b"\r")))
            at, rest = at + end, rest[end:]
            if rest.startswith(b'"'):
                whole = closed.match(rest)
                if whole is not None and whole.end() < len(rest):
                    text = "text after the closing quote of a cell: inside of quotes, a quote is written twice"
                    raise refused(f"line {_line(path, at)}: {text}")
                if whole is None and (not part or len(rest) > longest):
                    raise refused(f"line {_line(path, at)}: a quote that begins a cell is not closed")
            if not part or len(rest) > longest:
                return


def _line(path: Path, position: int) -> int:
    """The number of the line with this byte."""
    lines, others, left = 0, 0, position
    with path.open("rb") as file:
        while left and (part := file.read(min(left, PART))):
            lines, others, left = lines + part.count(b"\n"), others + part.count(b"\r"), left - len(part)
    return 1 + (lines or others)
