"""The gradients of an update: checked, and told apart into whole gradients and rows of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.ir import Program, TensorType
from core.ir.errors import escaped
from core.ir.suggest import near
from service.worker.given import FLAWED, Mistakes, check_row_numbers

__all__ = ["given_gradients"]

GRADIENT, ROWS = "grad/", "rows/"

Arrays = dict[str, np.ndarray]


def given_gradients(
    program: Program, tensors: Mapping[str, np.ndarray], args: Mapping[str, Any]
) -> tuple[Arrays, Arrays]:
    """(parameter -> its gradient or the values of some rows of it, parameter -> numbers of these rows).

    tensors: ``grad/<parameter>`` or ``<parameter>``, and ``rows/<parameter>`` for a gradient that is rows.
    args:    require_finite, tables (parameter -> the shape that the client expects), flawed (see `given`).
    Raises InvalidProgram with all mistakes.
    """
    trainable = {v.name: v for v in program.parameters if v.trainable}
    mistakes = Mistakes()
    given: Arrays = {}
    rows: Arrays = {}
    flawed = set()
    for name in (*tensors, *args.get(FLAWED, ())):
        is_rows = name.startswith(ROWS) and name not in trainable
        parameter = name.removeprefix(ROWS) if is_rows else name.removeprefix(GRADIENT)
        into = rows if is_rows else given
        if name not in tensors:
            flawed.add(name)
            mistakes.flawed(name, f"{_pointer(parameter)}{'/rows' if is_rows else ''}")
        elif parameter in into:
            mistakes.add("duplicate", f"two gradients are given for {parameter!r}", _pointer(parameter))
        else:
            into[parameter] = tensors[name]
    read = {name.removeprefix(GRADIENT) for name in flawed}
    for name in (*given, *sorted(read - rows.keys() - given.keys())):
        if name not in trainable and not name.startswith(ROWS):
            message = f"the program has no trainable parameter {name!r}"
            mistakes.add("feed_unknown", message, _pointer(name), near(name, trainable))
    for name, value in given.items():
        if name not in trainable:
            continue
        if name in rows:
            _check_rows(mistakes, name, trainable[name].type, rows[name], value)
        elif f"{ROWS}{name}" not in flawed:
            mistakes.type(name, trainable[name].type, value, _pointer(name))
    for name in rows.keys() - given.keys() - read:
        mistakes.add("feed_missing", f"rows are given for {name!r}, but no values", f"{_pointer(name)}/values")
    for name, shape in args["tables"].items():
        if name in trainable and tuple(shape) != trainable[name].type.shape:
            message = f"{name!r} is {trainable[name].type}, but the request gives the shape {shape}"
            mistakes.add("feed_shape", message, f"{_pointer(name)}/shape")
    if not tensors and not flawed:
        mistakes.add("feed_missing", "an update needs at least one gradient", "/gradients")
    if not mistakes.found and args["require_finite"]:
        for name, value in given.items():
            if not bool(np.isfinite(value).all()):
                mistakes.add("not_finite", f"the gradient of {name!r} is not finite", _pointer(name))
    mistakes.raise_if_any()
    return given, rows


def _check_rows(mistakes: Mistakes, name: str, table: TensorType, rows: np.ndarray, values: np.ndarray) -> None:
    """Add the mistakes of `values` and `rows` as rows of `table`."""
    pointer = _pointer(name)
    if table.rank == 0:
        mistakes.add("feed_shape", f"{name!r} is {table} and has no rows", pointer)
        return
    before = len(mistakes.found)
    mistakes.type(f"the rows of {name}", TensorType((-1,), "int64"), rows, f"{pointer}/rows")
    if len(mistakes.found) == before:
        check_row_numbers(mistakes, rows, table.shape[0], f"{pointer}/rows")
    count = rows.shape[0] if rows.ndim else -1
    mistakes.type(name, TensorType((count, *table.shape[1:]), table.dtype), values, f"{pointer}/values")


def _pointer(name: str) -> str:
    return f"/gradients/{escaped(name)}"
