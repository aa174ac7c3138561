"""Handlers that read and replace the optimiser state of a session."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.ir.errors import escaped
from core.ir.suggest import near
from core.optim.optimizers import STEPS
from service.worker.given import FLAWED, Mistakes
from service.worker.memory import require
from service.worker.running import check_answer_size
from service.worker.session import session_of
from service.worker.snapshot import slot_types
from service.worker.state import Answer, WorkerState

__all__ = ["get_optimizer", "put_optimizer"]


def get_optimizer(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """The optimiser state by name, without slots that were never written.

    args: id; names: of slots, or of parameters for all their slots; None for all slots.
    """
    session = session_of(state, args)
    known = slot_types(session.cached, session.optimizer, session.loss_scale)
    parameters = {v.name for v in session.cached.program.parameters}
    mistakes, wanted = Mistakes(), set(session.slots if args["names"] is None else ())
    for i, name in enumerate(args["names"] or ()):
        if name in parameters:
            wanted |= {each for each in session.slots if each.rpartition("/")[0] == name}
        elif name in known or name in session.slots:
            wanted |= {name} & session.slots.keys()
        else:
            message = f"the session has no parameter or optimizer state {name!r}"
            mistakes.add("feed_unknown", message, f"/names/{i}", near(name, {*known, *parameters}))
    mistakes.raise_if_any()
    values = {name: session.slots[name] for name in sorted(wanted)}
    check_answer_size(state, values)
    shown = session.optimizer.document
    return {**session.about(), "complete": {"type": shown["type"], **shown["attrs"]}}, values


def put_optimizer(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Replace the given optimiser state, all or none of it. The rest stays.

    args: id, flawed?; member: place of the tensors in the request; step: the number of updates, or None. It is also
    the position of a schedule.
    """
    session = session_of(state, args)
    known = slot_types(session.cached, session.optimizer, session.loss_scale)
    mistakes = Mistakes()
    for name in (*tensors, *args.get(FLAWED, ())):
        pointer = f"{args['member']}/{escaped(name)}"
        if name not in known:
            message = f"the session has no optimizer state {name!r}"
            mistakes.add("feed_unknown", message, pointer, near(name, known), name)
        elif name in tensors:
            mistakes.type(name, known[name], tensors[name], pointer)
        else:
            mistakes.flawed(name, pointer)
    mistakes.raise_if_any()
    require(state.memory, sum(value.nbytes for value in tensors.values()), "the optimizer state")
    # copies: a step may write optimiser state in place, and these arrays are read-only
    new = {name: state.xp.array(value) for name, value in tensors.items()}
    step = args["step"]
    is_scheduled = any(group.optimizer.schedule is not None for group in session.optimizer.all_groups)
    if step is not None and STEPS not in new and is_scheduled:
        new[STEPS] = state.xp.asarray(step, "int64")

    session.slots |= new
    session.steps = session.steps if step is None else step
    session.version += 1
    return session.about(), {}
