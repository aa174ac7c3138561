"""The optimiser of a training step: an op of core/ops/optimizers, its attributes and its schedule."""

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
from core.ir.suggest import near
from core.ops.common.types import as_dtype
from core.ops.elementwise.arithmetic import cast
from core.ops.optimizers.updates import Penalties
from core.optim.schedules import Schedule

__all__ = ["OPTIMIZERS", "REST", "STEPS", "Optimizer", "dense_reason", "state_types"]

STEPS = "@STEPS"
"""The state variable that counts updates, for a learning-rate schedule."""

REST = "rest"
"""The slot of the rounding error of a 16-bit parameter. It is discarded when the parameter's value is replaced."""

OPTIMIZERS = tuple(sorted(name for name, spec in REGISTRY.items() if spec.outputs[:1] == ("parameter_out",)))


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimiser with its attributes, checked and completed with defaults.

    `learning_rate` may be a number or a schedule: ``{"schedule": "cosine_decay", <its attributes>}``.
    Raises ProgramError (unknown_optimizer, unknown_schedule, bad_attr).
    """

    type: str
    attrs: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if self.type not in OPTIMIZERS:
            hint = near(self.type, OPTIMIZERS) or f"one of {', '.join(OPTIMIZERS)}"
            raise ProgramError(f"unknown optimiser {self.type!r}", "unknown_optimizer", suggestion=hint)
        attrs = dict(self.attrs)
        if isinstance(rate := attrs.get("learning_rate"), Mapping):
            del attrs["learning_rate"]
            rest = {k: v for k, v in rate.items() if k != "schedule"}
            object.__setattr__(self, "schedule", Schedule(str(rate.get("schedule")), rest))
        object.__setattr__(self, "attrs", lookup(self.type).complete(attrs))

    @property
    def document(self) -> dict[str, Any]:
        """Type and attributes, with defaults, in the JSON form."""
        attrs = dict(self.attrs)
        if self.schedule is not None:
            attrs["learning_rate"] = {"schedule": self.schedule.type, **self.schedule.attrs}
        return {"type": self.type, "attrs": attrs}

    def decayed(self, parameter: Value, gradient: Cotangent) -> Cotangent:
        """`gradient` plus the gradient of the weight decay.

        Raises ProgramError (bad_query) for an optimiser whose decay is not part of the gradient.
        """
        if "l1_decay" not in self.attrs:
            raise ProgramError(
                f"the weight decay of {self.type} is not part of the gradient, so it cannot be added before clipping",
                "bad_query",
            )
        if not self.decays:
            return gradient
        assert not isinstance(gradient, SparseRows), "weight decay changes every row"
        return Penalties(self.attrs["weight_decay"], self.attrs["l1_decay"]).added(parameter, gradient)

    @property
    def decays(self) -> bool:
        """Whether weight decay or L1 decay is not zero."""
        return bool(self.attrs.get("weight_decay") or self.attrs.get("l1_decay"))

    def without_decay(self) -> Optimizer:
        """The same optimiser without weight decay."""
        return replace(self, attrs={**self.attrs, "weight_decay": 0.0, "l1_decay": 0.0})

    def update(
        self, parameter: Value, gradient: Value, slots: Sequence[Value], rate: Value | None
    ) -> tuple[Value, ...]:
        """The new parameter, then the new slots in their order.

        rate: the learning rate of the schedule; None without a schedule.
        The update of a 16-bit parameter is computed in float32: the parameter is the rounded value, and the slot `REST`
        holds the rounding error.
        """
        if is_half(parameter.type):
            *slots, rest = slots
            exact, *outs = self.update(widened(parameter) + rest, widened(gradient), slots, rate)
            rounded = narrowed(exact, parameter.type)
            return rounded, *outs, exact - widened(rounded)
        if rate is None:
            return as_tuple(parameter.builder.emit(self.type, parameter, gradient, *slots, **self.attrs))
        attrs = {**self.attrs, "learning_rate": cast(rate, dtype=parameter.dtype)}
        return as_tuple(lookup(self.type).body(parameter, gradient, *slots, **attrs))


BY_ROWS = {"sgd": ("learning_rate",), "adagrad": ("learning_rate", "epsilon")}
"""Optimisers that do not change elements with a zero gradient -> attributes that must have usual values for that."""


def dense_reason(optimizer: Optimizer, dtype: str) -> str | None:
    """The machine-readable reason why an update needs the dense gradient of a table; None if the nonzero rows suffice.

    optimizer:<type>: the optimiser changes rows with a zero gradient. weight_decay: the decay does. <attribute>: with
    its value in this dtype, rows with a zero gradient would become NaN.
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
    """The types of the optimiser's slots for a parameter of type `parameter`. All slots start at zero.

    The slots of a 16-bit parameter are float32, and there is one more slot, `REST`.
    """
    slots = [slot.name for slot in lookup(optimizer.type).inputs[2:]]
    kind = parameter
    if is_half(parameter):
        slots, kind = [*slots, REST], replace(parameter, dtype="float32")
    return {s: TensorType((), "int64") if s == "step" else kind for s in slots}
