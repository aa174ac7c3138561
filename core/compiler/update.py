"""The update of a step: from gradients to new parameters and optimiser state; tables may be updated row by row."""

from __future__ import annotations

from collections.abc import Sequence

from core.autodiff.cotangents import Densified
from core.ir import TensorType, Variable
from core.ir.builder import BlockBuilder, Cotangent, SparseRows, Value, widened
from core.optim.clipping import Clip
from core.optim.optimizers import STEPS, Optimizer, dense_reason, state_types
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
    densified: list[Densified] = []
    groups = optimizer.all_groups
    places = [optimizer.group_of(v.name) for v in trained]
    own = [groups[i].optimizer for i in places]

    def if_finite(new: Value, old: Value) -> Value:
        return new if finite is None else b.emit("where", finite, new, old)

    def dense(parameter: Variable, grad: Cotangent, reason: str | None) -> Cotangent:
        """`grad` as one dense array if there is a reason for it, otherwise unchanged."""
        if reason is None or not isinstance(grad, SparseRows):
            return grad
        densified.append(Densified(f"0:{parameter.name}", reason))
        return b.emit("scatter_add_like", grad.values, grad.rows, b.value(parameter.name), axis=0)

    if clip is not None:
        reason = clip.by.dense_reason
        if clip.decay_first:
            grads = [
                each.decayed(widened(b.value(v.name)), _wide(dense(v, g, "weight_decay" if each.decays else None)))
                for v, g, each in zip(trained, grads, own, strict=True)
            ]
            own = [each.without_decay() for each in own]
        grads = clip.apply([dense(v, g, reason) for v, g in zip(trained, grads, strict=True)])
    added: list[Variable] = []
    wanted: Wanted = []
    steps = None
    rates: dict[int, Value | None] = dict.fromkeys(sorted(set(places)))
    for i in rates:
        schedule, rate = groups[i].optimizer.schedule, None
        if schedule is not None:
            if steps is None:
                steps = b.param(TensorType((), "int64"), STEPS)
                added.append(Variable(STEPS, steps.type, "state"))
                after = if_finite(b.emit("increment", steps), steps)
                wanted.append((Result("optimizer_state", STEPS), after.name))
            rate = schedule.rate(steps)
        if open_rates:
            variable, rate = open_rate(b, i, rate)
            added.append(variable)
        rates[i] = rate
        if schedule is not None and rate is not None:
            wanted.append((Result("rates", groups[i].name), rate.name))
    for parameter, grad, i, each in zip(trained, grads, places, own, strict=True):
        slots = [
            Variable(f"{parameter.name}/{slot}", type, "state")
            for slot, type in state_types(each, parameter.type).items()
        ]
        added += slots
        olds = [b.value(parameter.name), *(b.param(v.type, v.name) for v in slots)]
        results = [("parameters", parameter.name), *(("optimizer_state", v.name) for v in slots)]
        grad = dense(parameter, grad, dense_reason(each, parameter.type.dtype))
        if isinstance(grad, SparseRows):  # rows with a zero gradient do not change: gather and update the others
            before = [b.emit("gather", old, grad.rows, axis=0) for old in olds]
            outs = each.update(before[0], grad.values, before[1:], rates[i])
            for place, out, old in zip(results, outs, before, strict=True):
                wanted += rows_of(*place, (grad.rows.name, if_finite(out, old).name), parameter.type)
            continue
        outs = each.update(olds[0], grad, olds[1:], rates[i])
        wanted += [
            (Result(*place), if_finite(out, old).name) for place, out, old in zip(results, outs, olds, strict=True)
        ]
    return added, wanted, tuple(densified)


def _wide(gradient: Cotangent) -> Cotangent:
    """`gradient`, cast to float32 if it is 16-bit."""
    if isinstance(gradient, SparseRows):
        return SparseRows(gradient.rows, widened(gradient.values))
    return widened(gradient)
