"""Open sizes that meet in one op: the code covers the runs in which they are equal, and compares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.ir import HOLE, Op, TensorType
from core.plan.compose import Maker
from core.plan.lowering import Lowering
from core.plan.plan import NOT_COVERED
from core.plan.sizes import Size
from core.plan.unsupported import Unsupported

__all__ = [
    "Axes",
    "Incomparable",
    "agreeing",
    "broadcast",
    "first_of",
    "is_one",
    "known_size",
    "matched",
    "same_size",
    "sizes_of",
    "with_equal",
    "with_known",
]

Axes = dict[int, Size]
"""The open sizes of an array, by axis."""


class Incomparable(Unsupported):
    """Sizes that an op needs to be equal, which the code can neither show nor compare."""

    def __init__(self) -> None:
        super().__init__("sizes that only the run can compare")


def sizes_of(low: Lowering, name: str) -> Axes:
    """The open sizes of a variable."""
    return low.sizes.get(name, {})


def known_size(low: Lowering, number: int) -> Size:
    """A size that is known, though the program does not say so."""
    return Size(number, low.dense(Maker(low).integer(number)))


def same_size(low: Lowering, a: Size | None, b: Size | None) -> bool:
    """Whether two sizes are equal in every run that the code covers.

    If both have one largest value, the code covers only such runs: it compares them.
    """
    if a is b:
        return True
    if a is None or b is None or a.bound != b.bound or not low.target.expects:
        return False
    if frozenset((a, b)) not in low.derived.compared:
        low.derived.compared.add(frozenset((a, b)))
        of = Maker(low)
        of.check(of("equal", a.length, b.length), NOT_COVERED, "sizes that differ", low.location)
    return True


def broadcast(low: Lowering, names: Sequence[str]) -> Axes:
    """The open sizes of an elementwise result. Raises Unsupported if the code cannot cover that operands fit."""
    rank = max(low.type(n).rank for n in names)
    found: Axes = {}
    for axis in range(-rank, 0):
        sizes: list[Size] = []
        known = set()
        for n in names:
            shape = low.type(n).shape
            if -axis > len(shape):
                continue
            own = sizes_of(low, n).get(axis + len(shape))
            if own is not None:
                sizes.append(own)
            elif shape[axis] != 1:
                known.add(shape[axis])
        if (sizes and known) or not all(same_size(low, sizes[0], each) for each in sizes):
            raise Incomparable
        if sizes:
            found[axis + rank] = sizes[0]
    return found


def with_known(low: Lowering, op: Op, sizes: Axes) -> Axes:
    """The sizes of the result of `op` with those that are known, though the program does not say so."""
    declared, types = low.types[op.outputs[0]], low.largest(op)
    assert isinstance(declared, TensorType)
    missing = [axis for axis, n in enumerate(declared.shape) if n == -1 and axis not in sizes]
    if not missing or types is None:
        return sizes
    numbers = {axis: types[0].shape[axis] for axis in missing}
    return sizes | {axis: known_size(low, n) for axis, n in numbers.items()}


def agreeing(low: Lowering, op: Op) -> Op:
    """Return `op` on operands whose sizes along each axis have one largest value, or are all known.

    The code covers runs in which these sizes are equal, so the smallest of their largest values suffices.
    """
    op = _spreading(low, op)
    names = [n for n in op.inputs if n != HOLE]
    for axis in range(-max(low.type(n).rank for n in names), 0):
        met = {n: low.type(n).shape[axis] for n in names if -axis <= low.type(n).rank}
        opened = [n for n in met if axis + low.type(n).rank in sizes_of(low, n)]
        fewest = min((size for n, size in met.items() if n in opened or size != 1), default=1)
        larger = [n for n in opened if met[n] > fewest]
        known = [n for n in met if n not in opened and met[n] == fewest != 1]
        if not larger and not (opened and known):
            continue
        if not low.target.expects or any(n not in opened and size not in (1, fewest) for n, size in met.items()):
            raise Incomparable
        for name in dict.fromkeys(opened if known else larger):
            parts = first_of(low, name, axis + low.type(name).rank, fewest, bool(known))
            op = replace(op, inputs=tuple(parts if n == name else n for n in op.inputs))
        names = [n for n in op.inputs if n != HOLE]
    return op


def _spreading(low: Lowering, op: Op) -> Op:
    """Return `op` on operands of which an open size of at most 1 is 1, if it meets a known or a larger one."""
    if not low.target.expects:
        return op
    names = [n for n in op.inputs if n != HOLE]
    ranks = {n: low.type(n).rank for n in names}
    for name in dict.fromkeys(names):
        for axis, size in sizes_of(low, name).items():
            end = axis - ranks[name]
            met = [n for n in names if n != name and -end <= ranks[n]]
            meets = [low.type(n).shape[end] > 1 or end + ranks[n] not in sizes_of(low, n) for n in met]
            if size.bound == 1 and any(meets):
                one = first_of(low, name, axis, 1, True)
                op = replace(op, inputs=tuple(one if n == name else n for n in op.inputs))
                return _spreading(low, op)
    return op


def matched(low: Lowering, one: tuple[str, int], other: tuple[str, int]) -> tuple[str, str]:
    """Two variables, each with an axis, as ones of which the axes have one size in each run that the code covers."""
    names, sizes = [name for name, _ in (one, other)], [sizes_of(low, name).get(axis) for name, axis in (one, other)]
    if sizes[0] is sizes[1]:
        return names[0], names[1]
    most = [low.type(name).shape[axis] for name, axis in (one, other)]
    known = [most[i] for i in (0, 1) if sizes[i] is None]
    fewest = known[0] if known else min(most)
    if not low.target.expects or fewest > min(most):
        raise Incomparable
    for i, (name, axis) in enumerate((one, other)):
        if sizes[i] is not None and (known or most[i] > fewest):
            names[i] = first_of(low, name, axis, fewest, bool(known))
    (_, i), (_, j) = one, other
    if not known and not same_size(low, sizes_of(low, names[0])[i], sizes_of(low, names[1])[j]):
        raise Incomparable
    return names[0], names[1]


def with_equal(low: Lowering, op: Op, one: tuple[int, int], other: tuple[int, int]) -> Op:
    """Return `op` on operands that are equally long: each is given by its position and an axis."""
    (i, axis), (j, beside) = one, other
    if sizes_of(low, op.inputs[i]).get(axis) is sizes_of(low, op.inputs[j]).get(beside):
        return op
    first, second = matched(low, (op.inputs[i], axis), (op.inputs[j], beside))
    size = sizes_of(low, first).get(axis)
    if size is not None and sizes_of(low, second)[beside] is not size:
        # the code compares the two sizes, so one may stand for both
        same = f"{second}@{beside}={first}@{axis}"
        low.types[same], low.sizes[same] = low.types[second], sizes_of(low, second) | {beside: size}
        low.define(same, low.entry(second))
        second = same
    names = {i: first, j: second}
    return replace(op, inputs=tuple(names.get(k, name) for k, name in enumerate(op.inputs)))


def is_one(low: Lowering, op: Op, operand: int, axis: int) -> bool:
    """Whether an operand is known to have the size 1 along an axis, so that broadcasting repeats it."""
    name = op.inputs[operand]
    return axis not in sizes_of(low, name) and low.type(name).shape[axis] == 1


def first_of(low: Lowering, name: str, axis: int, size: int, known: bool) -> str:
    """A variable for the first `size` elements of another one along an open axis.

    known: whether the code covers only runs in which it has exactly as many; else those in which it has at most as
           many, and the caller compares the sizes.
    """
    found, of, own, type = f"{name}@{axis}:{size}", Maker(low), dict(sizes_of(low, name)), low.type(name)
    most, length = of.integer(size), own[axis].length
    of.check(of("equal" if known else "less_equal", length, most), NOT_COVERED, "sizes that differ", low.location)
    if known:
        del own[axis]
    else:  # a check that fails does not end the step, which then must not write beyond its memory
        own[axis] = Size(size, low.dense(of("minimum", length, most)))
    shape = (*type.shape[:axis], size, *type.shape[axis + 1 :])
    low.types[found], low.sizes[found] = TensorType(shape, type.dtype), own
    low.define(found, replace(low.stored(low.entry(name)), shape=shape))
    return found
