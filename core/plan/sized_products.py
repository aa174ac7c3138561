"""Lowerings of products of arrays whose sizes only the run tells (`core.plan.sized`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.ir import Op
from core.ir.precision import is_half
from core.ops.linalg.einsum import terms_of
from core.plan.data import PRODUCT_BLOCK, Gemm, Kernel, Limited, View
from core.plan.geometry import Tail
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import sizes_of, with_equal
from core.plan.sized import rule, run, set_sizes, under, whole
from core.plan.sizes import Size
from core.plan.unsupported import Unsupported

__all__: list[str] = []


@rule("matmul")
def _matmul(low: Lowering, op: Op) -> None:
    """Both operands are zero beyond the length of a sum."""
    x, y = op.inputs
    a, b = low.type(x), low.type(y)
    if min(a.rank, b.rank) < 2:
        raise Unsupported("a product of arrays whose sizes only the run tells")
    if b.rank != 2 or (a.rank > 2 and (op.attrs["transpose_x"] or sizes_of(low, y))):
        _batches(low, op)
        return
    terms, row = (a.rank - 2, a.rank - 1) if op.attrs["transpose_x"] else (a.rank - 1, a.rank - 2)
    others, column = (1, 0) if op.attrs["transpose_y"] else (0, 1)
    op = with_equal(low, op, (0, terms), (1, others))
    x, y = op.inputs
    a, b, summed = low.type(x), low.type(y), sizes_of(low, x).get(terms)
    own = {i: s for i, s in sizes_of(low, x).items() if i < a.rank - 2}
    if row in sizes_of(low, x):
        own[a.rank - 2] = sizes_of(low, x)[row]
    if column in sizes_of(low, y):
        own[a.rank - 1] = sizes_of(low, y)[column]
    set_sizes(low, op, [own])
    matrices = a.rank == 2 and not is_half(a)
    if summed is not None:
        if matrices and _in_blocks(low, op, summed):
            return
        op = _cleared(low, op, (frozenset({terms}), frozenset({others})))
    elif matrices and 0 in own:
        low.product_limit = own[0]
    try:
        run(low, op)
    finally:
        low.product_limit = None


def _in_blocks(low: Lowering, op: Op, size: Size) -> bool:
    """Lower a product of matrices with a sum over an open size in blocks. False if that cannot be."""
    if size.bound % PRODUCT_BLOCK or size.bound == PRODUCT_BLOCK or op.outputs[0] in low.destinations.sums:
        return False
    x, y = (low.dense(low.entry(n)) for n in op.inputs)
    if x.root.place != "arena" or y.root.place != "arena" or not low.type(op.inputs[0]).is_float:
        return False
    type = low.type(op.outputs[0])
    a = _turned(x) if op.attrs["transpose_x"] else x
    b = _turned(y) if op.attrs["transpose_y"] else y
    for view, axis in ((a, 1), (b, 0)):
        other = 1 - axis
        spec = Tail(view.dtype, size.bound, view.strides[axis], view.shape[other], view.strides[other], PRODUCT_BLOCK)
        low.add(Kernel("clear_tail", spec, (size.length, view), location=op.location))
    out = low.allocate(type.shape, type.dtype, op.outputs[0])
    made = Gemm(a, b, out, location=op.location)
    low.add(Limited(made, size.bound, size.length, "terms", location=op.location))
    low.define(op.outputs[0], out)
    return True


def _turned(view: View) -> View:
    return replace(view, shape=view.shape[::-1], strides=view.strides[::-1])


def _batches(low: Lowering, op: Op) -> None:
    """Batches of matrices, as `einsum` has them."""
    first = "ki" if op.attrs["transpose_x"] else "ik"
    second = "jk" if op.attrs["transpose_y"] else "kj"
    ranks = tuple(low.type(n).rank for n in op.inputs)
    _by_letters(low, op, *terms_of(f"...{first},...{second}->...ij", ranks))


@rule("einsum")
def _einsum(low: Lowering, op: Op) -> None:
    ranks = tuple(low.type(n).rank for n in op.inputs)
    _by_letters(low, op, *terms_of(op.attrs["equation"], ranks))


def _by_letters(low: Lowering, op: Op, terms: Sequence[str], result: str, broadcasting: str) -> None:
    """Lower a product whose operands have these letters for their axes. broadcasting: as of `terms_of`."""
    if any(len(set(term)) < len(term) for term in terms):
        raise Unsupported("a diagonal of an array whose sizes only the run tells")
    sizes: dict[str, Size] = {}
    for c in dict.fromkeys("".join(terms)):
        places = [(i, term.index(c)) for i, term in enumerate(terms) if c in term]
        first, *others = [at for at in places if not (c in broadcasting and _is_one(low, op, *at))] or places
        for other in others * 2:  # the last one may tell a smaller size for all
            op = with_equal(low, op, first, other)
        size = sizes_of(low, op.inputs[first[0]]).get(first[1])
        if size is not None:
            sizes[c] = size
    set_sizes(low, op, [{i: sizes[c] for i, c in enumerate(result) if c in sizes}])
    summed = sizes.keys() - set(result)
    run(low, _cleared(low, op, [frozenset(i for i, c in enumerate(term) if c in summed) for term in terms]))


def _cleared(low: Lowering, op: Op, axes: Sequence[frozenset[int]]) -> Op:
    """`op` on operands that are zero beyond their lengths along these axes of each, along which it sums."""
    cleared: dict[str, frozenset[int]] = {}
    for name, own in zip(op.inputs, axes, strict=True):
        cleared[name] = cleared.get(name, frozenset()) | own
    return under(low, op, {name: whole(low, name, 0, own) for name, own in cleared.items() if own})


def _is_one(low: Lowering, op: Op, operand: int, axis: int) -> bool:
    name = op.inputs[operand]
    return axis not in sizes_of(low, name) and low.type(name).shape[axis] == 1
