"""Products read zeros, and not what memory contains, where the rows of an array end before its memory does.

A `Limited` instruction writes the rows of the run and leaves the memory behind them as it is. A product of all rows
computes with that memory, too. Nothing reads this part of its result, but the memory may hold small integers, which are
denormal numbers to the product: these take a hundred times as long as others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from core.ir.stop import poll
from core.ops.common.types import as_dtype
from core.plan.geometry import Tail
from core.plan.instructions import Gemm, Instruction, Kernel, Limited, Rows
from core.plan.memory import Root, View, bytes_of, contiguous

__all__ = ["clear_tails"]


def clear_tails(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """`instructions` with zeros written behind the rows of results before a product of all rows reads them."""
    return tuple(_cleared(instructions))


def _cleared(instructions: Sequence[Instruction]) -> Iterator[Instruction]:
    ended: dict[Root, tuple[Limited, str]] = {}
    for each in instructions:
        poll()
        for view in (each.a, each.b) if isinstance(each, Gemm) else ():
            if view.root in ended:
                yield _clear(view.root, *ended.pop(view.root))
        yield each
        for root in each.writes():
            ended.pop(root, None)
        if isinstance(each, Limited) and each.along == "rows":
            ended.update((root, (each, dtype)) for root, dtype in _results(each))


def _results(each: Limited) -> Iterator[tuple[Root, str]]:
    """The arrays of floats, with their dtypes, of which the instruction writes the first rows."""
    inner = each.instruction
    views: list[View] = []
    if isinstance(inner, Gemm):
        shape = inner.c.shape
        views = [inner.c] if inner.c.strides == contiguous(shape) else []
    elif isinstance(inner, Rows):
        shape = (*inner.kernel.outer, inner.kernel.inner)
        stored = {i.operand for i in inner.kernel.code if i.kind == "store"}
        operands = [(inner.kernel.operands[n], inner.views[n]) for n in stored]
        views = [v for o, v in operands if (*o.outer, o.inner) == contiguous(shape)]
    for view in views:
        is_whole = view.offset == 0 and view.root.nbytes == bytes_of(shape, view.dtype)
        if view.root.place == "arena" and is_whole and as_dtype(view.dtype).kind not in "biu":
            yield view.root, view.dtype


def _clear(root: Root, limited: Limited, dtype: str) -> Kernel:
    rows = limited.bound
    width = root.nbytes // as_dtype(dtype).itemsize // rows
    spec = Tail(dtype, rows, width, width, 1, rows)
    view = View(root, dtype, (rows, width), (width, 1), 0)
    return Kernel("clear_tail", spec, (limited.length, view), location=limited.location)
