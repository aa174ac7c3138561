"""The table of ops that the client knows, and hints for names that it does not have."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from backpass_client.foreign_names import FOREIGN_NAMES

__all__ = ["hint_for", "op_table"]

LIKENESS = 0.75
"""Least similarity of a name that is suggested: "lax" does not mean reduce_max."""


@cache
def op_table() -> dict[str, Any]:
    """The ops and initializers that the client knows, which `make catalogue` writes from their declarations."""
    table: dict[str, Any] = json.loads(files("backpass_client").joinpath("builder", "ops.json").read_text())
    return table


def hint_for(name: str, others: Iterable[str] = ()) -> str:
    """The meaning of `name`, of another library, or else the ops and `others` of a similar name; may be empty."""
    if _plain(name) in FOREIGN_NAMES:
        return FOREIGN_NAMES[_plain(name)]
    foreign = op_table()["other_names"]
    forms = {_plain(each): each for each in (*op_table()["ops"], *others)}
    if _plain(name) in forms:
        return f"did you mean {forms[_plain(name)]}?"
    found = difflib.get_close_matches(_plain(name), [*foreign, *forms], 3, LIKENESS)
    if found and found[0] in foreign:
        return str(foreign[found[0]]).removeprefix("there is no such op: ")
    near = [forms[each] for each in found if each in forms]
    return f"did you mean {' or '.join(near)}?" if near else ""


def _plain(name: str) -> str:
    """`name` without case and separators."""
    return name.lower().replace("_", "")
