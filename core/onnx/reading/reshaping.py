"""Reshapes to sizes that are open: static ops where the sample sizes show how the axes divide and merge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from core.onnx.reading.node import Node
from core.onnx.reading.values import Tensor
from core.onnx.reading.worlds import WORLDS, Sample

__all__ = ["reshaped"]

Shape = tuple[int, ...]
Shapes = tuple[Shape, Shape]


def reshaped(node: Node, x: Tensor, sizes: Tensor, target: Sequence[int | None], copies_zeros: bool) -> Tensor:
    """`x` with the shape that the vector `sizes` gives at run time.

    target:       the elements of `sizes`, None where they are open.
    copies_zeros: whether a 0 stands for the size of x at that axis.
    """
    known = [_copied(x, i) if n == 0 and copies_zeros else n for i, n in enumerate(target)]
    if any(n is not None and n < -1 for n in known):
        raise node.refuse(f"the shape {known} has a size below -1")
    if known.count(-1) > 1:
        raise node.refuse(f"the shape {known} has more than one -1")
    if None not in known:
        return node.reshape(x, [n for n in known if n is not None])
    all_worlds = _worlds(x, sizes, copies_zeros)
    worlds = [each for each in all_worlds if each is not None]
    if len(worlds) > 1:
        groups = _groups(worlds)
        if groups is not None:
            return _regrouped(node, x, groups, worlds)
        if known.count(None) == 1 and -1 not in known:
            return node.reshape(x, [-1 if n is None else n for n in known])
        like = node.draft.shaped([None if each is None else each[1] for each in all_worlds])
        if like is not None:
            result: Tensor = node.emit("reshape_as", x, like)
            return result
    return _by_sizes(node, x, sizes, known, copies_zeros)


def _copied(x: Tensor, axis: int) -> int | None:
    if axis >= x.rank:
        return 0
    return None if x.shape[axis] == -1 else x.shape[axis]


def _worlds(x: Tensor, sizes: Tensor, copies_zeros: bool) -> list[Shapes | None]:
    """The shapes of x and of the result in each world, None for a world that does not know both."""
    found: list[Shapes | None] = []
    for w in range(WORLDS):
        at = x.samples[w] if x.samples else Sample(x.type)
        into = sizes.samples[w] if sizes.samples else Sample(sizes.type, sizes.known)
        if at is None or into is None or into.value is None or -1 in at.type.shape:
            found.append(None)
        else:
            found.append(_pair(at.type.shape, into.value, copies_zeros))
    return found


def _pair(own: Shape, into: Iterable[int], copies_zeros: bool) -> Shapes | None:
    shape = [int(n) for n in into]
    if copies_zeros:
        shape = [own[i] if n == 0 and i < len(own) else n for i, n in enumerate(shape)]
    total, rest = math.prod(own), math.prod(n for n in shape if n != -1)
    if -1 in shape:
        if not rest or total % rest:
            return None
        shape[shape.index(-1)] = total // rest
    return (own, tuple(shape)) if math.prod(shape) == total and min(shape, default=1) > 0 else None


def _groups(worlds: Sequence[Shapes]) -> list[tuple[range, range]] | None:
    """Runs of axes of x and of the result with the same number of elements in all worlds, each as short as possible.

    None if a run of the result has two open sizes that a run of x does not have unchanged.
    """
    m, n = len(worlds[0][0]), len(worlds[0][1])
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < m or j < n:
        for a, b in _ends(i, j, m, n):
            if all(math.prod(s[i:a]) == math.prod(t[j:b]) for s, t in worlds):
                groups.append((range(i, a), range(j, b)))
                i, j = a, b
                break
        else:
            return None
    for source, result in groups:
        same = len(source) == len(result) == 1
        if not same and sum(_is_open(worlds, axis) for axis in result) > 1:
            return None
    return groups


def _ends(i: int, j: int, m: int, n: int) -> list[tuple[int, int]]:
    """Ends of the runs that start at i and j, shortest first."""
    pairs = [(a, b) for a in range(i, m + 1) for b in range(j, n + 1) if (a, b) != (i, j)]
    return sorted(pairs, key=lambda each: (max(each[0] - i, each[1] - j), each))


def _is_open(worlds: Sequence[Shapes], axis: int) -> bool:
    return len({t[axis] for _, t in worlds}) > 1


def _regrouped(node: Node, x: Tensor, groups: Sequence[tuple[range, range]], worlds: Sequence[Shapes]) -> Tensor:
    """`x` with each run of axes merged and divided. From the last run to the first, so that axes keep their numbers."""
    for source, result in reversed(groups):
        if len(source) == len(result) == 1:
            continue
        sizes = [-1 if _is_open(worlds, axis) else worlds[0][1][axis] for axis in result]
        if not source:
            x = node.emit("unsqueeze", x, axes=[source.start + k for k in range(len(sizes))])
            continue
        if not sizes:
            x = node.emit("squeeze", x, axes=list(source))
            continue
        if len(source) > 1:
            x = node.emit("merge_axes", x, start=source.start, end=source.stop)
        if len(sizes) > 1:
            x = node.emit("unflatten", x, axis=source.start, sizes=sizes)
    return x


def _by_sizes(node: Node, x: Tensor, sizes: Tensor, known: Sequence[int | None], copies_zeros: bool) -> Tensor:
    shape = [-1 if n is None or n == -1 else n for n in known]
    sizes = node.cast(sizes, "int64")
    if copies_zeros and any(n is None for n in known):
        own = node.emit("slice", node.emit("shape", x), axes=[0], starts=[0], ends=[len(known)])
        if x.rank < len(known):
            own = node.emit("concat", own, node.const([0] * (len(known) - x.rank), "int64"), axis=0)
        sizes = node.emit("where", node.emit("equal", sizes, node.const(0, "int64")), own, sizes)
    result: Tensor = node.emit("dynamic_reshape", x, sizes, shape=shape)
    return result
