"""A choice of optimiser: one of the ops in core/ops/optimizers, its attributes and a schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import core.ops  # noqa: F401  (fills the registry)
from core.ir import TensorType
from core.ir.builder import Cotangent, SparseRows, Value, narrowed, widened
from core.ir.errors import ProgramError
from core.ir.precision import HALVES, is_half
from core.ir.registry import REGISTRY, as_tuple, lookup
from core.ops.common.types import as_dtype
from core.ops.optimizers.updates import decayed
from core.optim.schedules import Schedule

__all__ = ["OPTIMIZERS", "REST", "STEPS", "Optimizer", "needs_whole", "state_types"]

STEPS = "@STEPS"
"""The optimiser's count of updates, which a learning-rate schedule reads."""

REST = "rest"
"""The slot of what 16 bits round off; it belongs to the value of the parameter, and goes when that is replaced."""

OPTIMIZERS = tuple(sorted(name for name, spec in REGISTRY.items() if spec.outputs[:1] == ("parameter_out",)))


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A choice of optimiser and its attributes, checked and completed with defaults.

    In place of a number, `learning_rate` may be a schedule: ``{"schedule": "cosine_decay", <its attributes>}``.
    Raises ProgramError (unknown_optimizer, unknown_schedule, bad_attr).
    """

    type: str
    attrs: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if self.type not in OPTIMIZERS:
            raise ProgramError(
                f"unknown optimiser {self.type!r}", "unknown_optimizer", suggestion=f"one of {', '.join(OPTIMIZERS)}"
            )
        attrs = dict(self.attrs)
        if isinstance(rate := attrs.get("learning_rate"), Mapping):
            del attrs["learning_rate"]
            rest = {k: v for k, v in rate.items() if k != "schedule"}
            object.__setattr__(self, "schedule", Schedule(str(rate.get("schedule")), rest))
        object.__setattr__(self, "attrs", lookup(self.type).complete(attrs))

    @property
    def document(self) -> dict[str, Any]:
        """Type and attributes as they were given, defaults filled in."""
        attrs = dict(self.attrs)
        if self.schedule is not None:
            attrs["learning_rate"] = {"schedule": self.schedule.type, **self.schedule.attrs}
        return {"type": self.type, "attrs": attrs}

    def decayed(self, parameter: Value, gradient: Cotangent) -> Cotangent:
        """`gradient` with that of the weight decay, for optimisers that do nothing else with it.

        Raises ProgramError (bad_query) for those that decay in another way.
        """
        if "l1_decay" not in self.attrs:
            raise ProgramError(
                f"{self.type} does not add its decay to the gradient: decay_first is not possible", "bad_query"
            )
        if not self.decays:
            return gradient
        assert not isinstance(gradient, SparseRows), "decay moves every row"
        return decayed(parameter, gradient, self.attrs["weight_decay"], self.attrs["l1_decay"])

    @property
    def decays(self) -> bool:
        """Whether it has any weight decay."""
        return bool(self.attrs.get("weight_decay") or self.attrs.get("l1_decay"))

    def without_decay(self) -> Optimizer:
        """The same without weight decay."""
        return replace(self, attrs={**self.attrs, "weight_decay": 0.0, "l1_decay": 0.0})

    def update(
        self, parameter: Value, gradient: Value, slots: Sequence[Value], rate: Value | None
    ) -> tuple[Value, ...]:
        """The new parameter, and the new slots in their order. `rate` is that of the schedule, if there is one.

        A parameter of 16-bit floats is the upper part of a float32 that is updated; the slot `REST` is the lower one.
        """
        if is_half(parameter.type):
            *slots, rest = slots
            whole, *outs = self.update(widened(parameter) + rest, widened(gradient), slots, rate)
            rounded = narrowed(whole, parameter.type)
            return rounded, *outs, whole - widened(rounded)
        if rate is None:
            return as_tuple(parameter.builder.emit(self.type, parameter, gradient, *slots, **self.attrs))
        attrs = {**self.attrs, "learning_rate": lookup("cast")(rate, dtype=parameter.dtype)}
        return as_tuple(lookup(self.type).body(parameter, gradient, *slots, **attrs))


BY_ROWS = {"sgd": ("learning_rate",), "adagrad": ("learning_rate", "epsilon")}
"""Optimisers that leave alone, to the bit, where the gradient is zero; and attributes that must be usual for that."""


def needs_whole(optimizer: Optimizer, dtype: str) -> str | None:
    """Why an update needs the whole gradient of a table, machine-readable; None if the rows that are not zero will do.

    optimizer:<type>: it moves rows without a gradient too. weight_decay: decay does. <attribute>: with this value of
    it, in this dtype, they would become NaN.
    """
    if optimizer.type not in BY_ROWS:
        return f"optimizer:{optimizer.type}"
    if optimizer.decays:
        return "weight_decay"
    with np.errstate(over="ignore", under="ignore"):
        kind = as_dtype("float32" if dtype in HALVES else dtype).type  # see Optimizer.update
        values = {name: float(kind(optimizer.attrs[name])) for name in BY_ROWS[optimizer.type]}
    if not math.isfinite(values["learning_rate"]):
        return "learning_rate"
    return None if values.get("epsilon", 1.0) > 0 else "epsilon"


def state_types(optimizer: Optimizer, parameter: TensorType) -> dict[str, TensorType]:
    """The slots that the optimiser keeps for a parameter of that type. All start at zero.

    For one of 16-bit floats they are of float32, and there is one more: what `Optimizer.update` rounded off.
    """
    slots = [slot.name for slot in lookup(optimizer.type).inputs[2:]]
    kind = parameter
    if is_half(parameter):
        slots, kind = [*slots, REST], replace(parameter, dtype="float32")
    return {s: TensorType((), "int64") if s == "step" else kind for s in slots}
