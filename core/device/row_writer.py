"""A kernel that writes rows of a table to their places: the end of a step that has computed new rows."""

from __future__ import annotations

import math

from core.codegen.cpus import generating_for
from core.codegen.llvm import Function
from core.codegen.module import Module
from core.device.gpu import GPU
from core.device.launches import DeviceCode, Launch
from core.device.threads import Threads

__all__ = ["row_writer_code"]

WORDS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""Bytes -> dtype in which a row is copied."""


def row_writer_code(row_bytes: int, blocks: int, block: int) -> DeviceCode:
    """``write_rows(table, rows, values, count)`` (see `core.runtime.backend.Backend.row_writer`), as one launch."""
    width = math.gcd(row_bytes, max(WORDS)) if row_bytes else 1
    words, dtype = row_bytes // width, WORDS[width]
    threads = Threads(blocks, block)
    with generating_for(GPU):
        f = Function("write_rows", [(n, "ptr") for n in ("table", "rows", "values", "count")], noalias=False)
        count = f.load(f.param("count"), "int64")
        with f.loop(threads.number(f), f.op(f"mul nsw {count}, {words}", "int64"), threads.total) as at:
            row, column = f.op(f"udiv {at}, {max(words, 1)}", "int64"), f.op(f"urem {at}, {max(words, 1)}", "int64")
            place = f.load(f.at(f.param("rows"), row, "int64"), "int64")
            target = f.binary("add", f.op(f"mul nsw {place}, {words}", "int64"), column)
            f.store(f.load(f.at(f.param("values"), at, dtype), dtype), f.at(f.param("table"), target, dtype))
        module = Module()
        module.functions.append(f)
        text = module.text()
    return DeviceCode(text, (Launch(f.name, blocks, block),), 0)
