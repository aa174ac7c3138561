"""Learning rates as inputs of a compiled step, so that another rate needs no compilation.

Each group of the optimiser has one input, a float64. For a group with a schedule NaN stands for the rate of the
schedule, and any other number replaces it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from core.ir import TensorType, Variable
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import ProgramError, escaped
from core.optim.optimizers import Group, Optimizer

__all__ = ["Rates", "open_rate"]

RATE_TYPE = TensorType((), "float64")

USUAL, HUGE = 0.01, 1e300
"""The rates that stand for all finite rates of float32, and for those that only float64 has.

The update of a table by rows depends on the rate in this respect alone: see `dense_reason`.
"""


def rate_input(group: int) -> str:
    """The name of the input with the rate of the group at this position in `Optimizer.all_groups`."""
    return f"@RATE@{group}"


def open_rate(b: BlockBuilder, group: int, scheduled: Value | None) -> tuple[Variable, Value]:
    """The input of a group's rate, and the rate of the step. scheduled: the rate of its schedule, if it has one."""
    given = b.param(RATE_TYPE, rate_input(group))
    variable = Variable(given.name, RATE_TYPE, "feed")
    return variable, given if scheduled is None else b.emit("where", b.emit("isnan", given), scheduled, given)


@dataclass(frozen=True, slots=True)
class Rates:
    """The learning rates of one step.

    values:    group -> its rate; NaN for a group that follows its schedule.
    inputs:    the same rates as inputs of the step.
    optimizer: the optimiser without its rates: equal for all rates that the same compiled step can take.
    """

    values: Mapping[str, float]
    inputs: Mapping[str, np.ndarray]
    optimizer: Optimizer

    @classmethod
    def of(cls, optimizer: Optimizer, given: Any = None) -> Rates:
        """The rates of `optimizer`.

        given: rates in place of its own: one number for all groups, or group -> number.
        Raises ProgramError (bad_attr, bad_group).
        """
        groups = optimizer.all_groups
        values = _values(groups, given)
        inputs = {rate_input(i): np.asarray(values[group.name], "float64") for i, group in enumerate(groups)}
        *opened, rest = (replace(g, optimizer=_opened(g.optimizer, values[g.name])) for g in groups)
        return cls(values, inputs, replace(rest.optimizer, groups=tuple(opened)))

    def shown(self, used: Mapping[str, Any], count: int | None = None) -> Any:
        """The rates as JSON: one, or group -> rate if there are groups.

        used:  the rates of the groups with a schedule, as the step reports them.
        count: the number of steps, whose rates become a list; then `used` has lists, too.
        """
        found = {name: used[name] if name in used else _listed(rate, count) for name, rate in self.values.items()}
        return found if len(found) > 1 else next(iter(found.values()))


def _listed(rate: float, count: int | None) -> Any:
    known = None if math.isnan(rate) else rate  # a group without gradients in this step
    return known if count is None else [known] * count


def _opened(optimizer: Optimizer, rate: float) -> Optimizer:
    usual = math.isnan(rate) or abs(rate) <= float(np.finfo("float32").max)
    return replace(optimizer, attrs={**optimizer.attrs, "learning_rate": USUAL if usual else HUGE})


def _values(groups: Sequence[Group], given: Any) -> dict[str, float]:
    names = [group.name for group in groups]
    own = given if isinstance(given, Mapping) else {} if given is None else dict.fromkeys(names, given)
    for name in own:
        if name not in names:
            known = f"one of {', '.join(names)}"
            text, place = f"the optimizer has no group {name!r}", f"/learning_rate/{escaped(name)}"
            raise ProgramError(text, "bad_group", suggestion=known, pointer=place)
    found: dict[str, float] = {}
    for group in groups:
        rate = own.get(group.name)
        if rate is None:
            scheduled = group.optimizer.schedule is not None
            rate = math.nan if scheduled else group.optimizer.attrs["learning_rate"]
        elif isinstance(rate, bool) or not isinstance(rate, int | float) or not math.isfinite(rate):
            raise ProgramError(f"the learning rate of group {group.name} is not a finite number", "bad_attr")
        found[group.name] = float(rate)
    return found
