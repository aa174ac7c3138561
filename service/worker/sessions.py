"""Handlers about sessions: parameters, states and optimiser state stay on the device between calls.

Every handler computes first, and replaces the session's values at its end in one go. A call that fails, is stopped, or
runs out of memory does not change the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core.compiler.compile import Clip, Executable, LossScale
from core.cost.scratch import drawn_bytes
from core.ir import Program, TensorType, Variable
from core.ir.errors import ExecutionError, ProgramError
from core.ir.suggest import near
from core.ops.common.types import as_dtype, byte_size
from core.optim.initializers import initial_parameters
from core.optim.optimizers import REST, Optimizer, state_types
from service.worker.given import BY_ROLE, Mistakes, check_values, outputs_of
from service.worker.given_gradients import given_gradients
from service.worker.last_step import last_step
from service.worker.memory import require
from service.worker.programs import CachedProgram, cached_program
from service.worker.running import answer_of, query_from, run, streamed_gradients, times_of
from service.worker.session import Arrays, WorkerSession
from service.worker.state import WorkerState

__all__ = [
    "create",
    "delete",
    "describe",
    "evaluate",
    "get_parameters",
    "gradients",
    "put_parameters",
    "step",
    "update",
]

Answer = tuple[dict[str, Any], dict[str, Any]]

INIT = "/init/parameters"


def create(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Create session ``args["id"]``. Parameters and states that are not in `tensors` are initialised.

    args: id, program_id, document?, query, optimizer {type, attrs}, clip, loss_scale, seed, initializers.
    """
    cached = cached_program(state, args)
    query = query_from(args["query"])
    optimizer = Optimizer(args["optimizer"]["type"], args["optimizer"]["attrs"])
    variables = (*cached.program.parameters, *cached.program.states)
    _check_slots(cached, optimizer)
    clip = Clip.read(args["clip"]) if args["clip"] else None
    scale = LossScale.read(args["loss_scale"]) if args.get("loss_scale") is not None else None
    # raises for a wrong query now, and not at the first step
    training = cached.training(query, optimizer, clip, (), {}, scale).executable
    for v in variables:
        if not v.type.is_static:
            raise ProgramError(
                f"{v.name!r} is {v.type}; parameters and states of a session need a fixed shape", "bad_query"
            )
    given = _placed(state, cached.program, tensors, args, {"parameter": INIT, "state": INIT})
    slots = _slots_of(cached, training)
    _check_memory(state, training, [v.type for v in variables if v.name not in given], slots)
    defaults = {v.name: {"type": "zeros"} for v in cached.program.states}
    first = initial_parameters(variables, {**defaults, **args["initializers"]}, args["seed"])
    values = {name: given[name] if name in given else state.xp.asarray(value) for name, value in first.items()}
    session = state.sessions[args["id"]] = WorkerSession(
        cached=cached,
        query=query,
        optimizer=optimizer,
        clip=clip,
        loss_scale=scale,
        seed=args["seed"],
        parameters={v.name: values[v.name] for v in cached.program.parameters},
        states={v.name: values[v.name] for v in cached.program.states},
        # allocated now, so that no other session can take their memory before the first step
        slots={v.name: state.xp.zeros(v.type.shape, as_dtype(v.type.dtype)) for v in slots},
    )
    return {**session.about(), "bytes": sum(value.nbytes for value in values.values())}, {}


def describe(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    return _session(state, args).about(), {}


def step(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Forward, backward and update. args: id, seq, fetch, returned, require_finite, profile?; tensors: the feeds."""
    session = _session(state, args)
    again = session.last_step
    if again is None or not again.serves(session.version, args, tensors):
        return _first_step(state, session, args, tensors)
    out = again.run(state, session.seed, session.steps)
    result, arrays = answer_of(state, again.compiled, out, args["returned"], args["require_finite"])

    session.adopt(out)
    session.count_update(args["seq"])
    again.keep(session.version)
    return result | session.about(), arrays


def _first_step(
    state: WorkerState, session: WorkerSession, args: dict[str, Any], tensors: dict[str, np.ndarray]
) -> Answer:
    """A step that does not reuse the last one. Afterwards, if both were equal, it is bound to the session's arrays."""
    feeds, scale = session.feeds(tensors, args, outputs_of(session.query, args["fetch"])), session.loss_scale
    compiled = session.cached.training(session.query, session.optimizer, session.clip, args["fetch"], feeds, scale)
    values = session.values(state, compiled.executable, feeds)
    times = times_of(args)
    ready = session.cached.timed(compiled) if times is not None else compiled
    out = run(state, ready.executable, values, session.seed, session.steps, times=times)
    result, arrays = answer_of(state, compiled, out, args["returned"], args["require_finite"], times=times)
    arrays = _on_host(state, arrays)  # before the session changes, because the transfer may fail
    again = last_step(session.last_step, session.version, compiled, args["fetch"], values, out)

    session.adopt_rows(out, values, arrays, state.xp)
    session.count_update(args["seq"])
    session.last_step = again
    return result | session.about(), arrays


def gradients(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Gradients at the present parameters; changes nothing. args: id, fetch, returned, stream, profile?.

    tensors: the feeds. Random ops draw the same values as in the next step.
    """
    session = _session(state, args)
    feeds = session.feeds(tensors, args, outputs_of(session.query, args["fetch"]))
    compiled = session.cached.gradient(session.query, args["fetch"], feeds, session.loss_scale, repeated=True)
    values = session.values(state, compiled.executable, feeds)
    streamed = streamed_gradients(compiled, args)
    times = times_of(args)
    ready = session.cached.timed(compiled) if times is not None else compiled
    out = run(state, ready.executable, values, session.seed, session.steps, streamed, times)
    result, arrays = answer_of(state, compiled, out, args["returned"], streamed=streamed, times=times)
    return result | session.about(), arrays


def update(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Apply the optimiser to the client's gradients. args: id, seq, tables; tensors: ``grad/<parameter>`` or the name.

    If there is a tensor ``rows/<parameter>``, the gradient is sparse: values of these rows, in any order; the values of
    a repeated row are added. ``args["tables"]`` may hold the shapes that the client expects the tables to have.
    Parameters without a gradient do not change, and neither does their optimiser state.
    """
    session = _session(state, args)
    given, rows = given_gradients(session.cached.program, tensors, args)
    compiled = session.cached.update(sorted(given), session.optimizer, session.clip, sorted(rows))
    by_name = {f"{name}@GRAD": value for name, value in given.items()}
    by_name |= {f"{name}@GRAD@ROWS": value for name, value in rows.items()}
    values = session.values(state, compiled.executable, by_name)
    out = run(state, compiled.executable, values, session.seed, session.steps)

    session.adopt_rows(out, values, {}, state.xp)
    session.count_update(args["seq"])
    densified = [each.as_document() for each in out.densified]
    return {**session.about(), "densified": densified, "compiled": compiled.fresh}, {}


def evaluate(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Compute `fetch` without gradients; changes nothing. args: id, fetch, profile?; tensors: feeds."""
    session = _session(state, args)
    feeds = session.feeds(tensors, args, args["fetch"])
    compiled = session.cached.forward(args["fetch"], feeds)
    values = session.values(state, compiled.executable, feeds)
    times = times_of(args)
    ready = session.cached.timed(compiled) if times is not None else compiled
    out = run(state, ready.executable, values, session.seed, session.steps, times=times)
    result, arrays = answer_of(state, compiled, out, "none", times=times)
    return result | session.about(), arrays


def get_parameters(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Parameters and states by name: ``args["names"]``, or all if that is None."""
    session = _session(state, args)
    held = session.parameters | session.states
    names = list(held) if args["names"] is None else args["names"]
    mistakes = Mistakes()
    for i, name in enumerate(names):
        if name not in held:
            message = f"the program has no parameter or state {name!r}"
            mistakes.add("feed_unknown", message, f"/names/{i}", near(name, held))
    mistakes.raise_if_any()
    states = [name for name in names if name in session.states]
    return {**session.about(), "states": states}, {name: held[name] for name in names}


def put_parameters(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Replace the given parameters and states, all or none of them.

    Optimiser state does not change, except that the rounding remainder of a replaced parameter is dropped.
    """
    session = _session(state, args)
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


def _session(state: WorkerState, args: Mapping[str, Any]) -> WorkerSession:
    session = state.sessions.get(args["id"])
    if session is None:
        raise ExecutionError("the worker does not have this session", "session_unknown")
    return session


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
        for slot in state_types(optimizer, parameter.type):
            if f"{parameter.name}/{slot}" in names:
                message = f"rename {parameter.name}/{slot}: it names the {optimizer.type} state of {parameter.name!r}"
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


def _on_host(state: WorkerState, arrays: Arrays) -> Arrays:
    return {name: state.to_host(value) for name, value in arrays.items()}
