"""Ops whose sizes or positions are operands."""

from __future__ import annotations

from core.onnx.writing.registry import writes


@writes("dynamic_reshape")
def dynamic_reshape(w, x, sizes, *, shape):
    known = w.model.known.get(sizes.name)
    how = {} if known is not None and 0 not in known else {"allowzero": 1}
    return w.node("Reshape", x, sizes, shape=tuple(shape), **how)


@writes("dynamic_expand")
def dynamic_expand(w, x, sizes, *, shape):
    return w.node("Expand", x, sizes, shape=tuple(shape))


@writes("dynamic_fill")
def dynamic_fill(w, sizes, *, shape, value, dtype):
    return w.node("Expand", w.const(value, dtype), sizes, shape=tuple(shape))


@writes("dynamic_range")
def dynamic_range(w, start, end, step):
    ends = [w.wide(v) for v in (start, end, step)]
    if start.dtype in ("uint8", "int8"):
        ends = [w.cast(v, "int32") for v in ends]
    moves = w.node("Not", w.node("Equal", ends[2], w.number(0, ends[2])))
    ends[2] = w.guarded(ends[2], moves)
    return w.cast(w.node("Range", *ends, shape=(-1,)), start.dtype)


@writes("dynamic_slice")
def dynamic_slice(w, x, starts, ends, steps, *, axes, shape):
    if not axes:
        return x
    return w.node("Slice", x, starts, ends, w.ints(a % x.rank for a in axes), steps, shape=tuple(shape))


@writes("dynamic_slice_into")
def dynamic_slice_into(w, x, like, starts, ends, steps, *, axes):
    """The positions along each axis, cut like x, and one `ScatterND` for each axis."""
    out = x
    for i, axis in enumerate(a % like.rank for a in axes):
        n = w.size(like, axis)
        at = w.ints([i])
        cut = [w.gather(v, at) for v in (starts, ends, steps)]
        places = w.node("Slice", w.arange(n), cut[0], cut[1], w.ints([0]), cut[2], shape=(-1,))
        out = w.moved(w.scatter_add(n, places, w.moved(out, axis, 0)), 0, axis)
    return out
