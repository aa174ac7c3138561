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

AHEAD = 4
"""Rows of the table that are fetched before they are written."""

PIECES = (64, 16, 4, 1)
"""Bytes in which a row is copied: as many of each as fit, the largest first."""


@functools.cache
def row_writer() -> Callable[[int, int, int, int, int], None]:
    """``write(table, rows, values, count, row_bytes)``: row ``rows[i]`` of the table becomes row i of the values.

    Addresses of a table, of int64 row numbers within it, and of `count` rows without gaps.
    """
    module = Module()
    module.functions.append(_function())
    library = load(*module.texts(1))
    names = ("table", "rows", "values", "count", "row_bytes")
    write: Callable[[int, int, int, int, int], None] = library.function(
        "write_rows", *(ctypes.c_void_p if n in names[:3] else ctypes.c_int64 for n in names), returns=None
    )
    return write


def _function() -> Function:
    f = Function(
        "write_rows", [(n, "ptr") for n in ("table", "rows", "values")] + [("count", "int64"), ("row", "int64")]
    )
    size = f.param("row")
    with f.loop(I64(0), f.param("count")) as i:
        place = f.load(f.at(f.param("rows"), i, "int64"), "int64")
        later = f.intrinsic("smin", f.binary("add", i, I64(AHEAD)), f.binary("sub", f.param("count"), I64(1)))
        after = f.load(f.at(f.param("rows"), later, "int64"), "int64")
        begin = f.binary("mul", after, size)
        with f.loop(I64(0), f.intrinsic("smin", size, I64(MOST_BYTES)), 64) as line:
            fetch(f, f.param("table"), f.binary("add", begin, line), "uint8", 1, writes=True)
        target = f.at(f.param("table"), f.binary("mul", place, size), "uint8")
        source = f.at(f.param("values"), f.binary("mul", i, size), "uint8")
        start: IRValue = I64(0)
        for width in PIECES:
            end = f.binary("and", size, I64(-width))
            with f.loop(start, end, width) as at:
                f.store(f.load(f.at(source, at, "uint8"), "uint8", width), f.at(target, at, "uint8"))
            start = end
    return f
