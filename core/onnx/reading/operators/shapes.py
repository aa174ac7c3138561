"""Operators that change the shape of a tensor, and those that read it."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from core.onnx.reading.borders import bordered
from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.reshaping import reshaped
from core.onnx.reading.values import Tensor
from core.onnx.reading.worlds import WORLDS, Sample


@converter("Shape")
def shape(node: Node) -> Tensor:
    x = node[0]
    start, end = int(node.attr("start", 0)), int(node.attr("end", x.rank))
    axes = range(x.rank)[start:end]
    if all(x.shape[i] != -1 for i in axes):
        return node.const([x.shape[i] for i in axes], "int64")
    found: Tensor = node.emit("shape", x)
    if len(axes) < x.rank:
        found = node.emit("slice", found, axes=[0], starts=[axes.start], ends=[axes.stop])
    return found


@converter("Size")
def size(node: Node) -> Tensor:
    x = node[0]
    if x.type.is_static:
        return node.const(int(np.prod(x.shape, dtype="int64")), "int64")
    result: Tensor = node.emit("reduce_prod", node.emit("shape", x))
    return result


@converter("Reshape")
def reshape(node: Node) -> Tensor:
    x, sizes = node[0], node[1]
    return reshaped(node, x, sizes, node.sizes(1), copies_zeros=not node.attr("allowzero", 0))


@converter("Flatten")
def flatten(node: Node) -> Tensor:
    x, axis = node[0], int(node.attr("axis", 1))
    if not -x.rank <= axis <= x.rank:
        raise node.refuse(f"axis {axis} is out of range for rank {x.rank}")
    axis = axis + x.rank if axis < 0 else axis
    found = (
        node.emit("merge_axes", x, start=axis, end=x.rank) if axis < x.rank else node.emit("unsqueeze", x, axes=[axis])
    )
    result: Tensor = (
        node.emit("merge_axes", found, start=0, end=axis) if axis else node.emit("unsqueeze", found, axes=[0])
    )
    return result


def _axes(node: Node, since: int) -> list[int] | None:
    """The axes, an input since opset `since`, before that an attribute. None if they are not given."""
    if node.opset >= since:
        return node.ints(1) if node.given(1) else None
    found = node.optional("axes")
    return None if found is None else [int(each) for each in found]


@converter("Squeeze")
def squeeze(node: Node) -> Tensor:
    x, axes = node[0], _axes(node, 13)
    if axes is None:
        if -1 in x.shape:
            raise node.refuse(f"without axes it needs known sizes, not {x.type}")
        axes = [i for i, n in enumerate(x.shape) if n == 1]
    result: Tensor = node.emit("squeeze", x, axes=[a % x.rank if x.rank else a for a in axes]) if axes else x
    return result


@converter("Unsqueeze")
def unsqueeze(node: Node) -> Tensor:
    x, axes = node[0], _axes(node, 13)
    if axes is None:
        raise node.refuse("the axes are missing")
    rank = x.rank + len(axes)
    if len({a % rank for a in axes}) < len(axes) or not all(-rank <= a < rank for a in axes):
        raise node.refuse(f"the axes {axes} do not fit rank {rank}")
    result: Tensor = node.emit("unsqueeze", x, axes=sorted(a % rank for a in axes)) if axes else x
    return result


@converter("Transpose")
def transpose(node: Node) -> Tensor:
    x = node[0]
    perm = [int(n) for n in node.attr("perm", list(reversed(range(x.rank))))]
    result: Tensor = node.emit("transpose", x, axes=perm)
    return result


@converter("Expand")
def expand(node: Node) -> Tensor:
    x, sizes = node[0], node[1]
    return expanded(node, x, sizes, node.sizes(1))


def expanded(node: Node, x: Tensor, sizes: Tensor, target: list[int | None]) -> Tensor:
    """`x` broadcast with a shape. target: the elements of `sizes`, None where they are open."""
    rank = max(x.rank, len(target))
    wide = [*[1] * (rank - len(target)), *target]
    own = [*[1] * (rank - x.rank), *x.shape]
    if None not in wide:
        shape = [m if n == 1 else n for m, n in zip(own, wide, strict=True)]
        result: Tensor = x if shape == list(x.shape) else node.emit("expand", x, shape=shape)
        return result
    kept = _kept_sizes(x, sizes, own, wide)
    if kept is not None:
        found: Tensor = x if rank == x.rank and kept == [-1] * rank else node.emit("expand", x, shape=kept)
        return found
    like = _of_shape(node, x, sizes)
    if like is not None and rank == len(like.shape):
        same: Tensor = node.emit("expand_as", x, like)
        return same
    if rank > len(target):
        ones = node.const([1] * (rank - len(target)), "int64")
        sizes = node.emit("concat", ones, node.cast(sizes, "int64"), axis=0)
    known = [-1 if n is None or (m == -1 and n == 1) else m if n == 1 else n for m, n in zip(own, wide, strict=True)]
    by_sizes: Tensor = node.emit("dynamic_expand", x, node.cast(sizes, "int64"), shape=known)
    return by_sizes


def _of_shape(node: Node, x: Tensor, sizes: Tensor) -> Tensor | None:
    """A tensor that has the shape of `x` broadcast with `sizes` in all worlds."""
    shapes: list[tuple[int, ...] | None] = []
    for w in range(WORLDS):
        own = x.samples[w] if x.samples else Sample(x.type)
        into = sizes.samples[w] if sizes.samples else Sample(sizes.type, sizes.known)
        shapes.append(None)
        if own is not None and into is not None and into.value is not None and -1 not in own.type.shape:
            with suppress(ValueError):  # sizes that do not broadcast: an impossible world
                shapes[-1] = np.broadcast_shapes(own.type.shape, tuple(int(n) for n in into.value))
    return node.draft.shaped(shapes)


def _kept_sizes(x: Tensor, sizes: Tensor, own: list[int], wide: list[int | None]) -> list[int] | None:
    """The shape for `expand`, with -1 for sizes that x has already; None if an open size is new to x."""
    found = []
    for i, (m, n) in enumerate(zip(own, wide, strict=True)):
        if n == 1:
            found.append(m)
        elif n is not None and m in (1, n):
            found.append(n)
        elif (
            n is None
            and m == -1
            and _same_in_worlds(x, sizes, i - (len(own) - x.rank), i - (len(own) - sizes.shape[0]))
        ):
            found.append(-1)
        else:
            return None
    return found


def _same_in_worlds(x: Tensor, sizes: Tensor, axis: int, position: int) -> bool:
    """Whether an open size of x is the element of `sizes` in all worlds that know both."""
    pairs = [
        (a.type.shape[axis], int(b.value[position]))
        for a, b in zip(x.samples, sizes.samples, strict=False)
        if a is not None and b is not None and b.value is not None
    ]
    return len(pairs) > 1 and all(m == n for m, n in pairs)


@converter("Tile")
def tile(node: Node) -> Tensor:
    x = node[0]
    if node.opset < 6:
        raise node.refuse("Tile before opset 6 is not supported")
    repeats = node.sizes(1)
    if None not in repeats:
        result: Tensor = node.emit("tile", x, repeats=repeats)
        return result
    if len(repeats) != x.rank:
        raise node.refuse(f"{len(repeats)} repeats do not fit rank {x.rank}")
    ones = node.emit("unsqueeze", x, axes=[2 * i for i in range(x.rank)])
    pairs = []
    for i in range(x.rank):
        at = node.const([i], "int64")
        pairs += [node.emit("gather", node.cast(node[1], "int64"), at, axis=0), node.const([1], "int64")]
    sizes = node.emit("concat", *pairs, axis=0)
    found = expanded(node, ones, sizes, [each for n in repeats for each in (n, 1)])
    for i in range(x.rank):
        found = node.emit("merge_axes", found, start=i, end=i + 2)
    return found


@converter("Concat")
def concat(node: Node) -> Tensor:
    result: Tensor = node.emit("concat", *node.tensors(), axis=node.axis(1 if node.opset < 4 else None))
    return result


@converter("Split")
def split(node: Node) -> tuple[Tensor, ...]:
    x, axis = node[0], node.axis(0)
    count = len(node.proto.output)
    n = x.shape[axis]
    if node.opset >= 13:
        sections = node.known_sizes(1) if node.given(1) and not _are_equal_parts(node, count) else None
    else:
        sections = [int(n) for n in node.attr("split")] if node.has("split") else None
    if sections is None:
        parts = int(node.attr("num_outputs", count))
        if parts != count:
            raise node.refuse(f"num_outputs is {parts}, but the node has {count} outputs")
        if n != -1 and n % parts:
            each = -(-n // parts)
            sections = [min(each, max(n - i * each, 0)) for i in range(parts)]
        elif n == -1 and not node.given(1):
            raise node.refuse(f"axis {axis} of {x.type} is open: give the sizes of the parts")
    found = (
        node.emit("split", x, num=count, axis=axis)
        if sections is None
        else node.emit("split", x, sections=sections, axis=axis)
    )
    return found if isinstance(found, tuple) else (found,)


def _are_equal_parts(node: Node, count: int) -> bool:
    """Whether the sizes of the parts of an open axis are one open number. So it is the size divided by `count`."""
    sizes = node[1]
    values = [s.value for s in sizes.samples if s is not None and s.value is not None]
    alike = len(values) > 1 and all((v == v[0]).all() for v in values)
    return alike and sizes.shape == (count,) and None in node.sizes(1)


@converter("Pad")
def pad(node: Node) -> Tensor:
    x = node[0]
    if node.opset < 11:
        pads = [int(n) for n in node.attr("pads")]
        fill = node.const(node.attr("value", 0.0), x.dtype)
    else:
        fill = node.get(2) or node.const(0, x.dtype)
        if node[1].shape == (-1,):  # the run checks the length
            count = len(node.ints(3)) if node.given(3) else x.rank
            node.inputs[1] = node.emit("check_shape", node[1], shape=[2 * count])
        number = np.nan if fill.value is None else fill.value.reshape(-1)[0].item()
        is_number = float(number) == number  # NaN and large integers are no attributes
        if None in node.sizes(1) and node.attr("mode", "constant") == "constant" and is_number:
            return _padded_by_operands(node, x, float(number))
        pads = node.known_sizes(1)
    axes = node.ints(3) if node.given(3) else list(range(x.rank))
    if len(pads) != 2 * len(axes) or not all(-x.rank <= a < x.rank for a in axes):
        raise node.refuse(f"the pads {pads} do not fit the axes {axes} of rank {x.rank}")
    around = [(0, 0)] * x.rank
    for i, axis in enumerate(axes):
        around[axis % x.rank] = (pads[i], pads[i + len(axes)])
    modes = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    mode = node.attr("mode", "constant")
    if mode not in modes:
        raise node.refuse(f"the mode must be one of {', '.join(modes)}, not {mode!r}")
    return padded(node, x, around, fill, modes[mode])


def _padded_by_operands(node: Node, x: Tensor, fill: float) -> Tensor:
    """`x` between blocks whose widths come with the run. A negative width ends the run."""
    axes = node.ints(3) if node.given(3) else list(range(x.rank))
    widths = node.sizes(1)
    if len(widths) != 2 * len(axes) or not all(-x.rank <= a < x.rank for a in axes):
        raise node.refuse(f"{len(widths)} pads do not fit the axes {axes} of rank {x.rank}")
    vector = node.cast(node[1], "int64")
    for i, axis in enumerate(axes):
        before, after = (
            None if widths[at] == 0 else node.emit("gather", vector, node.const([at], "int64"), axis=0)
            for at in (i, i + len(axes))
        )
        x = bordered(node, x, axis % x.rank, before, after, fill)
    return x


def padded(node: Node, x: Tensor, around: list[tuple[int, int]], fill: Tensor, mode: str = "constant") -> Tensor:
    """`x` with a border; a negative width crops. fill: the content of a constant border, one element."""
    if any(n < 0 for pair in around for n in pair):
        axes = [i for i, pair in enumerate(around) if min(pair) < 0]
        starts = [max(-around[i][0], 0) for i in axes]
        ends = [min(around[i][1], 0) or 2**31 - 1 for i in axes]
        x = node.emit("slice", x, axes=axes, starts=starts, ends=ends)
        around = [(max(a, 0), max(b, 0)) for a, b in around]
    if not any(n for pair in around for n in pair):
        return x
    flat = [n for pair in around for n in pair]
    if mode != "constant":
        result: Tensor = node.emit("pad", x, paddings=flat, mode=mode)
        return result
    content = None if fill.value is None else fill.value.reshape(-1)[0].item()
    number = None if content is None else float(content)
    if number is not None and number == content and x.dtype != "bool":
        constant: Tensor = node.emit("pad", x, paddings=flat, value=number, mode="constant")
        return constant
    inside = node.emit("pad", node.emit("cast", node.emit("ones_like", x), dtype="int32"), paddings=flat)
    wide = node.emit("pad", node.cast(x, "int32") if x.dtype == "bool" else x, paddings=flat)
    one = node.reshape(fill, [])
    chosen: Tensor = node.emit("where", node.cast(inside, "bool"), node.cast(wide, x.dtype), one)
    return chosen
