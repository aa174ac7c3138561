"""Sums down the columns of many rows: of blocks of rows first, then of the blocks.

A row kernel adds each row to its sums in memory. The rounding error of such a sum grows with the number of additions
in sequence: a million equal float32 numbers added one by one err by one percent. So a long kernel runs block by block,
with sums of its own for each block. Those are added up for several blocks, and only then to the arrays of the kernel.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.machine import lanes
from core.codegen.merged_operands import merged_scratch
from core.codegen.module import Module
from core.codegen.polling import STOP_PARAM
from core.codegen.rows import row_function, rows_poll
from core.plan.row_kernels import RowInstruction, RowKernel

__all__ = ["BLOCK", "summing_function"]

BLOCK = 1024
"""Fewest rows of a block, and the number of blocks that are added up before their sum goes to the array."""

LEAST = 8192
"""Fewest elements of the rows of a block: a call for fewer of them takes too long."""

SHARE = 16
"""Elements that the rows of a block have for each element of its sums: starting and adding these costs little."""

LONG = 2048
"""Rows whose sum needs no blocks."""

WIDEST = 1 << 15
"""Most elements of all sums of a block, which lie on the stack, once for the block and once for several blocks."""


def summing_function(module: Module, kernel: RowKernel) -> str:
    """The function that runs a row kernel: with the parameters of `row_function`, by blocks if it has long sums."""
    one = module.function(kernel, "rows", lambda name: row_function(name, kernel))
    sums = _sums(kernel)
    size = sum(sums.values())
    block = max(BLOCK, 1 << (max(SHARE * size, LEAST - 1) // kernel.inner).bit_length())
    if not sums or size > WIDEST or kernel.merged or _longest(kernel, sums) <= max(LONG, 2 * block):
        return one
    return module.function(("sums", kernel), "sums", lambda name: _in_blocks(name, one, kernel, sums, block))


def _sums(kernel: RowKernel) -> dict[int, int]:
    """The operands that are float32 sums of rows, in order, with their numbers of elements, which lie side by side.

    `operands` keeps a sum over all rows in registers; such a sum needs no blocks.
    """
    uses = defaultdict[int, list[RowInstruction]](list)
    for each in kernel.code:
        if each.kind in ("load", "lookup", "store", "accumulate", "check"):
            uses[each.operand].append(each)
    found = {}
    for number, operand in enumerate(kernel.operands):
        own = uses[number]
        adds = own and all(i.kind == "accumulate" and i.op == "sum" for i in own)
        if adds and operand.dtype == "float32" and (operand.inner or any(operand.outer)):
            steps = zip((*operand.outer, operand.inner), (*kernel.outer, kernel.inner), strict=True)
            found[number] = math.prod(n for stride, n in steps if stride)
    return found


def _longest(kernel: RowKernel, sums: dict[int, int]) -> int:
    """The most rows that are added to one element."""
    axes = [zip(kernel.operands[number].outer, kernel.outer, strict=True) for number in sums]
    return max(math.prod(n for stride, n in each if stride == 0) for each in axes)


def _in_blocks(name: str, one: str, kernel: RowKernel, sums: dict[int, int], block: int) -> Function:
    params = [(f"p{i}", "ptr") for i in range(len(kernel.operands))]
    more = [*([STOP_PARAM] if rows_poll(kernel) else []), *([("scratch", "ptr")] if merged_scratch(kernel) else [])]
    f = Function(name, [*params, *more, ("first", "int64"), ("end", "int64")], noalias=False)
    f.stop = f.param("stop") if rows_poll(kernel) else None
    of_block, of_blocks = ({number: _array(f, size) for number, size in sums.items()} for _ in range(2))
    given = [str(of_block.get(i, f.param(f"p{i}"))) for i in range(len(kernel.operands))]
    given += [str(f.param(each)) for each, _ in more]
    with f.loop(f.param("first"), f.param("end"), block * BLOCK, polls=True) as start:
        _clear(f, of_blocks, sums)
        stop = f.intrinsic("smin", f.binary("add", start, I64(block * BLOCK)), f.param("end"))
        with f.loop(start, stop, block, polls=True) as row:
            _clear(f, of_block, sums)
            after = f.intrinsic("smin", f.binary("add", row, I64(block)), stop)
            f.do(f"call void @{one}({', '.join([*given, str(row), str(after)])})")
            _add(f, of_blocks, of_block, sums)
        _add(f, {number: f.param(f"p{number}") for number in sums}, of_blocks, sums)
    return f


def _array(f: Function, size: int) -> IRValue:
    address = f.fresh("sums")
    f.top.append(f"  {address} = alloca [{size} x float], align 64")
    return IRValue(address, "ptr")


def _clear(f: Function, arrays: dict[int, IRValue], sizes: dict[int, int]) -> None:
    for number, address in arrays.items():
        for at, width in _slices(f, sizes[number]):
            f.store(f.splat(literal(0, "float32"), width), f.at(address, at, "float32"))


def _add(f: Function, totals: dict[int, IRValue], arrays: dict[int, IRValue], sizes: dict[int, int]) -> None:
    """Add arrays to others of their sizes."""
    for number, size in sizes.items():
        for at, width in _slices(f, size):
            into = f.at(totals[number], at, "float32")
            more = f.load(f.at(arrays[number], at, "float32"), "float32", width)
            f.store(f.binary("fadd", f.load(into, "float32", width), more), into)


def _slices(f: Function, size: int) -> Iterator[tuple[IRValue, int]]:
    """The elements of an array in vectors, then the rest one by one: in loops, where each starts, and its length."""
    width = lanes("float32")
    for start, end, step in ((0, size // width * width, width), (size // width * width, size, 1)):
        if start < end:
            with f.loop(I64(start), I64(end), step) as at:
                yield at, step
