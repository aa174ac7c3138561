"""Reductions, cumulative sums and scans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from core.onnx.writing.blocks import OpSite
from core.onnx.writing.graph import Tensor, value_info
from core.onnx.writing.registry import writes


def _which(x: Tensor, axes: Sequence[int] | None) -> list[int]:
    return list(range(x.rank)) if axes is None else sorted({a % x.rank for a in axes})


@writes("reduce_sum")
def reduce_sum(w, x, *, axes, keepdims):
    return w.cast(w.reduce("ReduceSum", w.wide(x), axes, keepdims), x.dtype)


@writes("reduce_mean")
def reduce_mean(w, x, *, axes, keepdims):
    """A `ReduceMean`; where there may be no element, a sum divided by at least 1."""
    which = _which(x, axes)
    sizes = [x.shape[i] for i in which]
    v = w.wide(x)
    if not which:
        return x
    if -1 not in sizes and 0 not in sizes:
        return w.cast(w.reduce("ReduceMean", v, axes, keepdims), x.dtype)
    count = w.arith("Max", w.product([w.size(x, i) for i in which]), 1)
    total = w.reduce("ReduceSum", v, axes, keepdims)
    return w.cast(w.div(total, w.cast(w.scalar(count), v.dtype)), x.dtype)


@writes("reduce_prod")
def reduce_prod(w, x, *, axes, keepdims):
    return w.cast(w.reduce("ReduceProd", w.wide(x), axes, keepdims), x.dtype)


@writes("reduce_max")
def reduce_max(w, x, *, axes, keepdims, tie, empty):
    return w.reduce("ReduceMax", x, axes, keepdims)


@writes("reduce_min")
def reduce_min(w, x, *, axes, keepdims, tie, empty):
    return w.reduce("ReduceMin", x, axes, keepdims)


@writes("reduce_any")
def reduce_any(w, x, *, axes, keepdims):
    if not _which(x, axes):
        return x
    count = w.reduce("ReduceSum", w.cast(x, "int64"), axes, keepdims)
    return w.node("Greater", count, w.const(0, "int64"))


@writes("reduce_all")
def reduce_all(w, x, *, axes, keepdims):
    if not _which(x, axes):
        return x
    count = w.reduce("ReduceSum", w.cast(w.node("Not", x), "int64"), axes, keepdims)
    return w.node("Equal", count, w.const(0, "int64"))


def _position(operator: str):
    def rule(w, x, *, axis, keepdims):
        at = axis % x.rank
        shape = [1 if i == at else n for i, n in enumerate(x.shape) if keepdims or i != at]
        return w.node(operator, x, axis=at, keepdims=int(keepdims), shape=tuple(shape))

    return rule


writes("argmax")(_position("ArgMax"))
writes("argmin")(_position("ArgMin"))


@writes("logsumexp")
def logsumexp(w, x, *, axes, keepdims):
    """The kernel's formula: the largest element is subtracted unless it is infinite."""
    which = _which(x, axes)
    v = w.wide(x)
    if any(x.shape[i] == 0 for i in which):
        return w.cast(w.node("Log", w.reduce("ReduceSum", v, axes, keepdims)), x.dtype)
    top = w.reduce("ReduceMax", v, axes, True)
    top = w.where(w.node("Or", w.node("IsInf", top), w.node("IsNaN", top)), w.number(0, v), top)
    total = w.reduce("ReduceSum", w.node("Exp", w.sub(v, top)), axes, True)
    out = w.add(w.node("Log", total), top)
    return w.cast(out if keepdims else w.squeeze(out, which), x.dtype)


@writes("first_true")
def first_true(w, x, *, axes):
    """The reduced axes, merged at the end, have their first true element at the position of their maximum."""
    which = _which(x, axes)
    order = [*(i for i in range(x.rank) if i not in which), *which]
    moved = w.transpose(x, order)
    sizes = w.sizes(moved)
    kept = sizes[: x.rank - len(which)]
    count = w.product(sizes[x.rank - len(which) :])
    flat = w.reshape(moved, [*kept, count])
    if 0 in flat.shape:
        return x
    best = w.node("ArgMax", w.cast(flat, "int32"), axis=flat.rank - 1, keepdims=1, shape=(*flat.shape[:-1], 1))
    found = w.node("And", w.node("Equal", w.arange(count), best), flat)
    return w.transpose(w.reshape(found, sizes), [order.index(i) for i in range(x.rank)])


@writes("cumsum")
def cumsum(w, x, *, axis, exclusive, reverse):
    at = w.const(axis % x.rank, "int64")
    how = {"exclusive": int(exclusive), "reverse": int(reverse)}
    return w.cast(w.node("CumSum", w.wide(x), at, **how), x.dtype)


@writes("shift")
def shift(w, x, *, axis, steps):
    """A slice, and zeros before or after it."""
    at = axis % x.rank
    if steps == 0:
        return x
    n = w.size(x, at)
    sizes = w.sizes(x)
    moved = w.arith("Min", n, abs(steps))
    zeros = w.full([*sizes[:at], moved, *sizes[at + 1 :]], 0, x.dtype)
    kept = w.arith("Sub", n, moved)
    if steps > 0:
        return w.concat([zeros, w.slice_axis(x, at, 0, kept)], at)
    return w.concat([w.slice_axis(x, at, moved, n), zeros], at)


def scanned(
    w: OpSite,
    step: Callable[[OpSite, list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]],
    state: Sequence[Tensor],
    x: Sequence[Tensor],
    axis: int,
    reverse: bool = False,
) -> list[Tensor]:
    """The outs of a `Scan` along `axis`: for each position ``(state, outs) = step(site, state, elements of x)``.

    An x of lower rank than the first one is a vector, with a number for each position.
    """
    inside = w.inner()
    graph = inside.graph
    at = axis % x[0].rank
    axes = [at if v.rank == x[0].rank else 0 for v in x]
    states = [Tensor(w.model.fresh("state"), s.dtype, s.shape) for s in state]
    elements = [
        Tensor(w.model.fresh("element"), v.dtype, (*(v.shape or ())[:i], *(v.shape or ())[i + 1 :]))
        for v, i in zip(x, axes, strict=True)
    ]
    following, outs = step(inside, states, elements)
    results = [*following, *outs]
    taken: set[str] = set()
    for i, each in enumerate(results):
        if each.name not in graph.made or each.name in taken:
            shape = each.shape
            each = inside.node("Identity", each)
            results[i] = Tensor(each.name, each.dtype, shape)
        taken.add(results[i].name)
    results = [Tensor(r.name, r.dtype, (states + elements)[0].shape) for r in results]
    body = graph.proto(
        "step",
        [value_info(t.name, t.type) for t in (*states, *elements)],
        [value_info(t.name, t.type) for t in results],
    )
    shapes = [(s.dtype, s.shape) for s in state] + [(o.dtype, x[0].shape) for o in outs]
    direction = [int(reverse)]
    found = w.nodes(
        "Scan",
        *state,
        *x,
        outputs=shapes,
        body=body,
        num_scan_inputs=len(x),
        scan_input_axes=axes,
        scan_input_directions=direction * len(x),
        scan_output_axes=[at] * len(outs),
        scan_output_directions=direction * len(outs),
    )
    return found[len(state) :]


def _start(w, x, axis, value, dtype=None):
    """An array of `value` shaped like an element of x along `axis`."""
    at = axis % x.rank
    sizes = w.sizes(x)
    return w.full([*sizes[:at], *sizes[at + 1 :]], value, dtype or x.dtype)


def _empty_along(x, axis):
    return 0 in x.shape


@writes("linear_scan")
def linear_scan(w, a, b, begins=None, *, axis, reverse):
    if _empty_along(a, axis):
        return b
    va, vb = w.wide(a), w.wide(b)

    def step(w, state, given):
        new = w.add(w.mul(given[0], state[0]), given[1])
        if len(given) > 2:
            new = w.where(given[2], given[1], new)
        return [new], [new]

    x = [va, vb] if begins is None else [va, vb, begins]
    return w.cast(scanned(w, step, [_start(w, va, axis, 0)], x, axis, reverse)[0], a.dtype)


@writes("cumprod")
def cumprod(w, x, *, axis, exclusive, reverse):
    """A `Scan`; exclusive, it returns the product before it takes the element in."""
    if _empty_along(x, axis):
        return x
    v = w.wide(x)

    def step(w, state, given):
        new = w.mul(state[0], given[0])
        return [new], [state[0] if exclusive else new]

    return w.cast(scanned(w, step, [_start(w, v, axis, 1)], [v], axis, reverse)[0], x.dtype)


@writes("logcumsumexp")
def logcumsumexp(w, x, *, axis):
    if _empty_along(x, axis):
        return x
    v = w.wide(x)

    def step(w, state, given):
        a, b = state[0], given[0]
        top, low = w.node("Max", a, b), w.node("Min", a, b)
        none = w.node("Equal", top, w.number(-math.inf, top))
        ratio = w.node("Exp", w.sub(low, w.where(none, w.number(0, top), top)))
        new = w.where(none, top, w.add(top, w.node("Log", w.add(w.number(1, top), ratio))))
        return [new], [new]

    return w.cast(scanned(w, step, [_start(w, v, axis, -math.inf)], [v], axis)[0], x.dtype)


@writes("running_argmax")
def running_argmax(w, x, *, axis, sign):
    """A `Scan` that carries the best element and its position."""
    if _empty_along(x, axis):
        return w.zeros_like(x, "int64")
    v = w.wide(x)
    if v.dtype in ("bool", "uint8", "int8", "int16"):
        v = w.cast(v, "int32")
    at = axis % x.rank
    numbers = w.expand_like(w.unsqueeze(w.arange(w.size(x, at)), [i for i in range(x.rank) if i != at]), x)
    first = w.gather(v, w.const(0, "int64"), at)

    def step(w, state, given):
        best, place = state
        new, here = given
        stays = w.node("GreaterOrEqual" if sign == "max" else "LessOrEqual", best, new)
        if v.is_float:
            stays = w.node("Or", stays, w.node("IsNaN", best))
        place = w.where(stays, place, here)
        return [w.where(stays, best, new), place], [place]

    start = _start(w, x, axis, 0, "int64")
    return scanned(w, step, [first, start], [v, numbers], axis)[0]
