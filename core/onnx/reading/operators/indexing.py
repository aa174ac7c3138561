"""Operators that read and write elements by position, sort, and select."""

from __future__ import annotations

import numpy as np

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor

# --- slices --------------------------------------------------------------------------------------------------------


@converter("Slice")
def slice_(node: Node) -> Tensor:
    x = node[0]
    if node.opset < 10:
        starts = [int(n) for n in node.attr("starts")]
        ends = [int(n) for n in node.attr("ends")]
        axes = [int(n) for n in node.attr("axes", list(range(len(starts))))]
        return _sliced(node, x, axes, starts, ends, [1] * len(axes))
    first, last = node.sizes(1), node.sizes(2)
    axes = node.ints(3) if node.given(3) else list(range(len(first)))
    steps = node.sizes(4) if node.given(4) else [1] * len(axes)
    if not len(first) == len(last) == len(axes) == len(steps):
        raise node.refuse("starts, ends, axes and steps differ in length")
    if not all(-x.rank <= a < x.rank for a in axes):
        raise node.refuse(f"the axes {axes} do not fit rank {x.rank}")
    known = [i for i in range(len(axes)) if None not in (first[i], last[i], steps[i])]
    if known:
        places = [[each[i] or 0 for i in known] for each in (first, last, steps)]
        x = _sliced(node, x, [axes[i] for i in known], *places)
    open_ones = [i for i in range(len(axes)) if i not in known]
    open_ones = [i for i in open_ones if not _keeps_all(node, x, axes[i], first[i], i, steps[i])]
    if not open_ones:
        return x
    operands = [_picked(node, node.cast(node[k], "int64"), open_ones) for k in (1, 2)]
    operands.append(
        _picked(node, node.cast(node[4], "int64"), open_ones)
        if node.given(4)
        else node.const([1] * len(open_ones), "int64")
    )
    cut = [axes[i] % x.rank for i in open_ones]
    shape = [-1 if i in cut else n for i, n in enumerate(x.shape)]
    result: Tensor = node.emit("dynamic_slice", x, *operands, axes=cut, shape=shape)
    return result


def _sliced(node: Node, x: Tensor, axes: list[int], starts: list[int], ends: list[int], steps: list[int]) -> Tensor:
    for i, (axis, start, end, step) in enumerate(zip(axes, starts, ends, steps, strict=True)):
        n = x.shape[axis]
        if n != -1 and step < 0:  # a position before the first element means the first one
            starts[i] = min(start, n - 1)
            ends[i] = -(2**31) if end + (n if end < 0 else 0) < 0 else end
    starts, ends = ([min(max(n, -(2**31)), 2**31) for n in each] for each in (starts, ends))
    changed = [i for i in range(len(axes)) if (starts[i], steps[i]) != (0, 1) or ends[i] < 2**31 - 1]
    if not changed:
        return x
    parts = ([each[i] for i in changed] for each in (axes, starts, ends, steps))
    kept_axes, kept_starts, kept_ends, kept_steps = parts
    result: Tensor = node.emit("slice", x, axes=kept_axes, starts=kept_starts, ends=kept_ends, steps=kept_steps)
    return result


def _keeps_all(node: Node, x: Tensor, axis: int, start: int | None, position: int, step: int | None) -> bool:
    """Whether the slice of an axis is the whole axis in all worlds: its end is the size of the axis."""
    if start != 0 or step != 1:
        return False
    ends = node[2].samples
    pairs = [
        (a.type.shape[axis], int(b.value[position]))
        for a, b in zip(x.samples, ends, strict=False)
        if a is not None and b is not None and b.value is not None
    ]
    return len(pairs) > 1 and all(n == end for n, end in pairs)


def _picked(node: Node, vector: Tensor, positions: list[int]) -> Tensor:
    if positions == list(range(vector.shape[0])):
        return vector
    result: Tensor = node.emit("gather", vector, node.const(positions, "int64"), axis=0)
    return result


# --- reads ---------------------------------------------------------------------------------------------------------


@converter("Gather")
def gather(node: Node) -> Tensor:
    result: Tensor = node.emit("gather", node[0], node.cast(node[1], "int64"), axis=node.axis(0))
    return result


@converter("GatherElements")
def gather_elements(node: Node) -> Tensor:
    x, index, axis = node[0], node.cast(node[1], "int64"), node.axis(0)
    result: Tensor = node.emit("take_along_axis", _cropped(node, x, index, axis), index, axis=axis)
    return result


def _cropped(node: Node, x: Tensor, index: Tensor, axis: int) -> Tensor:
    """`x` without the elements beyond the sizes of `index` on the other axes."""
    axes = [i for i in range(x.rank) if i != axis and x.shape[i] != index.shape[i] and index.shape[i] != -1]
    if not axes:
        return x
    ends = [index.shape[i] for i in axes]
    result: Tensor = node.emit("slice", x, axes=axes, starts=[0] * len(axes), ends=ends)
    return result


@converter("GatherND")
def gather_nd(node: Node) -> Tensor:
    x, index, batch = node[0], node.cast(node[1], "int64"), int(node.attr("batch_dims", 0))
    if not 0 <= batch < min(x.rank, index.rank):
        raise node.refuse(f"batch_dims {batch} does not fit {x.type} and {index.type}")
    if batch:
        one = node.emit("slice", index, axes=[index.rank - 1], starts=[0], ends=[1])
        index = node.emit("concat", *(node.counted(one, i) for i in range(batch)), index, axis=index.rank - 1)
    result: Tensor = node.emit("gather_nd", x, index)
    return result


@converter("Compress")
def compress(node: Node) -> Tensor:
    x, condition = node[0], node[1]
    axis = 0
    if node.has("axis"):
        axis = node.axis()
    else:
        x = node.reshape(x, [-1])
    positions = node.emit("nonzero", condition)
    result: Tensor = node.emit("gather", x, node.emit("squeeze", positions, axes=[1]), axis=axis)
    return result


@converter("NonZero")
def nonzero(node: Node) -> Tensor:
    x = node[0]
    x = node.reshape(x, [1]) if x.rank == 0 else x
    result: Tensor = node.emit("transpose", node.emit("nonzero", x), axes=[1, 0])
    return result


@converter("OneHot")
def one_hot(node: Node) -> Tensor:
    index, values = node[0], node[2]
    depth = int(node.number(1))
    axis = int(node.attr("axis", -1))
    if not -index.rank - 1 <= axis <= index.rank:
        raise node.refuse(f"axis {axis} is out of range for rank {index.rank + 1}")
    axis %= index.rank + 1
    index = node.cast(index, "int64")
    depth_value = node.const(depth, "int64")
    negative = node.emit("less_than", index, node.const(0, "int64"))
    index = node.emit("where", negative, node.emit("add", index, depth_value), index)
    classes = np.arange(depth).reshape([-1 if i == axis else 1 for i in range(index.rank + 1)])
    hot = node.emit("equal", node.emit("unsqueeze", index, axes=[axis]), node.const(classes, "int64"))
    off, on = (node.reshape(node.emit("slice", values, axes=[0], starts=[i], ends=[i + 1]), []) for i in (0, 1))
    result: Tensor = node.emit("where", hot, on, off)
    return result


@converter("ReverseSequence")
def reverse_sequence(node: Node) -> Tensor:
    x, lengths = node[0], node.cast(node[1], "int64")
    time, batch = node.axis(0, "time_axis"), node.axis(1, "batch_axis")
    if lengths.rank != 1:
        raise node.refuse(f"the lengths must be a vector, not {lengths.type}")
    after = x.rank - 1 - batch
    per_batch = node.emit("unsqueeze", lengths, axes=list(range(1, 1 + after))) if after else lengths
    step = node.counted(x, time)
    mirrored = node.emit("sub", node.emit("sub", per_batch, node.const(1, "int64")), step)
    inside = node.emit("less_than", step, per_batch)
    result: Tensor = node.emit("take_along_axis", x, node.emit("where", inside, mirrored, step), axis=time)
    return result


# --- writes --------------------------------------------------------------------------------------------------------


@converter("ScatterElements", "Scatter")
def scatter_elements(node: Node) -> Tensor:
    x, index, updates, axis = node[0], node.cast(node[1], "int64"), node[2], node.axis(0)
    reduction = node.attr("reduction", "none")
    result: Tensor
    if reduction in ("none", "add"):
        reduce = {"none": "assign", "add": "add"}[reduction]
        result = node.emit("put_along_axis", x, index, updates, axis=axis, reduce=reduce)
        return result
    coordinates = [index if i == axis else node.counted(index, i) for i in range(x.rank)]
    return _combined(node, x, node.emit("stack", *coordinates, axis=-1), updates, reduction)


@converter("ScatterND")
def scatter_nd(node: Node) -> Tensor:
    x, index, updates = node[0], node.cast(node[1], "int64"), node[2]
    reduction = node.attr("reduction", "none")
    depth = index.shape[-1]
    if depth == -1:
        raise node.refuse("the number of coordinates is open")
    if depth == 0:
        raise node.refuse("the indices have no coordinates")
    result: Tensor
    if reduction == "none":
        columns = [node.emit("gather", index, node.const(i, "int64"), axis=-1) for i in range(depth)]
        result = node.emit("index_put", x, updates, *columns)
        return result
    if reduction == "add":
        result = node.emit("scatter_nd_add", x, index, updates)
        return result
    return _combined(node, x, index, updates, reduction)


def _combined(node: Node, x: Tensor, index: Tensor, updates: Tensor, reduction: str) -> Tensor:
    """`x` with updates multiplied into it, or the extremes of x and the updates.

    index: coordinates along the first axes of x, in the last axis. The updates of one position form a segment.
    """
    ops = {"mul": ("segment_prod", "mul"), "max": ("segment_max", "maximum"), "min": ("segment_min", "minimum")}
    if reduction not in ops:
        raise node.refuse(f"the reduction must be none, add, mul, max or min, not {reduction!r}")
    if not x.type.is_static or not index.type.is_static:
        raise node.refuse(f"the reduction {reduction} needs known sizes")
    depth = index.shape[-1]
    outer, inner = x.shape[:depth], x.shape[depth:]
    rows = int(np.prod(outer, dtype="int64"))
    wraps = node.const(np.array(outer), "int64")
    index = node.emit(
        "where", node.emit("less_than", index, node.const(0, "int64")), node.emit("add", index, wraps), index
    )
    strides = [int(np.prod(outer[i + 1 :], dtype="int64")) for i in range(depth)]
    row = node.emit("reduce_sum", node.emit("mul", index, node.const(strides, "int64")), axes=[index.rank - 1])
    row = node.reshape(row, [-1])
    flat = node.reshape(x, [rows, *inner])
    given = node.reshape(updates, [row.shape[0], *inner])
    op = {"max": "segment_max", "min": "segment_min"}.get(reduction)
    if op is None:
        return node.reshape(_products(node, flat, row, given), x.shape)
    own = node.const(np.arange(rows), "int64")
    both = node.emit("concat", flat, given, axis=0)
    result: Tensor = node.emit(op, both, node.emit("concat", own, row, axis=0), num_segments=rows)
    return node.reshape(result, x.shape)


def _products(node: Node, x: Tensor, row: Tensor, updates: Tensor) -> Tensor:
    """Rows of `x` times all updates of their number: one write after the other, in the order of the updates."""
    count = row.shape[0]
    if count > 4096:
        raise node.refuse(f"{count} updates with the reduction mul are more than 4096")
    hot = node.emit("equal", node.emit("unsqueeze", row, axes=[1]), node.const(np.arange(x.shape[0])[None], "int64"))
    hot = node.emit("unsqueeze", hot, axes=list(range(2, 2 + x.rank - 1))) if x.rank > 1 else hot
    ones = node.const(1, x.dtype)
    factors = node.emit("where", hot, node.emit("unsqueeze", updates, axes=[1]), ones)
    result: Tensor = node.emit("mul", x, node.emit("reduce_prod", factors, axes=[0]))
    return result


# --- order and selection -------------------------------------------------------------------------------------------


@converter("TopK")
def top_k(node: Node) -> tuple[Tensor, Tensor]:
    x, axis = node[0], node.axis(-1)
    k = int(node.attr("k")) if node.opset < 10 else int(node.number(1))
    largest = bool(node.attr("largest", 1))
    values, index = node.emit("topk", x, k=k, axis=axis, largest=largest)
    return values, index


@converter("Trilu")
def trilu(node: Node) -> Tensor:
    x, k = node[0], int(node.number(1, 0.0))
    op = "triu" if node.attr("upper", 1) else "tril"
    if x.dtype == "bool":
        return node.cast(node.emit(op, node.cast(x, "int32"), diagonal=k), "bool")
    result: Tensor = node.emit(op, x, diagonal=k)
    return result


@converter("Unique")
def unique(node: Node) -> tuple[Tensor, ...]:
    x = node[0]
    if node.has("axis") and x.rank > 1:
        raise node.refuse("unique slices along an axis are not supported")
    flat = node.reshape(x, [-1])
    values, inverse, counts = node.emit("unique", flat)
    first, _, _ = node.emit("unique_positions", flat)
    if not node.attr("sorted", 1):
        order = node.emit("argsort", first, axis=0)
        place = node.emit("argsort", order, axis=0)
        values, counts, first = (node.emit("gather", each, order, axis=0) for each in (values, counts, first))
        inverse = node.emit("gather", place, inverse, axis=0)
    return values, first, node.reshape(inverse, [-1]), counts
