"""The update of a step: from gradients to new parameters and optimiser state; tables may be updated row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from core.autodiff.cotangents import Densified
from core.ir import TensorType, Variable
from core.ir.builder import BlockBuilder, Cotangent, SparseRows, Value, widened
from core.optim.clipping import Clip
from core.optim.optimizers import STEPS, Group, Optimizer, dense_reason, state_types
from core.optim.rates import open_rate
from core.runtime.outputs import Result, Wanted, rows_of

__all__ = ["apply_update"]


def apply_update(
    b: BlockBuilder,
    optimizer: Optimizer,
    trained: Sequence[Variable],
    grads: Sequence[Cotangent],
    clip: Clip | None,
    finite: Value | None = None,
    open_rates: bool = False,
) -> tuple[list[Variable], Wanted, tuple[Densified, ...]]:
    """Emit the ops of the optimiser for each parameter.

    finite:     one bool; if it is false, parameters and optimiser state do not change.
    open_rates: whether the learning rates are inputs of the step (core.optim.rates), not constants.
    Returns the added variables (optimiser state and rates), the results of the update, and the densified gradients.
    """
    update, groups = _Update(b, finite), optimizer.all_groups
    places = [optimizer.group_of(v.name) for v in trained]
    own = [groups[i].optimizer for i in places]
    if clip is not None:
        grads, own = update.clipped(clip, trained, grads, own)
    rates = update.rates({i: groups[i] for i in sorted(set(places))}, open_rates)
    for parameter, grad, i, each in zip(trained, grads, places, own, strict=True):
        update.apply(parameter, grad, each, rates[i])
    return update.added, update.wanted, tuple(update.densified)


@dataclass(slots=True)
class _Update:
    """An update under construction. finite, added, wanted, densified: see `apply_update`."""

    b: BlockBuilder
    finite: Value | None
    added: list[Variable] = field(default_factory=list)
    wanted: Wanted = field(default_factory=list)
    densified: list[Densified] = field(default_factory=list)

    def clipped(
        self, clip: Clip, trained: Sequence[Variable], grads: Sequence[Cotangent], own: Sequence[Optimizer]
    ) -> tuple[list[Cotangent], list[Optimizer]]:
        """The clipped gradients, and the optimisers that take them: those without the weight decay that comes first."""
        if clip.decay_first:
            grads = [
                each.decayed(
                    widened(self.b.value(v.name)), _wide(self._dense(v, g, "weight_decay" if each.decays else None))
                )
                for v, g, each in zip(trained, grads, own, strict=True)
            ]
            own = [each.without_decay() for each in own]
        reason = clip.by.dense_reason
        return clip.apply([self._dense(v, g, reason) for v, g in zip(trained, grads, strict=True)]), list(own)

    def rates(self, groups: Mapping[int, Group], are_open: bool) -> dict[int, Value | None]:
        """The learning rate of each group, by its number; None for the constant of its optimiser."""
        steps = None
        rates: dict[int, Value | None] = {}
        for i, group in groups.items():
            schedule, rate = group.optimizer.schedule, None
            if schedule is not None:
                if steps is None:
                    steps = self._steps()
                rate = schedule.rate(steps)
            if are_open:
                variable, rate = open_rate(self.b, i, rate)
                self.added.append(variable)
            rates[i] = rate
            if schedule is not None and rate is not None:
                self.wanted.append((Result("rates", group.name), rate.name))
        return rates

    def _steps(self) -> Value:
        """The number of updates before this one, which schedules read."""
        steps = self.b.param(TensorType((), "int64"), STEPS)
        self.added.append(Variable(STEPS, steps.type, "state"))
        after = self._if_finite(self.b.emit("increment", steps), steps)
        self.wanted.append((Result("optimizer_state", STEPS), after.name))
        return steps

    def apply(self, parameter: Variable, grad: Cotangent, optimizer: Optimizer, rate: Value | None) -> None:
        """Emit the ops that update a parameter and its optimiser state."""
        b = self.b
        slots = [
            Variable(f"{parameter.name}/{slot}", type, "state")
            for slot, type in state_types(optimizer, parameter.type).items()
        ]
        self.added += slots
        olds = [b.value(parameter.name), *(b.param(v.type, v.name) for v in slots)]
        results = [("parameters", parameter.name), *(("optimizer_state", v.name) for v in slots)]
        grad = self._dense(parameter, grad, dense_reason(optimizer, parameter.type.dtype))
        if isinstance(grad, SparseRows):  # rows with a zero gradient do not change: gather and update the others
            before = [b.emit("gather", old, grad.rows, axis=0) for old in olds]
            outs = optimizer.update(before[0], grad.values, before[1:], rate)
            for place, out, old in zip(results, outs, before, strict=True):
                self.wanted += rows_of(*place, (grad.rows.name, self._if_finite(out, old).name), parameter.type)
            return
        outs = optimizer.update(olds[0], grad, olds[1:], rate)
        for place, out, old in zip(results, outs, olds, strict=True):
            self.wanted.append((Result(*place), self._if_finite(out, old).name))

    def _if_finite(self, new: Value, old: Value) -> Value:
        return new if self.finite is None else self.b.emit("where", self.finite, new, old)

    def _dense(self, parameter: Variable, grad: Cotangent, reason: str | None) -> Cotangent:
        """`grad` as one dense array if there is a reason for it, otherwise unchanged."""
        if reason is None or not isinstance(grad, SparseRows):
            return grad
        self.densified.append(Densified(f"0:{parameter.name}", reason))
        return self.b.emit("scatter_add_like", grad.values, grad.rows, self.b.value(parameter.name), axis=0)


def _wide(gradient: Cotangent) -> Cotangent:
    """`gradient`, cast to float32 if it is 16-bit."""
    if isinstance(gradient, SparseRows):
        return SparseRows(gradient.rows, widened(gradient.values))
    return widened(gradient)
