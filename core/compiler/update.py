"""The update of a step: from gradients to new parameters and optimiser state; tables may be updated row by row."""

from __future__ import annotations

from collections.abc import Sequence

from core.autodiff.cotangents import Densified
from core.ir import TensorType, Variable
from core.ir.builder import BlockBuilder, Cotangent, SparseRows, Value, widened
from core.optim.clipping import Clip
from core.optim.optimizers import STEPS, Optimizer, dense_reason, state_types
from core.runtime.outputs import Result, Wanted, rows_of

__all__ = ["apply_update"]


def apply_update(
    b: BlockBuilder,
    optimizer: Optimizer,
    trained: Sequence[Variable],
    grads: Sequence[Cotangent],
    clip: Clip | None,
    finite: Value | None = None,
) -> tuple[list[Variable], Wanted, tuple[Densified, ...]]:
    """Emit the ops of the optimiser for each parameter.

    finite: one bool; if it is false, parameters and optimiser state do not change.
    Returns the variables of the optimiser's state, the results of the update, and the densified gradients.
    """
    densified: list[Densified] = []

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
            if optimizer.decays:
                grads = [dense(v, g, "weight_decay") for v, g in zip(trained, grads, strict=True)]
            grads = [optimizer.decayed(widened(b.value(v.name)), _wide(g)) for v, g in zip(trained, grads, strict=True)]
            optimizer = optimizer.without_decay()
        grads = clip.apply([dense(v, g, reason) for v, g in zip(trained, grads, strict=True)])
    slots: list[Variable] = []
    wanted: Wanted = []
    rate = None
    if optimizer.schedule is not None:
        steps = b.param(TensorType((), "int64"), STEPS)
        rate = optimizer.schedule.rate(steps)
        slots.append(Variable(STEPS, steps.type, "state"))
        wanted.append((Result("optimizer_state", STEPS), if_finite(b.emit("increment", steps), steps).name))
    for parameter, grad in zip(trained, grads, strict=True):
        own = [
            Variable(f"{parameter.name}/{slot}", type, "state")
            for slot, type in state_types(optimizer, parameter.type).items()
        ]
        slots += own
        olds = [b.value(parameter.name), *(b.param(v.type, v.name) for v in own)]
        places = [("parameters", parameter.name), *(("optimizer_state", v.name) for v in own)]
        grad = dense(parameter, grad, dense_reason(optimizer, parameter.type.dtype))
        if isinstance(grad, SparseRows):  # rows with a zero gradient do not change: gather and update the others
            before = [b.emit("gather", old, grad.rows, axis=0) for old in olds]
            outs = optimizer.update(before[0], grad.values, before[1:], rate)
            for place, out, old in zip(places, outs, before, strict=True):
                wanted += rows_of(*place, (grad.rows.name, if_finite(out, old).name), parameter.type)
            continue
        outs = optimizer.update(olds[0], grad, olds[1:], rate)
        wanted += [
            (Result(*place), if_finite(out, old).name) for place, out, old in zip(places, outs, olds, strict=True)
        ]
    return slots, wanted, tuple(densified)


def _wide(gradient: Cotangent) -> Cotangent:
    """`gradient`, cast to float32 if it is 16-bit."""
    if isinstance(gradient, SparseRows):
        return SparseRows(gradient.rows, widened(gradient.values))
    return widened(gradient)
