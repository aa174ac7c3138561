"""Loss scaling: the loss is multiplied by a factor and the gradients divided by it, so that they fit 16-bit floats.

Micikevicius et al. 2018. The smallest float16 is 6e-8, and many gradients are smaller while the largest are far from
65504: multiplying the loss moves all of them up. A dynamic factor adapts: a step whose gradients overflow is skipped
and makes the factor smaller; enough steps without overflow make it larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Annotated, Any

from core.ir import Program, TensorType, Variable
from core.ir.builder import BlockBuilder, Cotangent, SparseRows, Value, narrowed, widened
from core.ir.errors import ProgramError
from core.ir.members import Member, check_members, read_members
from core.ir.precision import largest, smallest

__all__ = [
    "FACTOR",
    "STREAK",
    "LossScale",
    "Scaled",
    "all_finite",
    "first_factor",
    "largest_factor",
    "rounded",
    "scaled",
    "unscaled",
]

FACTOR = "@LOSS_SCALE"
"""Slot of the factor, a float32; 0 before the first step."""

STREAK = "@LOSS_SCALE_STEPS"
"""Slot of the number of finite steps since the factor changed."""


@dataclass(frozen=True, slots=True)
class LossScale:
    """The factor that the loss is multiplied by while gradients are computed; gradients are divided by it again.

    Powers of two are best: multiplying by them is exact. After `interval` steps in a row with finite gradients the
    factor is multiplied by `growth`. A step with a gradient that is not finite is skipped: it changes no parameter,
    state or optimizer state, and the factor is multiplied by `backoff`.
    """

    initial: Annotated[float, Member("Factor of the first step.", gt=0)] = 32768.0
    interval: Annotated[
        int | None,
        Member("Steps in a row with finite gradients before the factor grows; null for a constant.", ge=1),
    ] = 2000
    growth: Annotated[float, Member("Multiplier of the factor after `interval` finite steps.", gt=1)] = 2.0
    backoff: Annotated[float, Member("Multiplier of the factor after a skipped step.", gt=0, lt=1)] = 0.5
    least: Annotated[float, Member("Smallest factor.", gt=0)] = 1.0
    most: Annotated[
        float, Member("Largest factor; the largest power of two in the dtype of the loss is a limit too.", gt=0)
    ] = 2.0**24

    def __post_init__(self) -> None:
        check_members(self, "a loss scale", "bad_query")
        if self.interval is not None and not self.least <= self.initial <= self.most < 2.0**127:
            raise ProgramError("the initial loss scale must lie between least and most", "bad_query")

    @classmethod
    def read(cls, raw: Any) -> LossScale:
        """From its JSON form: a constant, "dynamic", or ``{"initial": 1024, "interval": 500, ...}``."""
        if raw == "dynamic":
            return cls()
        members = raw if isinstance(raw, Mapping) else {"initial": raw, "interval": None}
        return read_members(cls, members, "a loss scale", "bad_query")

    @property
    def slots(self) -> dict[str, TensorType]:
        """State kept between steps, by slot; all start at zero."""
        return {} if self.interval is None else {FACTOR: TensorType((), "float32"), STREAK: TensorType((), "int64")}

    def after(self, factor: Value, streak: Value, finite: Value, limit: float) -> tuple[Value, Value]:
        """Factor and streak of the next step. limit: the largest factor that the dtype of the loss allows."""
        assert self.interval is not None
        emit = factor.builder.emit
        zero = emit("fill_zeros_like", streak)
        longer = emit("where", finite, emit("increment", streak), zero)
        due = emit("greater_equal", longer, emit("full_like", longer, value=float(self.interval)))
        most = max(min(self.most, limit), self.least)
        grown = emit("clip", factor * self.growth, min=self.least, max=most)
        shrunk = emit("clip", factor * self.backoff, min=self.least, max=most)
        number = emit("where", finite, emit("where", due, grown, factor), shrunk)
        return number, emit("where", due, zero, longer)


@dataclass(frozen=True, slots=True)
class Scaled:
    """A program whose `loss` is multiplied by a factor.

    program: with the slots of the loss scale among its states. factor: variable of the factor, a float32.
    limit:   the largest factor that the dtype of the loss can hold.
    ops:     number of ops added after the forward ones. loss: name of the product.
    """

    program: Program
    loss: str
    factor: str
    limit: float
    ops: int


def scaled(program: Program, loss: str, scale: LossScale) -> Scaled | None:
    """`program` with its loss multiplied under the same name; None if it has no such loss, which the caller reports.

    Raises ProgramError (bad_query) if the dtype of the loss cannot hold a constant factor, or the least one.
    """
    name = program.latest.get(loss, loss)
    type = program.block.types.get(name)
    if not isinstance(type, TensorType) or not type.is_float:
        return None
    limit = largest_factor(type)
    least = scale.initial if scale.interval is None else scale.least
    if not max(smallest(type.dtype), smallest("float32")) <= least <= limit:
        raise ProgramError(f"a loss of type {type} cannot be multiplied by {least:g}", "bad_query")
    b = BlockBuilder.like(program.block)
    slots = tuple(Variable(n, t, "state") for n, t in scale.slots.items())
    held = {v.name: b.param(v.type, v.name) for v in slots}
    factor = b.emit("stop_gradient", first_factor(b, scale, limit, held.get(FACTOR)))
    product = b.value(name) * b.emit("cast", factor, dtype=type.dtype)
    if name in b.stopped:
        b.stopped.add(product.name)
    known = replace(
        program,
        block=b.build(program.block.results),
        variables=(*program.variables, *slots),
        latest={**program.latest, loss: product.name},
    )
    return Scaled(known, loss, factor.name, limit, len(b.ops) - len(program.block.ops))


def largest_factor(loss: TensorType) -> float:
    """The largest power of two that a factor of a loss of this type can have."""
    return min(2.0 ** (math.frexp(largest(loss.dtype))[1] - 1), 2.0**126)


def first_factor(b: BlockBuilder, scale: LossScale, limit: float, held: Value | None) -> Value:
    """The factor of a step: the initial one until the slot `held` is set. limit: the largest factor."""
    first = b.constant(min(scale.initial, limit), "float32")
    if held is None:
        return first
    unset = b.emit("equal", held, b.zeros_like(held))
    return b.emit("where", unset, first, held)  # type: ignore[no-any-return]


def unscaled(gradients: Sequence[Cotangent], factor: Value) -> list[Cotangent]:
    """The gradients divided by the factor. 16-bit gradients become float32, which can hold the quotients."""
    found: list[Cotangent] = []
    for g in gradients:
        values = widened(g.values if isinstance(g, SparseRows) else g)
        share = values / factor.builder.emit("cast", factor, dtype=values.dtype)
        found.append(SparseRows(g.rows, share) if isinstance(g, SparseRows) else share)
    return found


def all_finite(gradients: Sequence[Cotangent], like: Value) -> Value:
    """One bool: whether all elements of all gradients are finite. like: any symbol of the block."""
    emit = like.builder.emit
    values = [g.values if isinstance(g, SparseRows) else g for g in gradients]
    each = [emit("reduce_all", emit("isfinite", v)) for v in values]
    return reduce(lambda a, b: emit("logical_and", a, b), each) if each else like.builder.constant(True, "bool")


def rounded(gradient: Cotangent, type: TensorType) -> Cotangent:
    """`gradient` in the dtype of `type`, in which the step returns it."""
    if isinstance(gradient, SparseRows):
        return SparseRows(gradient.rows, narrowed(gradient.values, replace(type, shape=gradient.values.shape)))
    return narrowed(gradient, type)
