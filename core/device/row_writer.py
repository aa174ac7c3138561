"""Kernels that write rows of a table to their places: the end of a step that has computed new rows."""

from __future__ import annotations

import math
from collections.abc import Callable

from core.codegen.cpus import generating_for
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.module import Module
from core.device.gpu import GPU
from core.device.launches import PARAMETERS, DeviceCode, Launch
from core.device.threads import Threads

__all__ = ["OPERANDS", "row_updater_code", "row_writer_code", "width_of"]

WORDS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""Bytes -> dtype in which a row is copied."""


OPERANDS = ("table", "rows", "values", "count", "saved")
"""The operands of `row_updater_code`."""


def width_of(row_bytes: int) -> int:
    """Bytes that a thread copies at a time."""
    return math.gcd(row_bytes, max(WORDS)) if row_bytes else 1


def row_writer_code(row_bytes: int, blocks: int, block: int) -> DeviceCode:
    """``write_rows(table, rows, values, count)`` (see `core.runtime.backend.Backend.row_writer`), as one launch."""
    threads = Threads(blocks, block)
    with generating_for(GPU):
        f = Function("write_rows", [(n, "ptr") for n in ("table", "rows", "values", "count")], noalias=False)
        _write_rows(f, threads, row_bytes, f.param)
        return _code(f, threads)


def row_updater_code(row_bytes: int, blocks: int, block: int) -> DeviceCode:
    """``update_rows(words, ...)``: `write_rows`, before which the old rows are saved, as one launch.

    words: the addresses of `OPERANDS`. The other three parameters are not used.
    """
    threads = Threads(blocks, block)
    with generating_for(GPU):
        f = Function("update_rows", [(n, "ptr") for n in ("words", *PARAMETERS[1:])], noalias=False)
        given = {n: f.load(f.at(f.param("words"), I64(i), "ptr"), "ptr") for i, n in enumerate(OPERANDS)}
        _write_rows(f, threads, row_bytes, given.__getitem__, saves=True)
        return _code(f, threads)


def _write_rows(
    f: Function, threads: Threads, row_bytes: int, operand: Callable[[str], IRValue], saves: bool = False
) -> None:
    """Write the rows, whose numbers differ. saves: whether the old ones are written to `saved` first."""
    width = width_of(row_bytes)
    words, dtype = row_bytes // width, WORDS[width]
    table, rows, values = (operand(name) for name in ("table", "rows", "values"))
    count = f.load(operand("count"), "int64")
    with f.loop(threads.number(f), f.op(f"mul nsw {count}, {words}", "int64"), threads.total) as at:
        row, column = f.op(f"udiv {at}, {max(words, 1)}", "int64"), f.op(f"urem {at}, {max(words, 1)}", "int64")
        place = f.load(f.at(rows, row, "int64"), "int64")
        target = f.at(table, f.binary("add", f.op(f"mul nsw {place}, {words}", "int64"), column), dtype)
        if saves:
            f.store(f.load(target, dtype), f.at(operand("saved"), at, dtype))
        f.store(f.load(f.at(values, at, dtype), dtype), target)


def _code(f: Function, threads: Threads) -> DeviceCode:
    module = Module()
    module.functions.append(f)
    return DeviceCode(module.text(), (Launch(f.name, threads.blocks, threads.block),), 0)
