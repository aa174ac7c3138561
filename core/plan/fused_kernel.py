"""The row kernel of a fusion: the order of its axes, those that are one walk through every array, and its row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from core.plan.fusion import Draft, Fusion
from core.plan.instructions import Rows
from core.plan.memory import View
from core.plan.row_kernels import Operand, RowInstruction, RowKernel
from core.plan.target import RowLimits

__all__ = ["row_kernel_of"]

IN_ANY_ORDER = frozenset(("accumulate", "apply", "constant", "iota", "load", "reduce", "store"))
"""Instructions of fusions whose rows may come in any order."""

Column = list[int]
"""The strides of one array along the axes of the domain."""


def row_kernel_of(fusion: Fusion) -> Rows | None:
    """`fusion` as an instruction: axes are merged where every array allows it, and a row is chosen.

    None if nothing is left to do, because other fusions compute or look up the same themselves.
    """
    place = {n: i for i, n in enumerate(_needed(fusion.drafts))}
    if not place:
        return None
    drafts = [fusion.drafts[n] for n in place]
    sizes, columns = _merged_domain(fusion, drafts)
    # rows beyond a length are left out at the end, so the axis that has it stays the outermost one
    in_any_order = fusion.size is None and all(d.instr.kind in IN_ANY_ORDER for d in drafts)
    if in_any_order:
        stored = [bool(d.view) for d in drafts if d.walks]
        _bring_dense_last(sizes, columns, [c for c, is_stored in zip(columns, stored, strict=True) if is_stored])
    kernel, views = _kernel(drafts, place, sizes, columns)
    if in_any_order:
        kernel = _with_rows_together(kernel, fusion.limits)
    return Rows(kernel, views, tuple(fusion.ops), location=fusion.location)


def _needed(drafts: Sequence[Draft]) -> list[int]:
    """The positions of `drafts` but those of values that nothing in the fusion reads or stores, and of their checks."""
    used = {n for n, d in enumerate(drafts) if d.instr.kind in ("store", "accumulate", "check") and d.guards is None}
    for n in reversed(range(len(drafts))):
        if n in used:
            used.update(drafts[n].instr.args)
        if drafts[n].lookup is not None and n in used:
            checks = [m for m, d in enumerate(drafts) if d.guards == n]
            used.update(checks, *(drafts[m].instr.args for m in checks))
    return sorted(used)


def _merged_domain(fusion: Fusion, drafts: Sequence[Draft]) -> tuple[list[int], list[Column]]:
    """The sizes of the axes of the kernel, the row last, and the strides of each array or count of positions."""
    row = fusion.row or frozenset()
    order = sorted(range(len(fusion.shape)), key=lambda i: i in row)
    first = len(fusion.shape) - len(row) if fusion.row is not None else None
    arrays = [[d.strides[i] for i in order] for d in drafts if d.walks]
    sizes, columns = _merged([fusion.shape[i] for i in order], arrays, first)
    if first is None and len(sizes) == 1:
        return _cut(sizes, columns, fusion.limits)
    return sizes, columns


def _kernel(
    drafts: Sequence[Draft], place: Mapping[int, int], sizes: Sequence[int], columns: Sequence[Column]
) -> tuple[RowKernel, tuple[View, ...]]:
    """The kernel of `drafts` over a domain, and the views of its operands. place: of each draft in the code."""
    inner = sizes[-1] if sizes else 1
    operands: list[Operand] = []
    views: list[View] = []
    code: list[RowInstruction] = []
    walks = iter(columns)
    for draft in drafts:
        instr, attrs = draft.instr, draft.instr.attrs
        args = tuple(place[a] for a in instr.args)
        operand, full = -1, any(code[a].full for a in args)
        column = next(walks) if draft.walks else []
        outer, along = tuple(column[:-1]), column[-1] if column else 0
        if instr.kind == "iota":
            attrs = (("outer", outer), ("inner", along))
            full = along != 0
        if draft.view:
            operand = len(operands)
            operands.append(Operand(draft.view.dtype, outer, along, instr.kind not in ("load", "lookup")))
            views.append(draft.view)
            full = full or along != 0
        full = full and instr.kind != "reduce" and inner > 1
        code.append(RowInstruction(instr.kind, instr.dtype, full, args, instr.op, attrs, operand, instr.value))
    return RowKernel(tuple(sizes[:-1]), inner, tuple(operands), tuple(code)), tuple(views)


def _merged(shape: Sequence[int], arrays: Sequence[Sequence[int]], first: int | None) -> tuple[list[int], list[Column]]:
    """The domain with neighbouring axes merged where all arrays allow it, and the strides of the arrays then.

    first: the first axis of the row, which is not merged with the axis before it.
    """
    sizes: list[int] = []
    columns: list[Column] = [[] for _ in arrays]
    fixed = False
    for i, size in enumerate(shape):
        if i == first:
            fixed = True
        if size == 1:
            continue
        if sizes and not fixed and all(c[-1] == a[i] * size for c, a in zip(columns, arrays, strict=True)):
            sizes[-1] *= size
            for column, strides in zip(columns, arrays, strict=True):
                column[-1] = strides[i]
        else:
            sizes.append(size)
            for column, strides in zip(columns, arrays, strict=True):
                column.append(strides[i])
            fixed = False
    if first is not None and math.prod(shape[first:]) == 1:  # the row is a single element
        sizes.append(1)
        for column in columns:
            column.append(0)
    return sizes, columns


def _bring_dense_last(sizes: list[int], columns: list[Column], stored: list[Column]) -> None:
    """Move an axis to the place before the row, if an array that lies across the row is dense along it.

    stored: the columns of arrays. Squares of such an array are then read together.
    """
    across = [column for column in stored if column and column[-1] > 1]
    if any(column[-2] == 1 for column in across if len(column) > 1):
        return
    for column in across:
        for axis, stride in enumerate(column[:-2]):
            if stride == 1 and sizes[axis] > 1:
                for each in (sizes, *columns):
                    each.insert(-1, each.pop(axis))
                return


def _with_rows_together(kernel: RowKernel, limits: RowLimits) -> RowKernel:
    """`kernel` with a long axis before the row, if its rows are computed together then, and only then."""
    if limits.together is None or len(kernel.outer) < 2 or limits.together(kernel):
        return kernel
    long = max(range(len(kernel.outer)), key=lambda axis: kernel.outer[axis])
    order = [*(axis for axis in range(len(kernel.outer)) if axis != long), long]
    turned: Callable[[Sequence[int]], tuple[int, ...]] = lambda numbers: tuple(numbers[axis] for axis in order)
    code = [
        replace(i, attrs=(("outer", turned(dict(i.attrs)["outer"])), *i.attrs[1:])) if i.kind == "iota" else i
        for i in kernel.code
    ]
    operands = [replace(each, outer=turned(each.outer)) for each in kernel.operands]
    found = replace(kernel, outer=turned(kernel.outer), operands=tuple(operands), code=tuple(code))
    return found if limits.together(found) else kernel


def _cut(sizes: list[int], columns: list[Column], limits: RowLimits) -> tuple[list[int], list[Column]]:
    """A single long axis, split into rows of a length that divides it, if there is one."""
    size = sizes[0]
    most, fewest, step = limits.split_rows
    if size <= most:
        return sizes, columns
    row = next((n for n in range(most, fewest - 1, -step) if size % n == 0), None)
    if row is None:
        return sizes, columns
    return [size // row, row], [[c[0] * row, c[0]] for c in columns]
