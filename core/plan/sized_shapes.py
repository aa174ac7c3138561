"""Lowerings of ops that change the shape of arrays whose sizes only the run tells (`core.plan.sized`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.ir import Op, TensorType, Type
from core.ir.precision import is_half
from core.ops.indexing.gather import cut
from core.plan.compose import Maker
from core.plan.entries import positions
from core.plan.halves import narrowed
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import (
    Axes,
    Incomparable,
    agreeing,
    first_of,
    known_size,
    matched,
    same_size,
    sizes_of,
    with_equal,
    with_known,
)
from core.plan.shapes import expanded, order_of_axes, reshaped
from core.plan.sized import clear_integers, masked, rule, run, set_sizes, under, whole
from core.plan.sized_sums import count_elements, summed
from core.plan.sizes import Given, Size, bounds, tensor
from core.plan.unsupported import Unsupported

__all__ = ["along_known", "parts_of_known", "sliced_known"]


@rule(
    "assign",
    "stop_gradient",
    "barrier",
    "fill_zeros_like",
    "full_like",
    "uniform_random_like",
    "gaussian_random_like",
    "truncated_gaussian_like",
    "exponential_like",
    "randint_like",
    "bernoulli",
    "triangle_mask_like",
    "diagonal_mask_like",
    "eye_like",
)
def _alike(low: Lowering, op: Op) -> None:
    """Results like the operand in the same place, or like the first one."""
    each = op.inputs if op.type == "barrier" else op.inputs[:1]
    set_sizes(low, op, [dict(sizes_of(low, n)) for n in each])
    if op.type == "bernoulli":  # it checks all probabilities
        op = under(low, op, {op.inputs[0]: whole(low, op.inputs[0])})
    run(low, op)


@rule("fill_constant_batch_size_like")
def _filled(low: Lowering, op: Op) -> None:
    size = sizes_of(low, op.inputs[0]).get(op.attrs["input_dim"])
    set_sizes(low, op, [{} if size is None else {op.attrs["output_dim"]: size}])
    run(low, op)


@rule("roll_positions")
def _rolled(low: Lowering, op: Op) -> None:
    of, type, shift = Maker(low), low.type(op.inputs[0]), op.attrs["shift"]
    axis = op.attrs["axis"] % type.rank
    size = sizes_of(low, op.inputs[0]).get(axis)
    if abs(shift) >= 2**62:
        raise Unsupported("a shift beyond the range of positions")
    set_sizes(low, op, [{} if size is None else {0: size}])
    some = of("maximum", low.length(op.inputs[0], axis), of.integer(1))
    at = of("sub", positions((type.shape[axis],)), of.integer(shift))
    at = of("sub", at, of.mul(of("floor_div", at, some), some))
    low.define(op.outputs[0], at if size is None else masked(low, at, {0: size}, 0))


@rule("expand_as")
def _expand_as(low: Lowering, op: Op) -> None:
    op = agreeing(low, op)
    x, like = op.inputs
    own = with_known(low, op, dict(sizes_of(low, like)))
    extra = low.type(like).rank - low.type(x).rank
    for axis, n in enumerate(low.type(x).shape):
        if n != 1 and not same_size(low, sizes_of(low, x).get(axis), sizes_of(low, like).get(axis + extra)):
            raise Incomparable
    set_sizes(low, op, [dict(own)])
    low.define(op.outputs[0], expanded(low.entry(x), low.type(like).shape))
    clear_integers(low, op)


@rule("sum_to", "sum_to_like")
def _sum_to(low: Lowering, op: Op) -> None:
    op = agreeing(low, op) if op.type == "sum_to_like" else op
    x, own = op.inputs[0], sizes_of(low, op.inputs[0])
    shape = low.type(op.inputs[1]).shape if op.type == "sum_to_like" else op.attrs["shape"]
    extra = low.type(x).rank - len(shape)
    rows = not extra and own.keys() == {0} and shape[1:] == low.type(x).shape[1:]
    if op.type == "sum_to" and rows and shape[0] > 1:
        _as_known(low, op, own[0], shape)
        return
    kept: Axes = {}
    gone = set(range(extra))
    for axis, n in enumerate(shape):
        size = own.get(axis + extra)
        like = sizes_of(low, op.inputs[1]).get(axis) if op.type == "sum_to_like" else None
        if size is None and like is None:
            continue
        if size is not None and n == 1 and like is None:
            gone.add(axis + extra)
        elif size is not None and same_size(low, size, like):
            kept[axis] = size if like is None else like
        else:
            raise Incomparable
    if op.type == "sum_to" and own.keys() - gone:
        raise Incomparable
    declared = low.types[op.outputs[0]]
    assert isinstance(declared, TensorType)
    for axis, n in enumerate(declared.shape):
        if n == -1 and axis not in kept and axis + extra not in own:  # known, though the program does not say so
            number = low.type(x).shape[axis + extra]
            kept[axis] = known_size(low, number)
    set_sizes(low, op, [kept])
    type = low.type(op.outputs[0])
    over = gone | {a for a, n in enumerate(low.type(x).shape[extra:], extra) if n != 1 and type.shape[a - extra] == 1}
    if not over:
        low.define(op.outputs[0], low.entry(x))
        return
    if not own.keys() & gone:
        run(low, op)
        return
    total = summed(low, "sum", x, frozenset(over), type)
    low.define(op.outputs[0], narrowed(low, total, type) if is_half(type) else total)
    clear_integers(low, op)


def _as_known(low: Lowering, op: Op, size: Size, shape: tuple[int, ...]) -> None:
    """An array of an open size that the program takes for one of a known size: the run compares them."""
    of, view = Maker(low), low.stored(low.entry(op.inputs[0]))
    if shape[0] > size.bound:
        raise Incomparable
    fine = of("equal", size.length, of.integer(shape[0]))
    of.check(fine, "shape_mismatch", f"the first size is not {shape[0]}", op.location)
    set_sizes(low, op, [{}])
    low.define(op.outputs[0], replace(view, shape=shape))


@rule("size")
def _size(low: Lowering, op: Op) -> None:
    count = count_elements(low, op.inputs[0], frozenset(range(low.type(op.inputs[0]).rank)))
    type = low.type(op.outputs[0])
    low.define(op.outputs[0], reshaped(low, Maker(low).cast(count, type.dtype), type.shape))


@rule("transpose")
def _transpose(low: Lowering, op: Op) -> None:
    order = order_of_axes(op, low.type(op.inputs[0]).rank)
    set_sizes(low, op, [{order.index(i): s for i, s in sizes_of(low, op.inputs[0]).items()}])
    run(low, op)


def sliced_known(low: Lowering, op: Op) -> None:
    """Slices of known sizes."""
    own = sizes_of(low, op.inputs[0])
    shape = low.type(op.inputs[0]).shape
    touched = {axis for axis, part in cut(len(shape), **op.attrs) if axis in own}
    if touched or (op.type == "slice_into" and own != sizes_of(low, op.inputs[1])):
        raise Unsupported("a slice of an axis whose size only the run tells")
    set_sizes(low, op, [dict(own)])
    run(low, op)


@rule("unstack")
def parts_of_known(low: Lowering, op: Op) -> None:
    """Parts along an axis of known size."""
    given = [sizes_of(low, n) for n in op.inputs]
    if op.type == "pad_constant":
        pads = op.attrs["paddings"]
        axes = {i for i in range(len(pads) // 2) if any(pads[2 * i : 2 * i + 2])}
    else:
        axes = {op.attrs["axis"] % low.type(op.inputs[0]).rank}
    if any(each != given[0] for each in given) or axes & given[0].keys():
        raise Unsupported(f"{op.type} along an axis whose size only the run tells")
    own = given[0]
    if op.type == "unstack":
        (axis,) = axes
        own = {i - (i > axis): s for i, s in own.items()}
    set_sizes(low, op, [dict(own) for _ in op.outputs])
    run(low, op)


@bounds("check_shape")
def _checked_sizes(op: Op, given: Given, declared: Sequence[Type]) -> tuple[TensorType, ...] | None:
    """The known sizes of the result, and the largest ones of the operand along its other axes."""
    out, x = declared[0], tensor(given[0])
    if not isinstance(out, TensorType) or 0 in (*x.shape, *out.shape):
        return None
    return (TensorType(tuple(m if n == -1 else n for m, n in zip(x.shape, out.shape, strict=True)), x.dtype),)


@rule("check_shape")
def _check_shape(low: Lowering, op: Op) -> None:
    """The code covers the runs in which the sizes are those of the check."""
    x, like = op.inputs
    for axis, wanted in enumerate(op.attrs["shape"]):
        if wanted != -1 and axis in sizes_of(low, x):
            if not low.target.expects or wanted > low.type(x).shape[axis]:
                raise Incomparable
            x = first_of(low, x, axis, wanted, True)
    met = op.attrs["axes"]
    for i, j in zip(met[::2], met[1::2], strict=True):
        x, like = matched(low, (x, i % low.type(x).rank), (like, j % low.type(like).rank))
    set_sizes(low, op, [dict(sizes_of(low, x))])
    low.define(op.outputs[0], low.entry(x))


@rule("tile", "sum_tiles_like")
def _tiles(low: Lowering, op: Op) -> None:
    """Copies along axes of known sizes."""
    x, out = low.type(op.inputs[0]).rank, low.block.types[op.outputs[0]]
    assert isinstance(out, TensorType)
    small, counts = op.inputs[-1], op.attrs["repeats"]  # of `sum_tiles_like`, the result has the sizes of `like`
    rank = max(x, out.rank)
    repeats = (*(1 for _ in range(rank - len(counts))), *counts)
    own = {axis + rank - low.type(small).rank: size for axis, size in sizes_of(low, small).items()}
    if any(repeats[axis] != 1 for axis in own):
        raise Unsupported("copies along an axis whose size only the run tells")
    if op.type == "tile":
        set_sizes(low, op, [own])
    else:
        for axis in own:
            op = with_equal(low, op, (0, axis), (1, axis - rank + out.rank))
        if sizes_of(low, op.inputs[0]).keys() != own.keys():
            raise Incomparable
        set_sizes(low, op, [dict(sizes_of(low, op.inputs[1]))])
    run(low, op)


@rule("one_hot", "running_argmax")
def along_known(low: Lowering, op: Op) -> None:
    """Ops along an axis of known size, and those whose results depend on the elements before theirs alone."""
    own = sizes_of(low, op.inputs[0])
    if any(sizes_of(low, n) != own for n in op.inputs[:2]):
        raise Incomparable
    set_sizes(low, op, [dict(own) for _ in op.outputs])
    run(low, op)
