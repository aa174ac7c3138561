"""Lowerings of products of arrays whose sizes only the run tells (`core.plan.sized`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from core.ir import Op
from core.ir.precision import is_half
from core.ops.linalg.einsum import terms_of
from core.plan.geometry import Tail
from core.plan.instructions import PRODUCT_BLOCK, Gemm, Kernel, Limited, product_block
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import is_one, sizes_of, with_equal
from core.plan.memory import View
from core.plan.size_multiples import scaled
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
    if summed is not None:
        if a.rank == 2 and _by_parts(low, op, summed):
            return
        op = _cleared(low, op, (frozenset({terms}), frozenset({others})))
    elif 0 in own:
        rows = math.prod(a.shape[1:-1])  # of which some lie beyond their length, if that is open, too
        if not is_half(a) and not own[0].bound * rows % PRODUCT_BLOCK:
            low.product_limit = scaled(low, own[0], rows, 1)
    try:
        run(low, op)
    finally:
        low.product_limit = None


def _by_parts(low: Lowering, op: Op, size: Size) -> bool:
    """Lower a product of two matrices with a sum over an open size in parts. False if that cannot be."""
    if not _takes_parts(low, op, size):
        return False
    x, y = (low.dense(low.entry(n)) for n in op.inputs)
    a = _turned(x) if op.attrs["transpose_x"] else x
    return _sum_in_parts(low, op, a, _turned(y) if op.attrs["transpose_y"] else y, size)


def _takes_parts(low: Lowering, op: Op, size: Size) -> bool:
    type = low.type(op.inputs[0])
    several = not size.bound % PRODUCT_BLOCK and size.bound > PRODUCT_BLOCK
    return several and type.is_float and not is_half(type) and op.outputs[0] not in low.destinations.sums


def _sum_in_parts(low: Lowering, op: Op, a: View, b: View, size: Size) -> bool:
    """Lower a product of `a` [m, k] and `b` [k, n], of which only the run tells k. False if that cannot be."""
    if not all(_is_own(low, v) or v.strides[axis] == v.shape[1 - axis] for v, axis in ((a, 1), (b, 0))):
        return False
    turns = low.target.products.turns(a.shape[0], b.shape[1], product_block(size.bound))
    turns = turns and a.strides[0] == 1 and b.strides[1] == 1
    if turns:  # see `linear`
        a, b = _turned(b), _turned(a)
    last = _zero_behind(low, op, size, a, 1), _zero_behind(low, op, size, b, 0)
    c = low.allocate((a.shape[0], b.shape[1]), a.dtype, op.outputs[0])
    low.add(Limited(Gemm(a, b, c, location=op.location), size.bound, size.length, "terms", last, location=op.location))
    low.define(op.outputs[0], _turned(c) if turns else c)
    return True


def _is_own(low: Lowering, view: View) -> bool:
    """Whether nothing reads the memory behind the length of an array."""
    return view.root.place == "arena" and view.root not in low.shared.sliced


def _zero_behind(low: Lowering, op: Op, size: Size, view: View, axis: int) -> View | None:
    """Make an operand zero from its length along `axis` to the end of its last block.

    If other arrays share its memory, the operand stays as it is, and the result is a copy of its last block with zeros.
    """
    other, block = 1 - axis, product_block(size.bound)
    spec = Tail(view.dtype, size.bound, view.strides[axis], view.shape[other], view.strides[other], block)
    if _is_own(low, view):
        low.add(Kernel("clear_tail", spec, (size.length, view), location=op.location))
        return None
    shape = tuple(block if i == axis else n for i, n in enumerate(view.shape))
    last = replace(low.allocate(shape, view.dtype), strides=view.strides)
    low.add(Kernel("copy_tail", spec, (size.length, view, last), location=op.location))
    return last


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
        first, *others = [at for at in places if not (c in broadcasting and is_one(low, op, *at))] or places
        for other in others * 2:  # the last one may tell a smaller size for all
            op = with_equal(low, op, first, other)
        size = sizes_of(low, op.inputs[first[0]]).get(first[1])
        if size is not None:
            sizes[c] = size
    set_sizes(low, op, [{i: sizes[c] for i, c in enumerate(result) if c in sizes}])
    if len(terms) == 2 and _merged(low, op, (terms[0], terms[1]), result, sizes):
        return
    summed = sizes.keys() - set(result)
    run(low, _cleared(low, op, [frozenset(i for i, c in enumerate(term) if c in summed) for term in terms]))


def _merged(low: Lowering, op: Op, terms: tuple[str, str], result: str, sizes: Mapping[str, Size]) -> bool:
    """Lower a sum over all axes of two arrays but their last ones, of which only the first is open, as one of matrices.

    Such is the gradient of a weight that each row of a batch is multiplied by. False if the product is another one.
    """
    shared, one, other = terms[0][:-1], terms[0][-1:], terms[1][-1:]
    fits = shared and sizes.keys() == {shared[0]} and result in (one + other, other + one)
    if not fits or terms[1][:-1] != shared:
        return False
    shapes = [low.type(n).shape for n in op.inputs]
    if shapes[0][:-1] != shapes[1][:-1]:
        return False
    size = scaled(low, sizes[shared[0]], math.prod(shapes[0][1:-1]), 1)
    if not _takes_parts(low, op, size):
        return False
    x, y = (
        replace(v, shape=(math.prod(v.shape[:-1]), v.shape[-1])) for v in (low.dense(low.entry(n)) for n in op.inputs)
    )
    x, y = (replace(v, strides=(v.shape[-1], 1)) for v in (x, y))
    return _sum_in_parts(low, op, *((_turned(x), y) if result == one + other else (_turned(y), x)), size)


def _cleared(low: Lowering, op: Op, axes: Sequence[frozenset[int]]) -> Op:
    """`op` on operands that are zero beyond their lengths along these axes of each, along which it sums."""
    cleared: dict[str, frozenset[int]] = {}
    for name, own in zip(op.inputs, axes, strict=True):
        cleared[name] = cleared.get(name, frozenset()) | own
    return under(low, op, {name: whole(low, name, 0, own) for name, own in cleared.items() if own})
