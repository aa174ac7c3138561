"""The update of a step: from gradients to new parameters and new slots of the optimiser; of a table, rows may do."""

from __future__ import annotations

from collections.abc import Sequence

from core.autodiff.cotangents import Densified
from core.ir import TensorType, Variable
from core.ir.builder import BlockBuilder, Cotangent, SparseRows, Value, widened
from core.optim.clipping import Clip
from core.optim.optimizers import STEPS, Optimizer, needs_whole, state_types
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
    """Emit the optimiser for each parameter. The slots it needs, the results that come of it, and what it densified.

    finite: one bool; if it is false, everything keeps its value.
    """
    densified: list[Densified] = []

    def kept(new: Value, old: Value) -> Value:
        return new if finite is None else b.emit("where", finite, new, old)

    def whole(parameter: Variable, grad: Cotangent, why: str | None) -> Cotangent:
        """`grad`, as one array if there is a reason why."""
        if why is None or not isinstance(grad, SparseRows):
            return grad
        densified.append(Densified(f"0:{parameter.name}", why))
        return b.emit("scatter_add_like", grad.values, grad.rows, b.value(parameter.name), axis=0)

    if clip is not None:
        why = clip.by.needs_whole
        if clip.decay_first:
            if optimizer.decays:
                grads = [whole(v, g, "weight_decay") for v, g in zip(trained, grads, strict=True)]
            grads = [optimizer.decayed(widened(b.value(v.name)), _wide(g)) for v, g in zip(trained, grads, strict=True)]
            optimizer = optimizer.without_decay()
        grads = clip.apply([whole(v, g, why) for v, g in zip(trained, grads, strict=True)])
    slots: list[Variable] = []
    wanted: Wanted = []
    rate = None
    if optimizer.schedule is not None:
        steps = b.param(TensorType((), "int64"), STEPS)
        rate = optimizer.schedule.rate(steps)
        slots.append(Variable(STEPS, steps.type, "state"))
        wanted.append((Result("optimizer_state", STEPS), kept(b.emit("increment", steps), steps).name))
    for parameter, grad in zip(trained, grads, strict=True):
        own = [
            Variable(f"{parameter.name}/{slot}", type, "state")
            for slot, type in state_types(optimizer, parameter.type).items()
        ]
        slots += own
        olds = [b.value(parameter.name), *(b.param(v.type, v.name) for v in own)]
        places = [("parameters", parameter.name), *(("optimizer_state", v.name) for v in own)]
        grad = whole(parameter, grad, needs_whole(optimizer, parameter.type.dtype))
        if isinstance(grad, SparseRows):  # the rows that move, before and after, are all it takes
            before = [b.emit("gather", old, grad.rows, axis=0) for old in olds]
            outs = optimizer.update(before[0], grad.values, before[1:], rate)
            for place, out, old in zip(places, outs, before, strict=True):
                wanted += rows_of(*place, (grad.rows.name, kept(out, old).name), parameter.type)
            continue
        outs = optimizer.update(olds[0], grad, olds[1:], rate)
        wanted += [(Result(*place), kept(out, old).name) for place, out, old in zip(places, outs, olds, strict=True)]
    return slots, wanted, tuple(densified)


def _wide(gradient: Cotangent) -> Cotangent:
    """`gradient`, in float32 if it is of 16 bits."""
    if isinstance(gradient, SparseRows):
        return SparseRows(gradient.rows, widened(gradient.values))
    return widened(gradient)
