"""Operators that read and write elements by position, sort, and select."""

from __future__ import annotations

import numpy as np

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor
from core.onnx.reading.worlds import WORLDS

# --- slices --------------------------------------------------------------------------------------------------------


@converter("Slice")
def slice_(node: Node) -> Tensor:
    x = node[0]
    if node.opset < 10:
        starts = [int(n) for n in node.attr("starts")]
        ends = [int(n) for n in node.attr("ends")]
        axes = [int(n) for n in node.attr("axes", list(range(len(starts))))]
        return _sliced(node, x, axes, starts, ends, [1] * len(axes))
    count = len(node.ints(3)) if node.given(3) else _count(node, 1, 2)
    for place in (1, 2, 4):
        _check_count(node, place, count)
    first, last = node.sizes(1), node.sizes(2)
    axes = node.ints(3) if node.given(3) else list(range(len(first)))
    steps = node.sizes(4) if node.given(4) else [1] * len(axes)
    if not len(first) == len(last) == len(axes) == len(steps):
        raise node.refuse("starts, ends, axes and steps differ in length")
    if not all(-x.rank <= a < x.rank for a in axes):
        raise node.refuse(f"the axes {axes} do not fit rank {x.rank}")
    known = [
        i
        for i, axis in enumerate(axes)
        if None not in (first[i], last[i], steps[i]) and not _may_start_before(x, axis, first[i], steps[i])
    ]
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


def _count(node: Node, *places: int) -> int | None:
    """The length of vectors of equal length, if that of one is known."""
    vectors = [node[place] for place in places]
    return next((x.shape[0] for x in vectors if x.rank == 1 and x.shape[0] != -1), None)


def _check_count(node: Node, place: int, count: int | None) -> None:
    """Let the run check that the vector of an input has `count` elements, if its length is open."""
    if count is not None and node.given(place) and node[place].shape == (-1,):
        node.inputs[place] = node.emit("check_shape", node[place], shape=[count])


def _may_start_before(x: Tensor, axis: int, start: int | None, step: int | None) -> bool:
    """Whether a slice towards the front may start before the first element of an open axis.

    It starts at the first element then. The op `slice` has no elements there, as in Python.
    """
    return x.shape[axis] == -1 and step is not None and step < 0 and start is not None and start < -1


def _sliced(node: Node, x: Tensor, axes: list[int], starts: list[int], ends: list[int], steps: list[int]) -> Tensor:
    for i, (axis, start, end, step) in enumerate(zip(axes, starts, ends, steps, strict=True)):
        n = x.shape[axis]
        if n != -1 and step < 0:  # a position before the first element means the first one
            starts[i] = min(max(start + n, 0) if start < 0 else start, n - 1)
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
    """Whether the slice of an axis is the whole axis: its end is the size of the axis in every world."""
    pairs = [
        (a.type.shape[axis], int(b.value[position]))
        for a, b in zip(x.samples, node[2].samples, strict=False)
        if a is not None and b is not None and b.value is not None
    ]
    return start == 0 and step == 1 and len(pairs) == WORLDS and all(n == end for n, end in pairs)


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
    axis = {"axis": node.axis()} if node.has("axis") else {}
    result: Tensor = node.emit("compress", node[0], node[1], **axis)
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
    time, batch = node.axis(0, "time_axis"), node.axis(1, "batch_axis")
    result: Tensor = node.emit(
        "reverse_sequence", node[0], node.cast(node[1], "int64"), time_axis=time, batch_axis=batch
    )
    return result


# --- writes --------------------------------------------------------------------------------------------------------

_REDUCTIONS = {"none": "assign", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _reduction(node: Node) -> str:
    found = node.attr("reduction", "none")
    if found not in _REDUCTIONS:
        raise node.refuse(f"the reduction must be one of {', '.join(_REDUCTIONS)}, not {found!r}")
    return _REDUCTIONS[found]


@converter("ScatterElements", "Scatter")
def scatter_elements(node: Node) -> Tensor:
    index = node.cast(node[1], "int64")
    result: Tensor = node.emit("put_along_axis", node[0], index, node[2], axis=node.axis(0), reduce=_reduction(node))
    return result


@converter("ScatterND")
def scatter_nd(node: Node) -> Tensor:
    index = node.cast(node[1], "int64")
    result: Tensor = node.emit("scatter_nd_update", node[0], index, node[2], reduce=_reduction(node))
    return result


# --- order and selection -------------------------------------------------------------------------------------------


@converter("TopK")
def top_k(node: Node) -> tuple[Tensor, Tensor]:
    x, axis, largest = node[0], node.axis(-1), bool(node.attr("largest", 1))
    if node.opset >= 10 and node[1].known is None:
        return _top_of_any_count(node, x, axis, largest)
    k = int(node.attr("k")) if node.opset < 10 else int(node.number(1))
    values, index = node.emit("topk", x, k=k, axis=axis, largest=largest)
    return values, index


def _top_of_any_count(node: Node, x: Tensor, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The count comes with the run: the size of the axis, or a number that depends on sizes or data."""
    index = node.emit("argsort", x, axis=axis, descending=largest)
    sizes = [
        (a.type.shape[axis], int(b.value.reshape(-1)[0]))
        for a, b in zip(x.samples, node[1].samples, strict=False)
        if a is not None and b is not None and b.value is not None and b.value.size == 1
    ]
    if len(sizes) < WORLDS or any(n != k for n, k in sizes):
        count = node.reshape(node.cast(node[1], "int64"), [1])
        ends = node.const([0], "int64"), count, node.const([1], "int64")
        shape = [-1 if i == axis else n for i, n in enumerate(x.shape)]
        index = node.emit("dynamic_slice", index, *ends, axes=[axis], shape=shape)
    values = node.emit("take_along_axis", x, index, axis=axis)
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
    axis = {"axis": node.axis()} if node.has("axis") else {}
    values, inverse, counts, first = node.emit("unique", x, sorted=bool(node.attr("sorted", 1)), **axis)
    return values, first, node.reshape(inverse, [-1]), counts
