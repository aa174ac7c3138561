"""Loss scaling: compute the gradients of the loss times a factor, then divide them by it (Micikevicius et al. 2018).

16-bit floats would round small gradients to zero: the smallest float16 is 6e-8, while the largest gradients are far
below 65504. The factor moves all gradients up. It may adapt: a step whose gradients overflow is skipped and the factor
is reduced; after enough steps without overflow it is increased.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from core.ir import Program, TensorType, Variable
from core.ir.builder import BlockBuilder, Cotangent, SparseRows, Value, narrowed, widened
from core.ir.errors import ProgramError
from core.ir.precision import largest
from core.ir.registry import convert

__all__ = ["FACTOR", "STREAK", "LossScale", "Scaled", "all_finite", "rounded", "scaled", "unscaled"]

FACTOR = "@LOSS_SCALE"
"""The slot of the factor of the loss, a float32; 0 before the first step."""

STREAK = "@LOSS_SCALE_STEPS"
"""The slot of the count of steps since the factor last changed."""


@dataclass(frozen=True, slots=True)
class LossScale:
    """The factor of the loss while gradients are computed. Powers of two are best: they add no rounding.

    initial:  positive, the factor of the first step.
    interval: number of consecutive steps with finite gradients after which the factor is multiplied by `growth`; None
    for
              a constant factor. After each skipped step the factor is multiplied by `backoff`.
    least, most: bounds of the factor, which also stays within the range of the loss's dtype.
    Raises ProgramError (bad_query).
    """

    initial: float = 32768.0
    interval: int | None = None
    growth: float = 2.0
    backoff: float = 0.5
    least: float = 1.0
    most: float = 2.0**24

    def __post_init__(self) -> None:
        if not (0 < self.initial < math.inf and (self.interval is None or self.interval > 0)):
            raise ProgramError("initial and interval of a loss scale must be positive", "bad_query")
        if self.interval is None:
            return
        if not (1 < self.growth < math.inf and 0 < self.backoff < 1):
            raise ProgramError("growth of a loss scale must be above 1, and backoff between 0 and 1", "bad_query")
        if not 0 < self.least <= self.initial <= self.most < 2.0**127:
            raise ProgramError("the initial loss scale must lie between least and most", "bad_query")

    @classmethod
    def read(cls, raw: Any) -> LossScale:
        """A loss scale from its JSON form: a constant number, "dynamic", or ``{"initial": 1024, "interval": 500,
        ...}``.
        """
        if raw == "dynamic":
            return cls(interval=2000)
        members = dict(raw) if isinstance(raw, Mapping) else {"initial": raw}
        kinds = {"initial": float, "interval": int, "growth": float, "backoff": float, "least": float, "most": float}
        if members.keys() - kinds.keys():
            raise ProgramError(f"a loss scale may only have the members {', '.join(kinds)}", "bad_query")
        if isinstance(raw, Mapping):
            members = {"interval": 2000, **members}
        try:
            return cls(**{name: convert(kinds[name], value) for name, value in members.items()})
        except (ValueError, TypeError) as error:
            raise ProgramError(f"invalid loss scale: {error}", "bad_query") from None

    @property
    def slots(self) -> dict[str, TensorType]:
        """The state that is kept between steps; all of it starts at zero."""
        return {} if self.interval is None else {FACTOR: TensorType((), "float32"), STREAK: TensorType((), "int64")}

    def after(self, factor: Value, streak: Value, finite: Value, limit: float) -> tuple[Value, Value]:
        """Factor and count of the next step. limit: the largest factor of the loss."""
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
    """A program whose `loss` stands for the loss times the factor.

    program: it has the slots of the loss scale among its states. factor: variable of the factor, a float32.
    limit:   the largest factor that does not overflow itself.
    ops:     number of ops added after the forward ones. loss: name of the loss.
    """

    program: Program
    loss: str
    factor: str
    limit: float
    ops: int


def scaled(program: Program, loss: str, scale: LossScale) -> Scaled | None:
    """`program` with its loss scaled under its own name; None if it has no such loss, which the query then reports.

    Raises ProgramError (bad_query) if the dtype of the loss cannot hold a constant factor.
    """
    name = program.latest.get(loss, loss)
    type = program.block.types.get(name)
    if not isinstance(type, TensorType) or not type.is_float:
        return None
    limit = min(2.0 ** (math.frexp(largest(type.dtype))[1] - 1), 2.0**126)
    if scale.interval is None and scale.initial > limit:
        raise ProgramError(f"a loss of type {type} cannot be multiplied by {scale.initial:g}", "bad_query")
    b = BlockBuilder.like(program.block)
    first = b.constant(min(scale.initial, limit), "float32")
    slots = tuple(Variable(n, t, "state") for n, t in scale.slots.items())
    held = {v.name: b.param(v.type, v.name) for v in slots}
    factor = first
    if FACTOR in held:
        unset = b.emit("equal", held[FACTOR], b.zeros_like(held[FACTOR]))
        factor = b.emit("where", unset, first, held[FACTOR])
    factor = b.emit("stop_gradient", factor)
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


def unscaled(gradients: Sequence[Cotangent], factor: Value) -> list[Cotangent]:
    """The gradients of the unscaled loss; those of 16-bit floats become float32, which can hold them."""
    found: list[Cotangent] = []
    for g in gradients:
        values = widened(g.values if isinstance(g, SparseRows) else g)
        share = values / factor.builder.emit("cast", factor, dtype=values.dtype)
        found.append(SparseRows(g.rows, share) if isinstance(g, SparseRows) else share)
    return found


def all_finite(gradients: Sequence[Cotangent], like: Value) -> Value:
    """One bool: whether all elements are finite. like: any symbol of the block."""
    emit = like.builder.emit
    values = [g.values if isinstance(g, SparseRows) else g for g in gradients]
    each = [emit("reduce_all", emit("isfinite", v)) for v in values]
    return reduce(lambda a, b: emit("logical_and", a, b), each) if each else like.builder.constant(True, "bool")


def rounded(gradient: Cotangent, type: TensorType) -> Cotangent:
    """`gradient` in the dtype of `type`, the dtype of the answer."""
    if isinstance(gradient, SparseRows):
        return SparseRows(gradient.rows, narrowed(gradient.values, replace(type, shape=gradient.values.shape)))
    return narrowed(gradient, type)
