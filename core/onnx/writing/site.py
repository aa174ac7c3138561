"""The place of one op in a graph, and the functions that rules call to write nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from core.ir import Op
from core.onnx.writing.dtypes import ELEM, computed_in, numpy_dtype
from core.onnx.writing.fold import folded
from core.onnx.writing.graph import Graph, Tensor
from core.onnx.writing.output_types import dtype_of, shape_of

__all__ = ["Site", "Size"]

Size = int | Tensor
"""A size: a number, or an int64 tensor [1] that the run computes."""

DATA = {"Where": 1, "OneHot": 2}
"""The first input whose dtype chooses the kernel, where that is not input 0."""


class Site:
    """Writes the nodes of one op into a graph.

    op: the op. types: the types of its outputs.
    """

    def __init__(self, graph: Graph, op: Op, types: tuple[Any, ...]) -> None:
        self.graph = graph
        self.model = graph.model
        self.op = op
        self.types = types

    # --- nodes -----------------------------------------------------------------------------------------------------

    def node(
        self,
        operator: str,
        *inputs: Tensor | None,
        dtype: str | None = None,
        shape: tuple[int, ...] | None = None,
        **attrs: Any,
    ) -> Tensor:
        """The output of a new node. Inputs are cast where onnxruntime computes `operator` only in a wider dtype.

        dtype, shape: those of the output, where the operator and its inputs do not give them.
        """
        return self.nodes(operator, *inputs, outputs=((dtype, shape),), **attrs)[0]

    def nodes(
        self,
        operator: str,
        *inputs: Tensor | None,
        outputs: Sequence[tuple[str | None, tuple[int, ...] | None]],
        **attrs: Any,
    ) -> list[Tensor]:
        """The outputs of a new node, each with its (dtype, shape), as in `node`."""
        if len(outputs) == 1 and inputs:
            known = [None if x is None else self.model.known.get(x.name) for x in inputs]
            constant = folded(operator, known, attrs)
            if constant is not None:
                return [self.const(constant)]
        at = DATA.get(operator, 0)
        data = inputs[at] if len(inputs) > at else None
        given = list(inputs)
        narrow = wide = data.dtype if data is not None else ""
        if data is not None and operator != "Cast":
            wide = computed_in(operator, narrow)
        if wide != narrow:
            casts: dict[str, Tensor] = {}
            for i, each in enumerate(given):
                if each is not None and each.dtype == narrow and (i, operator) != (0, "Where"):  # a condition is bool
                    if each.name not in casts:
                        casts[each.name] = self.cast(each, wide)
                    given[i] = casts[each.name]
        found, final = [], []
        for dtype, shape in outputs:
            made = dtype or dtype_of(operator, wide)
            sizes = shape if shape is not None else shape_of(operator, [x.shape for x in inputs if x is not None])
            found.append(Tensor(self.model.fresh(self.op.type), made, sizes))
            final.append(narrow if dtype is None and made == wide != narrow else made)
        self.graph.add(operator, [x.name if x is not None else "" for x in given], [x.name for x in found], attrs)
        return [x if x.dtype == to else self.cast(x, to) for x, to in zip(found, final, strict=True)]

    # --- values ----------------------------------------------------------------------------------------------------

    def const(self, value: Any, dtype: str | None = None) -> Tensor:
        """A constant. Its dtype is that of `value` if none is given."""
        array = np.asarray(value)
        kind = dtype or str(array.dtype)
        if kind == "bfloat16" or str(array.dtype) == "bfloat16":
            return self.model.constant(array.astype(numpy_dtype(kind)), kind)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.model.constant(array.astype(kind), kind)

    def ints(self, values: Iterable[int]) -> Tensor:
        """A constant int64 vector."""
        return self.const(np.array(list(values), np.int64))

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """x converted as ONNX converts it; x itself if it has that dtype."""
        if x.dtype == dtype:
            return x
        return self.node("Cast", x, dtype=dtype, to=ELEM[dtype])

    def wide(self, x: Tensor) -> Tensor:
        """16-bit floats as float32; other values unchanged."""
        return self.cast(x, "float32") if x.is_half else x

    # --- shapes ----------------------------------------------------------------------------------------------------

    def size(self, x: Tensor, axis: int) -> Size:
        """The size of one axis of x."""
        axis %= x.rank
        assert x.shape is not None
        n = x.shape[axis]
        return n if n >= 0 else self.node("Shape", x, shape=(1,), start=axis, end=axis + 1)

    def shape_of(self, x: Tensor) -> Tensor:
        """The shape of x: a constant if it is known."""
        if x.shape is not None and x.is_static:
            return self.ints(x.shape)
        return self.node("Shape", x, shape=None if x.shape is None else (len(x.shape),))

    def sizes(self, x: Tensor) -> list[Size]:
        """The sizes of all axes of x."""
        return [self.size(x, i) for i in range(x.rank)]

    def vector(self, sizes: Sequence[Size]) -> Tensor:
        """Sizes as an int64 vector."""
        sizes = [self.known_size(n) for n in sizes]
        if all(isinstance(n, int) for n in sizes):
            return self.ints(n for n in sizes if isinstance(n, int))
        parts = [self.ints([n]) if isinstance(n, int) else n for n in sizes]
        return parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=0, shape=(len(parts),))

    def scalar(self, size: Size) -> Tensor:
        """A size as an int64 array without axes."""
        if isinstance(size, int):
            return self.const(np.int64(size))
        return self.node("Reshape", size, self.ints([]), shape=())

    def known_size(self, size: Size) -> Size:
        """A size as a number, if it is a constant."""
        if isinstance(size, Tensor) and size.name in self.model.known:
            return int(self.model.known[size.name].reshape(()))
        return size

    def product(self, sizes: Sequence[Size]) -> Size:
        """The product of sizes."""
        number = math.prod(n for n in sizes if isinstance(n, int))
        out: Size = number
        for n in sizes:
            if isinstance(n, Tensor):
                out = n if isinstance(out, int) and out == 1 else self.arith("Mul", out, n)
        return out

    def arith(self, operator: str, a: Size, b: Size) -> Size:
        """``a operator b`` for sizes: Add, Sub, Mul, Div (which truncates), Max or Min."""
        a, b = self.known_size(a), self.known_size(b)
        if isinstance(a, int) and isinstance(b, int):
            return {
                "Add": a + b,
                "Sub": a - b,
                "Mul": a * b,
                "Div": int(a / b) if b else 0,
                "Max": max(a, b),
                "Min": min(a, b),
            }[operator]
        x, y = (self.ints([n]) if isinstance(n, int) else n for n in (a, b))
        return self.node(operator, x, y, shape=(1,))

    def reshape(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """x with other sizes."""
        static = [n if isinstance(n, int) else -1 for n in sizes]
        if x.shape == tuple(static) and -1 not in static:
            return x
        if static.count(-1) == 1 and 0 not in static:
            return self.node("Reshape", x, self.ints(static), shape=tuple(static))
        how: dict[str, Any] = {"allowzero": 1} if 0 in static or -1 in static else {}
        return self.node("Reshape", x, self.vector(sizes), shape=tuple(static), **how)

    def reshape_like(self, x: Tensor, like: Tensor) -> Tensor:
        """x with the shape of `like`."""
        if like.shape is not None and like.is_static:
            return self.reshape(x, like.shape)
        return self.node("Reshape", x, self.shape_of(like), shape=like.shape, allowzero=1)

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """x with its axes permuted."""
        if list(perm) == list(range(x.rank)):
            return x
        assert x.shape is not None
        return self.node("Transpose", x, perm=list(perm), shape=tuple(x.shape[i] for i in perm))

    def moved(self, x: Tensor, start: int, end: int) -> Tensor:
        """x with axis `start` at position `end`, as numpy.moveaxis."""
        axes = list(range(x.rank))
        axes.insert(end % x.rank, axes.pop(start % x.rank))
        return self.transpose(x, axes)

    def unsqueeze(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """x with new axes of size 1, at these positions of the result."""
        if not axes:
            return x
        rank = x.rank + len(axes)
        at = sorted(a % rank for a in axes)
        shape = list(x.shape or ())
        for a in at:
            shape.insert(a, 1)
        return self.node("Unsqueeze", x, self.ints(at), shape=tuple(shape))

    def squeeze(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """x without these axes of size 1."""
        if not axes:
            return x
        gone = {a % x.rank for a in axes}
        shape = tuple(n for i, n in enumerate(x.shape or ()) if i not in gone)
        return self.node("Squeeze", x, self.ints(sorted(gone)), shape=shape)

    def expand(self, x: Tensor, sizes: Sequence[Size]) -> Tensor:
        """x broadcast to `sizes`."""
        static = tuple(n if isinstance(n, int) else -1 for n in sizes)
        if x.shape == static and -1 not in static:
            return x
        return self.node("Expand", x, self.vector(sizes), shape=static)

    def expand_like(self, x: Tensor, like: Tensor) -> Tensor:
        """x broadcast to the shape of `like`."""
        if x.shape is not None and x.shape == like.shape and x.is_static:
            return x
        return self.node("Expand", x, self.shape_of(like), shape=like.shape)

    def full(self, sizes: Sequence[Size], value: Any, dtype: str) -> Tensor:
        """An array full of `value`."""
        return self.expand(self.const(np.asarray(value), dtype), sizes)

    def zeros_like(self, x: Tensor, dtype: str | None = None) -> Tensor:
        """Zeros with the shape of x."""
        return self.full_like(x, 0, dtype or x.dtype)

    def full_like(self, x: Tensor, value: Any, dtype: str) -> Tensor:
        """An array full of `value` with the shape of x."""
        number = self.const(np.asarray(value), dtype)
        return self.node("Expand", number, self.shape_of(x), shape=x.shape) if x.shape != () else number

    def arange(self, count: Size) -> Tensor:
        """The int64 numbers 0 to `count` - 1."""
        if isinstance(count, int) and count <= 4096:
            return self.ints(range(count))
        end = self.scalar(count)
        zero, one = self.const(np.int64(0)), self.const(np.int64(1))
        return self.node("Range", zero, end, one, shape=(count if isinstance(count, int) else -1,))

    # --- common computations ---------------------------------------------------------------------------------------

    def number(self, value: float, like: Tensor) -> Tensor:
        """A constant without axes in the dtype of `like`."""
        return self.const(np.asarray(value), like.dtype)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return self.node("Add", x, y)

    def sub(self, x: Tensor, y: Tensor) -> Tensor:
        return self.node("Sub", x, y)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        return self.node("Mul", x, y)

    def div(self, x: Tensor, y: Tensor) -> Tensor:
        return self.node("Div", x, y)

    def where(self, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.node("Where", condition, x, y)

    def reduce(self, operator: str, x: Tensor, axes: Sequence[int] | None, keepdims: bool) -> Tensor:
        """A reduction over `axes`; None for all of them."""
        which = list(range(x.rank)) if axes is None else sorted(a % x.rank for a in axes)
        if not which:
            return x
        shape = tuple(1 if i in which else n for i, n in enumerate(x.shape or ()) if keepdims or i not in which)
        return self.node(operator, x, self.ints(which), keepdims=int(keepdims), shape=shape)

    def slice_axis(self, x: Tensor, axis: int, start: Size, end: Size, step: int = 1) -> Tensor:
        """``x[start:end:step]`` along one axis."""
        start, end = self.known_size(start), self.known_size(end)
        shape = list(x.shape or ())
        axis %= x.rank
        n = shape[axis]
        if n >= 0 and isinstance(start, int) and isinstance(end, int):
            shape[axis] = len(range(*slice(start, end, step).indices(n))) if end > -(2**31) else -1
        else:
            shape[axis] = -1
        ends = [self.ints([e]) if isinstance(e, int) else e for e in (start, end)]
        return self.node("Slice", x, *ends, self.ints([axis]), self.ints([step]), shape=tuple(shape))

    def gather(self, x: Tensor, index: Tensor, axis: int = 0) -> Tensor:
        """``x[..., index, ...]`` along `axis`."""
        axis %= x.rank
        assert x.shape is not None and index.shape is not None
        shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
        return self.node("Gather", x, index, axis=axis, shape=shape)

    def concat(self, parts: Sequence[Tensor], axis: int = 0) -> Tensor:
        """Arrays of one dtype, concatenated along `axis`."""
        if len(parts) == 1:
            return parts[0]
        axis %= parts[0].rank
        shapes = [p.shape or () for p in parts]
        along = [s[axis] for s in shapes]
        others = [max(s[i] for s in shapes) for i in range(len(shapes[0]))]
        others[axis] = sum(along) if min(along) >= 0 else -1
        return self.node("Concat", *parts, axis=axis, shape=tuple(others))

    def scatter_add(self, count: Size, index: Tensor, rows: Tensor, reduction: str = "add", start: float = 0) -> Tensor:
        """An array [count, ...] of `start`, to which the rows [n, ...] are added by `index` [n]."""
        wide = self.wide(rows)
        if wide.dtype in ("bool", "uint8", "int8", "int16"):
            wide = self.cast(wide, "int32")
        zeros = self.full([count, *self.sizes(wide)[1:]], start, wide.dtype)
        at = self.unsqueeze(index, [1])
        out = self.node("ScatterND", zeros, at, wide, reduction=reduction, shape=zeros.shape)
        return self.cast(out, rows.dtype)

    def check(self, holds: Tensor) -> Tensor:
        """An int64 zero [1]. The run ends with an error of the operator Gather if an element of `holds` is false."""
        wrong = self.reduce("ReduceSum", self.flat(self.cast(self.node("Not", holds), "int64")), None, True)
        return self.gather(self.ints([0]), self.node("Min", wrong, self.ints([1]), shape=(1,)))

    def guarded(self, x: Tensor, *holds: Tensor) -> Tensor:
        """x, unchanged. The run ends with an error if an element of `holds` is false.

        ONNX has no assertion: an index out of range stands for it, and x depends on that index by its shape.
        """
        given = [self.model.known.get(each.name) for each in holds]
        holds = tuple(each for each, value in zip(holds, given, strict=True) if value is None or not value.all())
        if not holds:
            return x
        shape = self.node("Shape", x, shape=(x.rank,))
        for each in holds:
            zero = self.check(each)
            if x.rank == 0:
                empty = self.slice_axis(zero, 0, 0, 0)
                shape = self.concat([shape, empty])
            else:
                shape = self.add(shape, zero)
        return self.node("Reshape", x, shape, shape=x.shape, allowzero=1)

    def flat(self, x: Tensor) -> Tensor:
        """x as a vector."""
        if x.shape is not None and len(x.shape) == 1:
            return x
        n = math.prod(x.shape) if x.shape is not None and x.is_static else -1
        return self.node("Reshape", x, self.ints([-1]), shape=(n,))
