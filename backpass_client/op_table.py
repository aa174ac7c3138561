"""The table of ops that the client knows, and hints for names that it does not have."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["hint_for", "op_table"]

IN_PYTHON = {
    "array": "did you mean constant?",
    "asarray": "did you mean constant?",
    "bfloat16": "did you mean bf16?",
    "float": "did you mean f32?",
    "float16": "did you mean f16?",
    "float32": "did you mean f32?",
    "float64": "did you mean f64?",
    "foriloop": "did you mean while_loop or scan?",
    "int16": "did you mean i16?",
    "int32": "did you mean i32?",
    "int64": "did you mean i64?",
    "int8": "did you mean i8?",
    "jit": "did you mean program?",
    "linalg": "its functions are ops of this package: solve, inverse, svd, norm, ...",
    "module": "did you mean nn.Layer?",
    "tensor": "did you mean constant?",
    "uint8": "did you mean u8?",
    "while": "did you mean while_loop?",
    "whileloop": "did you mean while_loop?",
}
"""Names of other libraries, without case and separators -> the name in this package, where that is not an op."""


@cache
def op_table() -> dict[str, Any]:
    """The ops and initializers that the client knows, which `make catalogue` writes from their declarations."""
    table: dict[str, Any] = json.loads(files("backpass_client").joinpath("builder", "ops.json").read_text())
    return table


def hint_for(name: str, others: Iterable[str] = ()) -> str:
    """The meaning of `name`, of another library, or else the ops and `others` of a similar name; may be empty."""
    if _plain(name) in IN_PYTHON:
        return IN_PYTHON[_plain(name)]
    foreign = op_table()["other_names"]
    forms = {_plain(each): each for each in (*op_table()["ops"], *others)}
    if _plain(name) in forms:
        return f"did you mean {forms[_plain(name)]}?"
    found = difflib.get_close_matches(_plain(name), [*foreign, *forms], 3)
    if found and found[0] in foreign:
        return str(foreign[found[0]]).removeprefix("there is no such op: ")
    near = [forms[each] for each in found if each in forms]
    return f"did you mean {' or '.join(near)}?" if near else ""


def _plain(name: str) -> str:
    """`name` without case and separators."""
    return name.lower().replace("_", "")
