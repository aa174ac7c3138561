"""Epilogues of batches: elementwise work on the results moves into the products, as `epilogue` does for one product.

Each product does the work on its own result, so it may not reduce: several products would add to one sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import replace

from core.ir.stop import poll
from core.plan.data import Gemm, Instruction, Operand, Root, Rows, View
from core.plan.epilogue import may_move, without_memory
from core.plan.shapes import reshaped_view
from core.plan.target import ProductRules

__all__ = ["fuse_batch_epilogues"]

KINDS = frozenset({"constant", "load", "apply", "store"})
"""Kinds of row-kernel instructions that need only their own element, and write it once."""


def fuse_batch_epilogues(
    instructions: Sequence[Instruction], rules: ProductRules, kept: Set[Root] = frozenset()
) -> tuple[Instruction, ...]:
    """`instructions` with row kernels moved into the batches of products whose results they read.

    rules: of the target; it is asked about batches of products.
    kept:  roots that instructions around these touch.
    """
    if not any(_takes_epilogue(each, rules) for each in instructions):
        return tuple(instructions)
    found: list[Instruction | None] = [*instructions]
    touching: dict[Root, set[int]] = {}
    for at, each in enumerate(instructions):
        for root in {*each.reads(), *each.writes()}:
            touching.setdefault(root, set()).add(at)
    for at, batch in enumerate(instructions):
        poll()
        if not isinstance(batch, Gemm) or not _takes_epilogue(batch, rules):
            continue
        reader = min((i for i in touching[batch.c.root] if i > at), default=at)
        rows = found[reader]
        if not isinstance(rows, Rows) or rows.kernel.merged or any(i.kind not in KINDS for i in rows.kernel.code):
            continue
        then = _along(rows, batch.c)
        roots = {*rows.reads(), *rows.writes()}
        near = {i for root in roots for i in touching[root] if at < i < reader}
        if then is None or not may_move(rows, batch, [found[i] for i in near]):
            continue
        for root in roots:
            touching[root] = touching[root] - {reader} | {at}
        root = batch.c.root
        needed = root.place != "arena" or root in kept or touching[root] != {at}
        made = replace(batch, then=then, kept=needed)
        found[at] = made if needed or rules.stores_result(batch) else without_memory(made, then)
        found[reader] = None
    return tuple(each for each in found if each is not None)


def _takes_epilogue(each: Instruction, rules: ProductRules) -> bool:
    if not isinstance(each, Gemm) or each.accumulate or each.then is not None:
        return False
    return len(each.c.shape) > 2 and rules.takes_epilogue(each)


def _along(rows: Rows, c: View) -> Rows | None:
    """`rows` as the epilogue of the products into c [batch..., m, n]; None unless its domain is the elements of c."""
    kernel, sizes = rows.kernel, (*rows.kernel.outer, rows.kernel.inner)
    if math.prod(sizes) != math.prod(c.shape):
        return None
    operands: list[Operand] = []
    views: list[View] = []
    for view, operand in zip(rows.views, kernel.operands, strict=True):
        cut = reshaped_view(replace(view, shape=sizes, strides=(*operand.outer, operand.inner)), c.shape)
        if cut is None:
            return None
        if view.root is c.root and (_steps(cut), cut.offset, cut.dtype) != (_steps(c), c.offset, c.dtype):
            return None
        if operand.written and any(n > 1 and not step for n, step in zip(c.shape, cut.strides, strict=True)):
            return None
        operands.append(replace(operand, outer=cut.strides[-2:-1], inner=cut.strides[-1]))
        views.append(cut)
    made = replace(kernel, outer=c.shape[-2:-1], inner=c.shape[-1], operands=tuple(operands))
    return replace(rows, kernel=made, views=tuple(views))


def _steps(view: View) -> tuple[int, ...]:
    """Its strides, without those of axes of a single element."""
    return tuple(step for n, step in zip(view.shape, view.strides, strict=True) if n > 1)
