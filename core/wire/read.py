"""JSON programs in, closed blocks out. This is where open scopes end.

On the wire a program is a flat list of blocks; an op names its inner blocks by index, and an inner block may read and
overwrite the variables around it. In the core there is none of that:

* a variable of an outer block that an inner one reads becomes a *captured* operand;
* one that it overwrites becomes *loop-carried* (or, in a branch, *merged*): an operand and a result;
* every further write to a name makes a new version of it, ``h@VER@1``.

A variable that an inner block declares itself is its own, whatever is visible outside.
"""

from __future__ import annotations

from typing import Any

from core.ir import Program
from core.ir.recursion import headroom
from core.wire import choice, control, functions, recurrence, rows  # noqa: F401  (declare the constructs)
from core.wire.document import Limits, Problems, parse
from core.wire.reader import Reader
from core.wire.scope import Scopes
from core.wire.site import KEY

__all__ = ["KEY", "read"]


def read(document: Any, limits: Limits | None = None) -> Program:
    """The closed program for a JSON document.

    Raises InvalidProgram with *all* problems found, each with a stable code, a place and a JSON pointer.
    """
    limits = limits or Limits()
    with headroom():
        raw = parse(document, limits)
        problems = Problems(limits.max_problems)
        scopes = Scopes(raw, problems, limits)
        program = Reader(raw, scopes, problems, limits).program()
    problems.raise_if_any()
    return program
