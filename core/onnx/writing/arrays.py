"""Stacks and tensor arrays as tensors.

ONNX has sequences, but no sequences of sequences, and no gradient of a loop needs them. The elements of a stack lie one
after the other in one tensor. Where their shapes can differ they lie there flattened, and a second tensor has their
shapes. A stack of stacks has the number of elements of each inner stack in a further tensor.

The cotangent of a tensor array may lack elements, which count as zeros. Among arrays of one shape they are zeros;
otherwise the sizes of a missing element are -1, and it has no data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from core.ir import TensorType
from core.onnx.writing.graph import Tensor
from core.onnx.writing.site import Site, Size

__all__ = [
    "Stack",
    "alike",
    "append",
    "at",
    "drop",
    "empty",
    "flattened",
    "join",
    "laid_out",
    "length",
    "missing",
    "numels",
    "one",
    "open_tensors",
    "padded",
    "put_together",
    "reversed_stack",
    "zeros",
]


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack of arrays in tensors.

    element: the type of the arrays in the innermost stacks.
    data:    [total, *shape of an array], or [sum of all sizes] if `shapes` is not None.
    shapes:  int64 [total, rank], or None if all arrays have one shape.
    counts:  one int64 vector for each outer level, the outermost first: the number of elements of each inner stack.
    """

    element: TensorType
    data: Tensor
    shapes: Tensor | None = None
    counts: tuple[Tensor, ...] = ()

    @property
    def depth(self) -> int:
        return 1 + len(self.counts)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the stack, in the order that `put_together` takes."""
        return (self.data, *(() if self.shapes is None else (self.shapes,)), *self.counts)


def put_together(like: Stack, tensors: list[Tensor]) -> Stack:
    """The stack that consists of `tensors`, of the form of `like`."""
    data, rest = tensors[0], tensors[1:]
    shapes = rest.pop(0) if like.shapes is not None else None
    return Stack(like.element, data, shapes, tuple(rest))


def open_tensors(stack: Stack) -> list[Tensor]:
    """The tensors of a stack with an open first size, as a loop or branch declares them."""
    out = []
    for each in stack.tensors:
        assert each.shape is not None
        out.append(replace(each, shape=(-1, *each.shape[1:])))
    return out


def empty(w: Site, element: TensorType, depth: int, uniform: bool) -> Stack:
    """A stack without elements."""
    counts = tuple(w.ints([]) for _ in range(depth - 1))
    if uniform:
        sizes = [max(n, 0) for n in element.shape]
        data = w.full([0, *sizes], 0, element.dtype)
        return Stack(element, replace(data, shape=(0, *element.shape)), None, counts)
    return Stack(element, w.full([0], 0, element.dtype), w.full([0, element.rank], 0, "int64"), counts)


def one(w: Site, x: Tensor | Stack, uniform: bool) -> Stack:
    """A stack with the one element x, an array or a stack."""
    if isinstance(x, Stack):
        return Stack(x.element, x.data, x.shapes, (w.vector([length(w, x)]), *x.counts))
    if uniform:
        return Stack(x.type, w.unsqueeze(x, [0]))
    return Stack(x.type, w.flat(x), w.reshape(w.shape_of(x), [1, x.rank]))


def length(w: Site, stack: Stack) -> Size:
    """The number of elements of a stack."""
    if stack.counts:
        return w.size(stack.counts[0], 0)
    return w.size(stack.data if stack.shapes is None else stack.shapes, 0)


def join(w: Site, a: Stack, b: Stack) -> Stack:
    """The elements of `a`, then those of `b`."""
    a, b = _shaped(w, a, b), _shaped(w, b, a)
    parts = [w.concat([x, y]) for x, y in zip(a.tensors, b.tensors, strict=True)]
    return put_together(a, parts)


def _shaped(w: Site, a: Stack, b: Stack) -> Stack:
    """`a`, with the sizes of the elements of `b` if `a` is empty and its sizes are open."""
    if a.shapes is not None or -1 not in a.element.shape or (a.data.shape or (1,))[0] != 0:
        return a
    sizes: list[Size] = [0, *w.sizes(b.data)[1:]]
    return replace(a, data=w.reshape(a.data, sizes))


def append(w: Site, stack: Stack, x: Tensor | Stack) -> Stack:
    """`stack` with x, an array or a stack, as one more element."""
    new = one(w, x, stack.shapes is None)
    if stack.shapes is None and -1 in stack.element.shape:
        n = w.size(stack.data, 0)
        data = w.reshape(stack.data, [n, *w.sizes(new.data)[1:]])
        stack = replace(stack, data=data)
    return join(w, stack, new)


def _offsets(w: Site, counts: Tensor) -> Tensor:
    """The sums of the counts before each element, and of all: int64 [n + 1]."""
    total = w.node("CumSum", counts, w.const(np.int64(0)))
    return w.concat([w.ints([0]), total])


def drop(w: Site, stack: Stack, start: Size, end: Size) -> Stack:
    """The elements from `start` to before `end`."""
    levels = []
    for counts in stack.counts:
        levels.append(w.slice_axis(counts, 0, start, end))
        offsets = _offsets(w, counts)
        start, end = (w.gather(offsets, w.vector([each])) for each in (start, end))
    if stack.shapes is None:
        return Stack(stack.element, w.slice_axis(stack.data, 0, start, end), None, tuple(levels))
    shapes = w.slice_axis(stack.shapes, 0, start, end)
    offsets = _offsets(w, numels(w, stack.shapes))
    first, last = (w.gather(offsets, w.vector([each])) for each in (start, end))
    return Stack(stack.element, w.slice_axis(stack.data, 0, first, last), shapes, tuple(levels))


def numels(w: Site, shapes: Tensor) -> Tensor:
    """The numbers of elements of arrays, from their shapes [n, rank]; 0 for a missing array."""
    product = w.reduce("ReduceProd", shapes, [1], False)
    return w.where(missing(w, shapes), w.const(np.int64(0)), product)


def missing(w: Site, shapes: Tensor) -> Tensor:
    """Which arrays are missing, from their shapes [n, rank]: bool [n]."""
    if shapes.rank and shapes.shape and shapes.shape[1] == 0:
        return w.full([w.size(shapes, 0)], False, "bool")
    return w.node("Less", w.reduce("ReduceMin", shapes, [1], False), w.const(np.int64(0)))


def padded(w: Site, stack: Stack, count: Size) -> Stack:
    """`stack`, in the form for different shapes, with missing elements at its end up to `count` elements."""
    assert stack.shapes is not None
    absent = w.arith("Max", w.arith("Sub", count, w.size(stack.shapes, 0)), 0)
    rows = w.full([absent, stack.element.rank], -1, "int64")
    return replace(stack, shapes=w.concat([stack.shapes, rows]))


def laid_out(w: Site, stack: Stack, shapes: Tensor) -> Tensor:
    """The data of `stack` as the data of a stack with `shapes`; missing elements become zeros.

    The two have the same number of elements, and equal shapes where `stack` has an element.
    """
    assert stack.shapes is not None
    own, new = numels(w, stack.shapes), numels(w, shapes)
    zero = w.const(np.int64(0))
    moves = w.sub(w.node("CumSum", new, zero, exclusive=1), w.node("CumSum", own, zero, exclusive=1))
    ends = w.node("CumSum", own, zero)
    at = w.arange(w.size(stack.data, 0))
    before = w.node("LessOrEqual", ends, w.unsqueeze(at, [1]))
    ids = w.reduce("ReduceSum", w.cast(before, "int64"), [-1], False)
    total = w.reduce("ReduceSum", new, [0], True)
    return w.scatter_add(total, w.add(at, w.gather(moves, ids)), stack.data)


def at(w: Site, stack: Stack, index: Tensor) -> Tensor | Stack:
    """Element `index`, an int64 tensor [1]: an array, or the inner stack."""
    if stack.counts:
        following = w.add(index, w.ints([1]))
        offsets = _offsets(w, stack.counts[0])
        start, end = w.gather(offsets, index), w.gather(offsets, following)
        inner = Stack(stack.element, stack.data, stack.shapes, stack.counts[1:])
        return drop(w, inner, start, end)
    if stack.shapes is None:
        found = w.gather(stack.data, w.reshape(index, []))
        return Tensor(found.name, found.dtype, stack.element.shape)
    offsets = _offsets(w, numels(w, stack.shapes))
    start, end = w.gather(offsets, index), w.gather(offsets, w.add(index, w.ints([1])))
    shape = w.reshape(w.gather(stack.shapes, index), [stack.element.rank])
    values = w.slice_axis(stack.data, 0, start, end)
    return w.node("Reshape", values, shape, shape=stack.element.shape, allowzero=1)


def reversed_stack(w: Site, stack: Stack) -> Stack:
    """A stack of arrays of one shape, in reverse order."""
    assert stack.shapes is None and not stack.counts
    return replace(stack, data=w.slice_axis(stack.data, 0, -1, -(2**31), -1))


def flattened(w: Site, stack: Stack) -> Stack:
    """The same stack in the form for arrays of different shapes."""
    if stack.shapes is not None:
        return stack
    n = w.size(stack.data, 0)
    rank = stack.element.rank
    each = w.slice_axis(w.shape_of(stack.data), 0, 1, rank + 1)
    return replace(stack, data=w.flat(stack.data), shapes=w.expand(w.unsqueeze(each, [0]), [n, rank]))


def alike(w: Site, *stacks: Stack) -> list[Stack]:
    """The stacks in one form."""
    if all(s.shapes is None for s in stacks):
        return list(stacks)
    return [flattened(w, s) for s in stacks]


def zeros(w: Site, stack: Stack) -> Stack:
    """A stack of zeros with the shapes of `stack`."""
    return replace(stack, data=w.zeros_like(stack.data))
