"""Machine code that writes rows of a table to their places: the end of a step that has computed new rows."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.machine import load
from core.codegen.module import Module
from core.codegen.prefetch import MOST_BYTES, fetch

__all__ = ["row_writer"]

AHEAD = 8
"""Rows of the table that are fetched before they are written."""

PIECES = (64, 32, 16, 8, 4, 2, 1)
"""Bytes in which a row is copied: as many of each as fit, the largest first."""


@functools.cache
def row_writer(row_bytes: int) -> Callable[[int, int, int, int], None]:
    """``write(table, rows, values, count)``: row ``rows[i]`` of the table becomes row i of the values.

    Addresses of a table, of int64 row numbers within it, of rows of `row_bytes` bytes without gaps, and of their
    number, an int64.
    """
    module = Module()
    module.functions.append(_function(row_bytes))
    library = load(*module.texts(1))
    addresses = (ctypes.c_void_p for _ in range(4))
    write: Callable[[int, int, int, int], None] = library.function("write_rows", *addresses, returns=None)
    return write


def _function(row_bytes: int) -> Function:
    f = Function("write_rows", [(n, "ptr") for n in ("table", "rows", "values", "count")])
    count = f.load(f.param("count"), "int64")
    last = f.binary("sub", count, I64(1))

    def place_of(i: IRValue) -> IRValue:
        return f.op(f"mul nsw {f.load(f.at(f.param('rows'), i, 'int64'), 'int64')}, {row_bytes}", "int64")

    with f.loop(I64(0), count) as i:
        later = place_of(f.intrinsic("smin", f.binary("add", i, I64(AHEAD)), last))
        fetch(f, f.param("table"), later, "uint8", min(row_bytes, MOST_BYTES), writes=True)
        target = f.at(f.param("table"), place_of(i), "uint8")
        source = f.at(f.param("values"), f.op(f"mul nsw {i}, {row_bytes}", "int64"), "uint8")

        def copy(at: IRValue, width: int) -> None:
            f.store(f.load(f.at(source, at, "uint8"), "uint8", width), f.at(target, at, "uint8"))

        start = 0
        if row_bytes > MOST_BYTES:
            start = row_bytes // PIECES[0] * PIECES[0]
            with f.loop(I64(0), I64(start), PIECES[0]) as at:
                copy(at, PIECES[0])
        for width in PIECES:
            while start + width <= row_bytes:
                copy(I64(start), width)
                start += width
    return f
