"""Rows at positions that are data, fetched into the nearest cache some rows before they are needed.

The processor cannot guess where they are, and looks ahead one or two rows only.
"""

from __future__ import annotations

from core.codegen.llvm import I64, Function, IRValue, itemsize, storage_type
from core.ir.aligned import LINE
from core.plan.memory import contiguous
from core.plan.row_kernels import RowInstruction, RowKernel

__all__ = ["MOST_BYTES", "ahead", "fetch", "fetch_lookups"]

MOST_BYTES = 1024
"""Longest row that is fetched ahead: the processor finds the rest of a longer one by itself."""

IN_FLIGHT = 2048
"""Bytes of the rows that are on their way together."""

MOST_ROWS = 16


def ahead(nbytes: int) -> int:
    """How many rows of `nbytes` ahead of its use a row is fetched; 0 if it is not."""
    return max(2, min(MOST_ROWS, IN_FLIGHT // nbytes)) if 0 < nbytes <= MOST_BYTES else 0


def fetch(f: Function, base: IRValue, offset: IRValue, dtype: str, nbytes: int, writes: bool = False) -> None:
    """Begin to fetch `nbytes` at element `offset` of `base`, which may be an address of no memory.

    writes: whether they are written.
    """
    f.declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    first = f.op(f"getelementptr {storage_type(dtype)}, {base}, {offset}", "ptr")
    for at in sorted({*range(0, nbytes, LINE), nbytes - 1}):
        line = f.op(f"getelementptr i8, {first}, {I64(at)}", "ptr")
        f.do(f"call void @llvm.prefetch.p0({line}, i32 {int(writes)}, i32 3, i32 1)")


def fetch_lookups(f: Function, kernel: RowKernel, row: IRValue) -> None:
    """Begin to fetch the rows that lookups of a row kernel will read some rows after `row`.

    f: its function, with a parameter for each operand. Only where the positions of all rows are adjacent.
    """
    for instr in kernel.code:
        if instr.kind != "lookup" or not instr.full:
            continue
        source, positions = kernel.operands[instr.operand], _positions_of(kernel, instr)
        nbytes = kernel.inner * itemsize(instr.dtype)
        if not ahead(nbytes) or positions is None or source.inner != 1 or any(source.outer):
            continue
        dtype = kernel.operands[positions].dtype
        later = f.intrinsic("smin", f.binary("add", row, I64(ahead(nbytes))), I64(kernel.rows - 1))
        at = f.convert(f.load(f.at(f.param(f"p{positions}"), later, dtype), dtype), "int64")
        further = f.op(f"mul {at}, {dict(instr.attrs)['step']}", "int64")
        fetch(f, f.param(f"p{instr.operand}"), further, instr.dtype, nbytes)


def _positions_of(kernel: RowKernel, lookup: RowInstruction) -> int | None:
    """The operand with the positions of a lookup: one for each row, side by side; None if it has another form."""
    found, left = set[int](), [*lookup.args]
    while left:
        instr = kernel.code[left.pop()]
        left += instr.args
        if instr.kind == "load":
            found.add(instr.operand)
        elif instr.kind not in ("apply", "constant"):
            return None
    if len(found) != 1:
        return None
    (operand,) = found
    path = kernel.operands[operand]
    return operand if path.dtype in ("int32", "int64") and path.outer == contiguous(kernel.outer) else None
