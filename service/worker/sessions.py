"""Handlers about sessions as such: opening, settings, parameters. Those that compute are in training.py.

Every handler computes first, and replaces the session's values at its end in one go. A call that fails, is stopped, or
runs out of memory does not change the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.ir import Program
from core.ir.errors import ProgramError, below
from core.optim.initializers import named
from core.optim.optimizers import REST, Optimizer
from core.optim.rates import Rates
from service.worker.given import BY_ROLE, check_values
from service.worker.opening import opening
from service.worker.program_cache import cached_program
from service.worker.running import check_answer_size
from service.worker.session import Arrays, chosen, session_of
from service.worker.state import Answer, WorkerState
from service.worker.stored_values import loaded, unread

__all__ = ["INIT", "configure", "create", "delete", "describe", "get_parameters", "put_parameters"]


INIT = "/init/parameters"


def create(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Create session ``args["id"]``. Parameters and states that are not in `tensors` have the values of the program, or
    are initialised: those that `initializers` name, and those without values.

    args: id, program_id, document?, query, optimizer {type, attrs}, clip, loss_scale, seed, initializers, values?.
    shown?: the optimizer in the words of the client.
    """
    cached = cached_program(state, args)
    new = opening(cached, args)
    given = _placed(state, cached.program, tensors, args, {"parameter": INIT, "state": INIT})
    kept = {name for v in new.variables if (name := v.name) in given or named(name, args["initializers"])}
    stored = unread(state, cached.program, args, kept)
    drawn = [v.type for v in new.variables if v.name not in given and v.name not in stored]
    new.require(state, new.slot_bytes() + sum(stored.values()), drawn)
    given |= {name: state.xp.asarray(value) for name, value in loaded(state, args, stored.keys()).items()}
    values = new.first_values(state, given, args["initializers"])
    session = new.session(values, new.zero_slots(state))
    session.shown = args.get("shown")
    state.sessions[args["id"]] = session
    return {**session.about(), "bytes": session.nbytes}, {}


def describe(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    session = session_of(state, args)
    return session.about() | ({} if session.shown is None else {"optimizer": session.shown}), {}


def configure(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Change the optimiser of an open session. args: id, optimizer {type, attrs}, shown: the client's words for it.

    The optimiser state stays, so each parameter must keep the type of its optimiser. Another number as learning rate
    compiles nothing.
    """
    session = session_of(state, args)
    optimizer = Optimizer(args["optimizer"]["type"], args["optimizer"]["attrs"])
    with below("/optimizer"):
        optimizer.check_groups(session.trainable)
    for v in session.cached.program.parameters:
        old, new = session.optimizer.of(v.name), optimizer.of(v.name)
        if old.type != new.type:
            raise ProgramError(
                f"{v.name!r} is trained by {old.type} in this session and cannot change to {new.type}", "bad_query"
            )
    rates = Rates.of(optimizer)
    session.cached.step(session.training_step(rates, (), {}), {}, repeated=True)

    if rates.optimizer != session.rates.optimizer:
        session.last_step = None
    elif session.last_step is not None and session.last_step.version == session.version:
        session.last_step.version += 1  # the step does not depend on the rate
    session.optimizer, session.rates, session.shown = optimizer, rates, args["shown"]
    session.version += 1
    return session.about() | {"optimizer": session.shown}, {}


def get_parameters(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Parameters and states by name: ``args["names"]``, or all if that is None."""
    session = session_of(state, args)
    held = session.parameters | session.states
    names = chosen(held, args["names"])
    states = [name for name in names if name in session.states]
    values = {name: held[name] for name in names}
    check_answer_size(state, values)
    return {**session.about(), "states": states}, values


def put_parameters(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Replace the given parameters and states, all or none of them.

    Optimiser state does not change, except that the rounding remainder of a replaced parameter is dropped.
    """
    session = session_of(state, args)
    roles = {role: member for role, member in BY_ROLE.items() if role != "feed"}
    placed = _placed(state, session.cached.program, tensors, args, roles)

    session.parameters |= {name: value for name, value in placed.items() if name in session.parameters}
    session.states |= {name: value for name, value in placed.items() if name in session.states}
    for name in placed:
        session.slots.pop(f"{name}/{REST}", None)
    session.version += 1
    return session.about(), {}


def delete(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Delete the session; does nothing if there is none."""
    session = state.sessions.pop(args["id"], None)
    if session is not None and all(each.cached is not session.cached for each in state.sessions.values()):
        session.cached.end_training()
    state.free_device_memory()
    return {}, {}


def _placed(
    state: WorkerState,
    program: Program,
    tensors: Mapping[str, np.ndarray],
    args: Mapping[str, Any],
    roles: Mapping[str, str],
) -> Arrays:
    """`tensors` on the device. Raises ProgramError with all mistakes. roles: as of `check_values`."""
    check_values(program, tensors, args, roles=roles)
    return {name: state.xp.asarray(value) for name, value in tensors.items()}
