"""Lowerings of ops on arrays whose sizes only the run tells (`core.plan.sizes`).

Most ops take such an array as one of its largest size. The others, which combine elements along the axis of an open
size or check them, get it with neutral elements beyond its length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from core.ir import HOLE, Op, TensorType
from core.ir.registry import lookup
from core.ops.common.types import as_dtype
from core.plan.compose import Maker
from core.plan.entries import Entry, positions
from core.plan.known import lower_known
from core.plan.lowering import LOWERINGS, Lowering
from core.plan.meeting_sizes import Axes, agreeing, broadcast, sizes_of, with_known
from core.plan.registering import registering
from core.plan.sizes import Size, is_open
from core.plan.unsupported import Unsupported

__all__ = [
    "adopt",
    "by_image",
    "clear_integers",
    "is_sized",
    "limited",
    "lower_sized",
    "masked",
    "new_size",
    "of_known_sizes",
    "rule",
    "run",
    "set_sizes",
    "under",
    "whole",
    "within",
]


def is_sized(low: Lowering, op: Op) -> bool:
    """Whether `op` reads or makes an array of an open size."""
    names = (*op.inputs, *op.outputs)
    return any(n in low.sizes or is_open(low.types[n]) for n in names if n != HOLE)


def adopt(low: Lowering, inner: Lowering, name: str, param: str) -> None:
    """Give a parameter of an inner block the sizes of the outer variable."""
    if name in low.sizes:
        inner.types[param], inner.sizes[param] = low.types[name], low.sizes[name]


def of_known_sizes(low: Lowering, op: Op, names: Iterable[str]) -> None:
    """Raises Unsupported if only the run tells a size of one of these operands of `op`."""
    if any(low.sizes.get(n) for n in names):
        raise Unsupported(f"{op.type} of sizes that only the run tells has no machine code")


def new_size(low: Lowering, bound: int) -> Size:
    return Size(bound, low.allocate((), "int64", "length"))


def set_sizes(low: Lowering, op: Op, axes: Sequence[Axes]) -> None:
    """Set the sizes of the results of `op`, and their types with the largest sizes.

    Raises Unsupported if there is no largest size, or unless `axes` has all open ones and no others.
    """
    if not any(axes) and not any(is_open(low.types[name]) for name in op.outputs):
        return
    types = low.largest(op)
    for i, (name, own) in enumerate(zip(op.outputs, axes, strict=True)):
        declared = low.types[name]
        if not isinstance(declared, TensorType) or types is None:
            raise Unsupported(f"the size of {name} is known only when it runs")
        open_axes = {axis for axis, n in enumerate(declared.shape) if n == -1}
        sizes = types[i].shape
        if open_axes != own.keys() or any(sizes[axis] != size.bound for axis, size in own.items()):
            raise Unsupported(f"the size of {name} is known only when it runs")
        low.types[name] = types[i]
        if own:
            low.sizes[name] = own


# --- values beyond the length -----------------------------------------------------------------------------------


def within(low: Lowering, shape: tuple[int, ...], axis: int, size: Size) -> Entry:
    """A bool for each element: whether its position along `axis` is below the length."""
    along = positions(shape, tuple(int(i == axis) for i in range(len(shape))))
    return Maker(low)("less_than", along, size.length)


def masked(low: Lowering, entry: Entry, axes: Mapping[int, Size], fill: object) -> Entry:
    """`entry` with `fill` beyond its lengths."""
    of = Maker(low)
    for axis, size in axes.items():
        own = tuple(n if i == axis else 1 for i, n in enumerate(entry.shape))
        entry = of.where(within(low, own, axis, size), entry, of.number(as_dtype(entry.dtype).type(fill), entry.dtype))
    return entry


def whole(low: Lowering, name: str, fill: object = 0, axes: frozenset[int] | None = None) -> Entry:
    """The value of a variable with `fill` beyond its lengths. axes: only those; None for all."""
    own = {i: s for i, s in low.sizes.get(name, {}).items() if axes is None or i in axes}
    return masked(low, low.entry(name), own, fill)


def under(low: Lowering, op: Op, entries: Mapping[str, Entry]) -> Op:
    """`op` with other values for some of its operands, under names of their own."""
    names = {}
    for name, entry in entries.items():
        names[name] = f"{name}@within"
        low.types[names[name]] = replace(low.type(name), dtype=entry.dtype)
        low.define(names[name], entry)
    return replace(op, inputs=tuple(names.get(n, n) for n in op.inputs))


@contextmanager
def limited(low: Lowering, size: Size | None) -> Iterator[None]:
    """Elementwise work inside the context leaves out what lies beyond this length along the first axis."""
    low.limit = size
    try:
        yield
    finally:
        low.limit = None


@contextmanager
def by_image(low: Lowering, number: Size | None) -> Iterator[None]:
    """Kernels inside the context that take images or matrices one after the other leave out those beyond this number.

    A target whose kernels cannot do so works on all of them.
    """
    low.images = number if low.target.expects else None
    try:
        yield
    finally:
        low.images = None


def run(low: Lowering, op: Op, size: Size | None = None) -> None:
    """Lower an op whose operands and results have known types now, and clear integers beyond their lengths.

    size: of the first axis of all results and of what is computed for them, if its rows depend on their own rows alone.
    """
    lowering = LOWERINGS.get(op.type)
    with limited(low, size):
        if lowering is not None:
            lower_known(low, op, lowering)
        elif lookup(op.type).elementwise:
            low.elementwise(op)
        else:
            raise Unsupported(f"{op.type} of sizes that only the run tells has no machine code")
    clear_integers(low, op)


def clear_integers(low: Lowering, op: Op) -> None:
    for name in filter(low.is_defined, op.outputs):
        own, entry = low.sizes.get(name), low.entry(name)
        if own and getattr(entry, "dtype", "").startswith(("int", "uint")):
            low.define(name, masked(low, entry, own, 0))


# --- the rules --------------------------------------------------------------------------------------------------

RULES: dict[str, Callable[[Lowering, Op], None]] = {}


rule = registering(RULES)
"""Decorator: the function lowers the ops of these types on arrays of open sizes."""


def lower_sized(low: Lowering, op: Op) -> None:
    """Lower an op that reads or makes arrays of open sizes. Raises Unsupported."""
    found = RULES.get(op.type)
    if found is not None:
        found(low, op)
    elif lookup(op.type).elementwise:
        _elementwise(low, op)
    else:
        raise Unsupported(f"{op.type} of sizes that only the run tells has no machine code")


def _elementwise(low: Lowering, op: Op) -> None:
    op, sizes = _meeting(low, op)
    run(low, op, sizes.get(0))


def _meeting(low: Lowering, op: Op) -> tuple[Op, Axes]:
    """An elementwise op whose operands have sizes that agree, and the open ones of its result."""
    op = agreeing(low, op)
    sizes = with_known(low, op, broadcast(low, [n for n in op.inputs if n != HOLE]))
    set_sizes(low, op, [sizes])
    return op, sizes


@rule("mod", "fmod", "floor_div", "bitwise_left_shift", "bitwise_right_shift")
def _checked(low: Lowering, op: Op) -> None:
    """Check all elements of the second operand. Elements beyond its length are 1, which passes the check."""
    op, _ = _meeting(low, op)
    second = op.inputs[1]
    if sizes_of(low, second):
        op = under(low, op, {second: whole(low, second, 1)})
    run(low, op)
