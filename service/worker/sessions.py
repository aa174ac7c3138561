"""Handlers about sessions as such: opening, settings, parameters. Those that compute are in training.py.

Every handler computes first, and replaces the session's values at its end in one go. A call that fails, is stopped, or
runs out of memory does not change the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from core.compiler.compile import Clip, Executable, LossScale
from core.cost.scratch import drawn_bytes
from core.ir import Program, TensorType, Variable
from core.ir.errors import ProgramError
from core.ir.suggest import near
from core.ops.common.types import as_dtype, byte_size
from core.optim.initializers import initial_parameters
from core.optim.optimizers import REST, Optimizer, state_types
from core.optim.parameter_roles import parameter_roles
from core.optim.rates import Rates
from service.worker.given import BY_ROLE, Mistakes, check_values
from service.worker.memory import require
from service.worker.programs import CachedProgram, cached_program
from service.worker.running import check_answer_size, query_from
from service.worker.session import Arrays, WorkerSession, session_of
from service.worker.state import WorkerState

__all__ = ["configure", "create", "delete", "describe", "get_parameters", "put_parameters"]

Answer = tuple[dict[str, Any], dict[str, Any]]

INIT = "/init/parameters"


def create(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Create session ``args["id"]``. Parameters and states that are not in `tensors` are initialised.

    args: id, program_id, document?, query, optimizer {type, attrs}, clip, loss_scale, seed, initializers.
    """
    cached = cached_program(state, args)
    query = query_from(args["query"])
    if query.targets and not query.inputs:
        query = replace(query, inputs=tuple(v.name for v in cached.program.parameters if v.trainable))
    optimizer = Optimizer(args["optimizer"]["type"], args["optimizer"]["attrs"])
    variables = (*cached.program.parameters, *cached.program.states)
    _check_slots(cached, optimizer)
    rates = Rates.of(optimizer)
    clip = Clip.read(args["clip"]) if args["clip"] else None
    scale = LossScale.read(args["loss_scale"]) if args.get("loss_scale") is not None else None
    # raises for a wrong query now, and not at the first step
    training = cached.training(query, rates.optimizer, clip, (), {}, scale).executable
    for v in variables:
        if not v.type.is_static:
            raise ProgramError(
                f"{v.name!r} is {v.type}; parameters and states of a session need a fixed shape", "bad_query"
            )
    given = _placed(state, cached.program, tensors, args, {"parameter": INIT, "state": INIT})
    slots = _slots_of(cached, training)
    drawn = [v for v in variables if v.name not in given]
    _check_memory(state, training, [v.type for v in drawn], slots)
    initializers = {name: each for name, each in args["initializers"].items() if name not in given}
    first = initial_parameters(drawn, initializers, args["seed"], parameter_roles(cached.program))
    values = given | {name: state.xp.asarray(value) for name, value in first.items()}
    session = WorkerSession(
        cached=cached,
        query=query,
        optimizer=optimizer,
        clip=clip,
        loss_scale=scale,
        seed=args["seed"],
        rates=rates,
        parameters={v.name: values[v.name] for v in cached.program.parameters},
        states={v.name: values[v.name] for v in cached.program.states},
        # allocated now, so that no other session can take their memory before the first step
        slots={v.name: state.xp.zeros(v.type.shape, as_dtype(v.type.dtype)) for v in slots},
    )
    optimizer.check_groups(session.trainable)
    state.sessions[args["id"]] = session
    return {**session.about(), "bytes": sum(value.nbytes for value in values.values())}, {}


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
    optimizer.check_groups(session.trainable)
    for v in session.cached.program.parameters:
        old, new = session.optimizer.of(v.name), optimizer.of(v.name)
        if old.type != new.type:
            raise ProgramError(
                f"{v.name!r} is trained by {old.type} in this session and cannot change to {new.type}", "bad_query"
            )
    rates = Rates.of(optimizer)
    session.cached.training(session.query, rates.optimizer, session.clip, (), {}, session.loss_scale)

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
    names = list(held) if args["names"] is None else args["names"]
    mistakes = Mistakes()
    for i, name in enumerate(names):
        if name not in held:
            message = f"the program has no parameter or state {name!r}"
            mistakes.add("feed_unknown", message, f"/names/{i}", near(name, held))
    mistakes.raise_if_any()
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
    state.sessions.pop(args["id"], None)
    state.free_device_memory()
    return {}, {}


def _slots_of(cached: CachedProgram, training: Executable) -> list[Variable]:
    """The optimiser state of a training step."""
    own = {v.name for v in cached.program.states}
    return [v for v in training.inputs if v.role == "state" and v.name not in own]


def _check_memory(
    state: WorkerState, training: Executable, drawn: Sequence[TensorType], slots: Sequence[Variable]
) -> None:
    """Raises OutOfMemory if the values of a session and its first step do not fit into the memory that is left.

    drawn: types of the values that are initialised. Open sizes of feeds count as 1.
    """
    peak = training.peak(training.machine is not None).peak
    held = sum(byte_size(v.type) for v in slots)
    require(state.memory, drawn_bytes(drawn) + held + peak, "the session with its first step")


def _check_slots(cached: CachedProgram, optimizer: Optimizer) -> None:
    """Raises ProgramError (reserved_name) if a variable has the name of an optimiser state."""
    names = {v.name for v in cached.program.variables}
    for parameter in cached.program.parameters:
        own = optimizer.of(parameter.name)
        for slot in state_types(own, parameter.type):
            if f"{parameter.name}/{slot}" in names:
                message = f"rename {parameter.name}/{slot}: it names the {own.type} state of {parameter.name!r}"
                raise ProgramError(message, "reserved_name")


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
