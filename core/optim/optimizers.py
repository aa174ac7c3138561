"""The optimiser of a training step: ops of core/ops/optimizers, their attributes, schedules and parameter groups."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import core.ops  # noqa: F401  (fills the registry)
from core.ir import TensorType
from core.ir.builder import Cotangent, SparseRows, Value, narrowed, widened
from core.ir.errors import ProgramError, below
from core.ir.patterns import first_match
from core.ir.precision import HALVES, is_half
from core.ir.registry import REGISTRY, as_tuple, lookup
from core.ir.suggest import near
from core.ops.common.types import as_dtype
from core.ops.elementwise.arithmetic import cast
from core.ops.optimizers.updates import Penalties
from core.optim.schedules import Schedule

__all__ = ["DEFAULT_GROUP", "OPTIMIZERS", "REST", "STEPS", "Group", "Optimizer", "dense_reason", "state_types"]

STEPS = "@STEPS"
"""The state variable that counts updates, for a learning-rate schedule."""

REST = "rest"
"""The slot of the rounding error of a 16-bit parameter. It is discarded when the parameter's value is replaced."""

DEFAULT_GROUP = "default"
"""The name of the group of all parameters that no other group has."""

OPTIMIZERS = tuple(sorted(name for name, spec in REGISTRY.items() if spec.outputs[:1] == ("parameter_out",)))


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimiser with its attributes, checked and completed with defaults.

    `learning_rate` may be a number or a schedule: ``{"schedule": "cosine_decay", <its attributes>}``.
    `groups` are the parameters with attributes of their own, in JSON a list of objects: ``match`` (a name, a pattern
    or a list of them), optionally ``name`` and ``type``, and attributes in place of those of the optimiser. A group
    of another type takes the defaults of that type. A parameter belongs to the first group that matches it.
    Raises ProgramError (unknown_optimizer, unknown_schedule, bad_attr, bad_group). Its pointer leads into the object
    of `type` and `attrs`.
    """

    type: str
    attrs: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule | None = None
    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        if self.type not in OPTIMIZERS:
            hint = near(self.type, OPTIMIZERS) or f"one of {', '.join(OPTIMIZERS)}"
            text = f"unknown optimizer {self.type!r}"
            raise ProgramError(text, "unknown_optimizer", suggestion=hint, pointer="/type")
        attrs = dict(self.attrs)
        groups = attrs.pop("groups", None)
        shared = dict(attrs)
        if isinstance(rate := attrs.get("learning_rate"), Mapping):
            del attrs["learning_rate"]
            rest = {k: v for k, v in rate.items() if k != "schedule"}
            with below("/learning_rate"):
                if "schedule" not in rate:
                    raise ProgramError(
                        "a learning rate is a number or has a schedule", "unknown_schedule", pointer="/schedule"
                    )
                object.__setattr__(self, "schedule", Schedule(str(rate["schedule"]), rest))
        object.__setattr__(self, "attrs", lookup(self.type).complete(attrs))
        if groups is not None:  # after the attributes that they inherit
            object.__setattr__(self, "groups", _groups(groups, self.type, shared))

    @property
    def document(self) -> dict[str, Any]:
        """Type and attributes, with defaults, in the JSON form."""
        attrs = dict(self.attrs)
        if self.schedule is not None:
            attrs["learning_rate"] = {"schedule": self.schedule.type, **self.schedule.attrs}
        if self.groups:
            attrs["groups"] = [each.document for each in self.groups]
        return {"type": self.type, "attrs": attrs}

    @property
    def all_groups(self) -> tuple[Group, ...]:
        """The groups in their order, and last the group of all other parameters."""
        return *self.groups, Group(DEFAULT_GROUP, ("*",), replace(self, groups=()))

    def group_of(self, name: str) -> int:
        """The position in `all_groups` of the group of parameter `name`."""
        if not self.groups:
            return 0
        found = first_match((each.patterns for each in self.all_groups), name)
        assert found is not None, "the last group matches every name"
        return found

    def of(self, name: str) -> Optimizer:
        """The optimiser of parameter `name`: that of its group."""
        return self.all_groups[self.group_of(name)].optimizer if self.groups else self

    def check_groups(self, trained: Collection[str]) -> None:
        """Raises ProgramError (bad_group) for a group that has none of the `trained` parameters."""
        used = {self.group_of(name) for name in trained}
        for i, group in enumerate(self.groups):
            if i not in used:
                shadowed = any(first_match([group.patterns], name) is not None for name in trained)
                reason = "earlier groups have every parameter that it matches" if shadowed else "it matches none"
                suggestion = f"the trained parameters are {', '.join(sorted(trained)[:20])}"
                message = f"group {i} ({group.name}) of the optimizer has no parameters: {reason}"
                raise ProgramError(message, "bad_group", suggestion=suggestion, pointer=f"/groups/{i}/match")

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


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters with an optimiser of their own. patterns: names or globs, see `core.ir.patterns`."""

    name: str
    patterns: tuple[str, ...]
    optimizer: Optimizer

    @property
    def document(self) -> dict[str, Any]:
        """The group in its JSON form."""
        own = self.optimizer.document
        return {"match": list(self.patterns), "name": self.name, "type": own["type"], **own["attrs"]}


def _groups(raw: Any, type: str, shared: Mapping[str, Any]) -> tuple[Group, ...]:
    """The groups from their JSON form. shared: the attributes that groups of the same type inherit."""
    if not isinstance(raw, list | tuple):
        raise ProgramError("groups is a list of objects with the member match", "bad_group", pointer="/groups")
    found: list[Group] = []
    for i, each in enumerate(raw):
        with below(f"/groups/{i}"):
            found.append(_group(i, each, type, shared, [group.name for group in found]))
    return tuple(found)


def _group(i: int, raw: Any, type: str, shared: Mapping[str, Any], taken: Collection[str]) -> Group:
    """The group at position `i`. taken: names of the groups before it."""
    if not isinstance(raw, Mapping) or "match" not in raw:
        raise ProgramError(f"group {i} of the optimizer is not an object with the member match", "bad_group")
    patterns = (raw["match"],) if isinstance(raw["match"], str) else raw["match"]
    if not isinstance(patterns, list | tuple) or not patterns or not all(isinstance(p, str) and p for p in patterns):
        text = f"match of group {i} is not a name, a pattern or a list of them"
        raise ProgramError(text, "bad_group", pointer="/match")
    name = raw.get("name", ", ".join(patterns))
    if not isinstance(name, str) or name in (DEFAULT_GROUP, *taken):
        text = f"the name {name!r} of group {i} is taken or not a string"
        raise ProgramError(text, "bad_group", pointer="/name" if "name" in raw else "/match")
    own = {member: value for member, value in raw.items() if member not in ("match", "name", "type")}
    if "groups" in own:
        raise ProgramError(f"group {i} of the optimizer cannot have groups", "bad_group", pointer="/groups")
    kind = str(raw.get("type", type))
    try:
        optimizer = Optimizer(kind, {**shared, **own} if kind == type else own)
    except ProgramError as error:
        message = f"group {i} ({name}): {error.message}"
        raise ProgramError(message, error.code, suggestion=error.suggestion, pointer=error.pointer) from None
    return Group(name, tuple(patterns), optimizer)


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
