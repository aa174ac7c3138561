"""Fusing what is done with each element of a product's result into the product.

A bias, a relu and its mask, the cotangent of one, an optimiser's update: elementwise work on a large result, done on
each tile of it while it is near, is no pass over memory of its own; and a result that nothing else reads is not kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from core.plan.data import Gemm, Instr, Instruction, Operand, Root, Rows, View

__all__ = ["fuse_epilogues"]

TOGETHER = frozenset({"constant", "load", "apply", "store", "accumulate"})
"""Kinds of instructions that need no more than their element, and no order among rows."""


def fuse_epilogues(instructions: Sequence[Instruction], kept: Iterable[Root] = ()) -> tuple[Instruction, ...]:
    """`instructions` with row kernels moved into the products whose result they read. kept: roots read after them."""
    found: list[Instruction | None] = list(instructions)
    late = set(kept)
    for at, each in enumerate(instructions):
        if not isinstance(each, Gemm) or each.accumulate or len(each.c.shape) != 2 or not each.is_packed:
            continue
        reader = next((i for i in range(at + 1, len(found)) if _touches(found[i], each.c.root)), None)
        if reader is None:
            continue
        rows = found[reader]
        if not isinstance(rows, Rows):
            continue
        then, rest = _parted(rows, each.c.root)
        between = [i for i in (*found[at + 1 : reader], rest) if i is not None]
        if then is None or not _may_move(then, each, between):
            continue
        then = _along(then, each.c)
        if then is None:
            continue
        found[reader] = rest
        others = [i for n, i in enumerate(found) if i is not None and n != at]
        needed = each.c.root.place != "arena" or each.c.root in late or any(_touches(i, each.c.root) for i in others)
        found[at] = replace(each, then=then, kept=needed)
    return tuple(each for each in found if each is not None)


def _touches(each: Instruction | None, root: Root) -> bool:
    return each is not None and (root in each.reads() or root in each.writes())


def _may_move(then: Rows, product: Gemm, between: Sequence[Instruction]) -> bool:
    """Whether `then` may run as soon as elements of the product are there, in front of what is `between` them."""
    writes = set(then.writes())
    reads = {v.root for v, o in zip(then.views, then.kernel.operands, strict=True) if not o.written}
    if writes & (reads | {product.a.root, product.b.root}):
        return False
    reads.discard(product.c.root)
    for each in between:
        written = set(each.writes())
        if reads & written or writes & (written | set(each.reads())):
            return False
    return True


def _parted(rows: Rows, root: Root) -> tuple[Rows | None, Rows | None]:
    """The part of a row kernel that has to do with what is loaded from `root`, and the rest, which shares no value."""
    code = rows.kernel.code
    near = {n for n, i in enumerate(code) if i.kind == "load" and rows.views[i.operand].root is root}
    leaf = {n for n, i in enumerate(code) if i.kind in ("constant", "load") and n not in near}
    grows = True
    while grows:  # whatever is computed from a value of the part or for it
        grows = False
        for n, instr in enumerate(code):
            linked = {n, *(a for a in instr.args if a not in leaf)} if n not in leaf else set()
            if linked & near and not linked <= near:
                near |= linked
                grows = True
    chosen, others = ([n for n in range(len(code)) if n not in leaf and (n in near) is side] for side in (True, False))
    if any(code[n].kind not in TOGETHER for n in chosen):
        return None, rows
    return _picked(rows, chosen), _picked(rows, others) if others else None


def _picked(rows: Rows, numbers: Sequence[int]) -> Rows:
    """The instructions with these numbers and the leaves that they read."""
    code = rows.kernel.code
    wanted = sorted({*numbers, *(a for n in numbers for a in code[n].args)})
    place = {n: i for i, n in enumerate(wanted)}
    operands: list[Operand] = []
    views: list[View] = []
    picked: list[Instr] = []
    for n in wanted:
        instr = code[n]
        if instr.operand >= 0:
            operands.append(rows.kernel.operands[instr.operand])
            views.append(rows.views[instr.operand])
        at = len(operands) - 1 if instr.operand >= 0 else -1
        picked.append(replace(instr, args=tuple(place[a] for a in instr.args), operand=at))
    left = Counter(i.op if i.kind == "apply" else f"reduce_{i.op}" for i in picked)
    ops = tuple(op for op in rows.ops if left[op] > 0 and not left.subtract([op]))
    kernel = replace(rows.kernel, operands=tuple(operands), code=tuple(picked))
    return replace(rows, kernel=kernel, views=tuple(views), ops=ops)


def _along(rows: Rows, c: View) -> Rows | None:
    """`rows` with the rows and columns of the matrix c as its own, None if it is not about exactly these elements."""
    kernel = rows.kernel
    columns = [[*o.outer, o.inner] for o in kernel.operands]
    cut = _cut([*kernel.outer, kernel.inner], columns, *c.shape)
    if cut is None:
        return None
    operands = tuple(
        Operand(o.dtype, (down,), along, o.written) for o, (down, along) in zip(kernel.operands, cut, strict=True)
    )
    for instr in kernel.code:
        if instr.operand < 0:
            continue
        operand, view = operands[instr.operand], rows.views[instr.operand]
        if view.root is c.root and (view.offset, view.dtype, operand.outer, operand.inner) != (
            c.offset,
            c.dtype,
            (c.strides[0],),
            c.strides[1],
        ):
            return None
        if instr.kind == "accumulate" and (operand.outer != (0,) or operand.inner != 1 or not instr.full):
            return None  # other sums are of more than one tile
        if instr.kind == "store" and (0 in operand.outer or operand.inner == 0):
            return None
    return replace(rows, kernel=replace(kernel, outer=(c.shape[0],), inner=c.shape[1], operands=operands))


def _cut(sizes: list[int], arrays: list[list[int]], rows: int, columns: int) -> list[tuple[int, int]] | None:
    """The strides of each array along the rows and columns of a matrix, None where a walk is not as regular."""
    if math.prod(sizes) != rows * columns:
        return None
    inner, at = sizes[-1], len(sizes) - 1
    while inner < columns and at > 0:  # as many of the last axes as make a row
        if not all(a[at - 1] == a[at] * sizes[at] for a in arrays):
            return None
        at -= 1
        inner *= sizes[at]
    if inner % columns:
        return None
    along = [a[-1] for a in arrays]
    height = inner // columns
    down = [s * columns if height > 1 else 0 for s in along]
    for i in range(at - 1, -1, -1):  # and the others as one axis of rows
        if sizes[i] == 1:
            continue
        if height == 1:
            down = [a[i] for a in arrays]
        elif any(a[i] != d * height for a, d in zip(arrays, down, strict=True)):
            return None
        height *= sizes[i]
    return list(zip(down, along, strict=True))
