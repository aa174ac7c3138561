"""Random numbers as values inside fusions: each element draws the number at its own position.

A draw is elementwise work on a position and the key, so a dropout is one pass over its operand, on all cores, and the
numbers do not depend on how the pass is split.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from core.ir import HOLE, Op, TensorType
from core.ops.common.types import as_dtype
from core.plan.compose import Maker
from core.plan.entries import Entry, Uniform, positions
from core.plan.fusion import Member
from core.plan.lowering import Lowering, lowers
from core.plan.memory import contiguous
from core.plan.row_major import row_major
from core.plan.sizes import Size

__all__ = ["drawn"]


@lowers("uniform_random", "uniform_random_like")
def lower_uniform(low: Lowering, op: Op) -> None:
    type, of = low.type(op.outputs[0]), Maker(low)
    least, most = op.attrs["min"], op.attrs["max"]
    kind, unit_range = as_dtype(type.dtype).type, (least, most - least) == (0.0, 1.0) and math.copysign(1.0, least) > 0
    if unit_range and type.dtype in ("float32", "float64"):
        values = drawn(low, op, type.shape, type.dtype)
    else:
        unit = drawn(low, op, type.shape, "float64")
        values = of.cast(of.add(of.number(least), of.mul(of.number(most - least), unit)), type.dtype)
    below = np.nextafter(kind(most), kind(least))
    low.define(op.outputs[0], of("minimum", values, of.number(below, type.dtype)))


@lowers("gaussian_random", "gaussian_random_like")
def lower_gaussian(low: Lowering, op: Op) -> None:
    type, of = low.type(op.outputs[0]), Maker(low)
    first = drawn(low, op, type.shape, "float64")
    second = drawn(low, op, type.shape, "float64", again=1)
    radius = of("sqrt", of.mul(of.number(-2.0), of("log1p", of("neg", first))))
    scaled = of.mul(of.mul(of.number(op.attrs["std"]), radius), of("cos", of.mul(of.number(2.0 * math.pi), second)))
    low.define(op.outputs[0], of.cast(of.add(of.number(op.attrs["mean"]), scaled), type.dtype))


@lowers("truncated_gaussian", "truncated_gaussian_like")
def lower_truncated_gaussian(low: Lowering, op: Op) -> None:
    type, of = low.type(op.outputs[0]), Maker(low)
    unit = drawn(low, op, type.shape, "float64")
    share = of.mul(of("sub", of.mul(of.number(2.0), unit), of.number(1.0)), of.number(math.erf(math.sqrt(2.0))))
    values = of.mul(of("erfinv", share), of.number(math.sqrt(2.0)))
    values = of("maximum", of("minimum", values, of.number(2.0)), of.number(-2.0))
    scaled = of.mul(of.number(op.attrs["std"]), values)
    low.define(op.outputs[0], of.cast(of.add(of.number(op.attrs["mean"]), scaled), type.dtype))


@lowers("exponential", "exponential_like")
def lower_exponential(low: Lowering, op: Op) -> None:
    type, of = low.type(op.outputs[0]), Maker(low)
    unit = drawn(low, op, type.shape, "float64")
    values = of("div", of("neg", of("log1p", of("neg", unit))), of.number(op.attrs["rate"]))
    low.define(op.outputs[0], of.cast(values, type.dtype))


@lowers("randint", "randint_like")
def lower_randint(low: Lowering, op: Op) -> None:
    type, of = low.type(op.outputs[0]), Maker(low)
    least, count = op.attrs["low"], op.attrs["high"] - op.attrs["low"]
    unit = drawn(low, op, type.shape, "float64")
    steps = of.cast(of("floor", of.mul(unit, of.number(count))), "int64")
    values = of.add(of.integer(least), of("minimum", steps, of.integer(count - 1)))
    low.define(op.outputs[0], of.cast(values, type.dtype))


@lowers("bernoulli")
def lower_bernoulli(low: Lowering, op: Op) -> None:
    type, of = low.type(op.outputs[0]), Maker(low)
    p = low.entry(op.inputs[0])
    fine = of("logical_and", of("greater_equal", p, of.number(0, p.dtype)), of("less_equal", p, of.number(1, p.dtype)))
    of.check(fine, "bad_probability", "probabilities must be from 0 to 1", op.location)
    unit = drawn(low, op, type.shape, "float64")
    low.define(op.outputs[0], of.cast(of("less_than", unit, of.cast(p, "float64")), type.dtype))


@lowers("next_key")
def lower_next_key(low: Lowering, op: Op) -> None:
    type, key = low.type(op.outputs[0]), low.entry(op.inputs[0])
    fusion, axes = low.join((), [key])
    number = fusion.apply("next_key", [], [low.argument(fusion, key, (), axes)], "int64")
    fusion.ops.append(op.type)
    low.define(op.outputs[0], Member(fusion, number, "int64", type.shape, axes))


def drawn(low: Lowering, op: Op, shape: tuple[int, ...], dtype: str, again: int = 0) -> Entry:
    """Numbers in [0, 1) at all positions, in row-major order. The key is the op's last input.

    again: how many arrays of this shape the op has drawn before.
    """
    key: Any = Uniform(0, "int64", ())
    if op.inputs and op.inputs[-1] != HOLE and low.types[op.inputs[-1]] == TensorType((), "int64"):
        key = low.entry(op.inputs[-1]) if _has_key(op) else key
    at = _places(low, shape, low.sizes.get(op.outputs[0], {}), again)
    fusion, axes = low.join(shape, [at, key])
    if fusion.is_across:
        fusion, axes = low.new_fusion(shape), tuple(range(len(shape)))
    args = [low.argument(fusion, each, shape, axes) for each in (at, key)]
    attrs = [("dtype", dtype), ("seed", op.attrs["seed"]), ("stream", op.attrs["stream"])]
    fusion.ops.append(op.type)
    return Member(fusion, fusion.apply("draw", attrs, args, dtype), dtype, shape, axes)


def _places(low: Lowering, shape: tuple[int, ...], sizes: Mapping[int, Size], again: int) -> Entry:
    """The position of each element in row-major order, after those of `again` arrays.

    shape, sizes: with the largest sizes of open axes, and their sizes in the run.
    """
    opened = max(sizes, default=0)
    if not opened and not (again and sizes):
        return positions(shape, first=again * math.prod(shape))
    of, steps = Maker(low), contiguous(shape)
    known = tuple(step if i > opened else 0 for i, step in enumerate(steps))  # axes behind the open ones

    def axes() -> Iterator[tuple[Entry, Entry]]:
        yield positions(shape, known), of.integer(steps[opened])
        for axis in reversed(range(opened + 1)):
            own = shape if axis == opened else tuple(n if i == axis else 1 for i, n in enumerate(shape))
            along = positions(own, tuple(int(i == axis) for i in range(len(shape))))
            yield along, sizes[axis].length if axis in sizes else of.integer(shape[axis])

    at, count = row_major(low, axes())
    return of.add(at, of.mul(count, of.integer(again))) if again else at


def _has_key(op: Op) -> bool:
    """Whether the op has an input for the key: ops that take an array have it in front."""
    return len(op.inputs) > (op.type.endswith("_like") or op.type in ("bernoulli", "multinomial"))
