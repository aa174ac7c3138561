"""Reading of a program: JSON with open scopes in, closed blocks out.

In the JSON form a program is a flat list of blocks. An op names its inner blocks by index, and an inner block may read
and overwrite the variables around it. Closing the scopes removes this:

* an outer variable that an inner block reads becomes a *captured* operand;
* an outer variable that it overwrites becomes *loop-carried* (in a branch: *merged*), an operand and a result;
* each further write to a name makes a new version of it, such as ``h@VER@1``.

A variable that an inner block declares is local to it, even if an outer variable has the same name.
"""

from __future__ import annotations

from typing import Any

from core.ir import Program
from core.ir.recursion import headroom
from core.wire import control_flow, derivatives, functions, recurrence, row_branches, safe_where  # noqa: F401  (declare the constructs)
from core.wire.document import Limits, parse
from core.wire.problems import Problems
from core.wire.reader import Reader
from core.wire.scope import Scopes
from core.wire.site import KEY

__all__ = ["KEY", "read"]


def read(document: Any, limits: Limits | None = None, for_test: bool = False) -> Program:
    """The closed program of a JSON document.

    for_test: set `is_test` in ops that behave differently in training, so that derivatives inside of the program are
              those of the test.
    Raises InvalidProgram with *all* problems, each with a stable code, a location and a JSON pointer.
    """
    limits = limits or Limits()
    with headroom():
        raw = parse(document, limits)
        problems = Problems(limits.max_problems)
        scopes = Scopes(raw, problems, limits)
        program = Reader(raw, scopes, problems, limits, for_test).program()
    problems.raise_if_any()
    return program
