"""Handlers about sessions: parameters, states and optimiser state stay on the device between calls.

Every handler computes first, and replaces the session's values at its end in one go. A call that fails, is stopped, or
runs out of memory does not change the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from core.compiler.compile import Clip, LossScale
from core.ir import TensorType, Variable
from core.ir.errors import ExecutionError, ProgramError
from core.optim.initializers import initial_parameters
from core.optim.optimizers import REST, Optimizer, state_types
from service.worker.last_step import last_step
from service.worker.programs import CachedProgram, cached_program, check_type
from service.worker.running import answer_of, check_answer_size, query_from, run, streamed_gradients, times_of
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

GRADIENT, ROWS = "grad/", "rows/"


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
    cached.training(query, optimizer, clip, (), {}, scale)  # raises for a wrong query now, and not at the first step
    for v in variables:
        if not v.type.is_static:
            raise ProgramError(
                f"{v.name!r} is {v.type}; parameters and states of a session need a fixed shape", "bad_query"
            )
    given = _placed(state, variables, tensors)
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
    feeds, scale = session.feeds(tensors), session.loss_scale
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
    feeds = session.feeds(tensors)
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
    trainable = {v.name: v for v in session.cached.program.parameters if v.trainable}
    rows = {n.removeprefix(ROWS): v for n, v in tensors.items() if n.startswith(ROWS) and n not in trainable}
    values = {n: v for n, v in tensors.items() if n.removeprefix(ROWS) not in rows or n in trainable}
    given = {f"{name.removeprefix(GRADIENT)}@GRAD": value for name, value in values.items()}
    if not given or len(given) != len(values):
        raise ProgramError("an update needs at least one gradient, and one for each parameter", "feed_missing")
    names = sorted(name.removesuffix("@GRAD") for name in given)
    for name in names:
        if name not in trainable:
            raise ProgramError(f"the program has no trainable parameter {name!r}", "feed_unknown")
        type, value = trainable[name].type, given[f"{name}@GRAD"]
        if name in rows:
            _check_rows(name, type, rows[name], value)
        else:
            check_type(f"grad/{name}", type, value)
        if args["require_finite"] and not bool(np.isfinite(value).all()):
            raise ExecutionError(f"the gradient of {name!r} is not finite", "not_finite")
    for name, shape in args["tables"].items():
        if name in trainable and tuple(shape) != trainable[name].type.shape:
            raise ProgramError(
                f"{name!r} is {trainable[name].type}, but the request gives the shape {shape}", "feed_shape"
            )
    if lost := rows.keys() - set(names):
        raise ProgramError(f"rows are given for {min(lost)!r}, but no values", "feed_missing")
    compiled = session.cached.update(names, session.optimizer, session.clip, sorted(rows))
    given |= {f"{name}@GRAD@ROWS": value for name, value in rows.items()}
    values = session.values(state, compiled.executable, given)
    out = run(state, compiled.executable, values, session.seed, session.steps)

    session.adopt_rows(out, values, {}, state.xp)
    session.count_update(args["seq"])
    densified = [each.as_document() for each in out.densified]
    return {**session.about(), "densified": densified, "compiled": compiled.fresh}, {}


def evaluate(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Compute `fetch` without gradients; changes nothing. args: id, fetch, profile?; tensors: feeds."""
    session = _session(state, args)
    feeds = session.feeds(tensors)
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
    for name in names:
        if name not in held:
            raise ProgramError(f"the program has no parameter or state {name!r}", "feed_unknown")
    states = [name for name in names if name in session.states]
    values = {name: held[name] for name in names}
    check_answer_size(state, values)
    return {**session.about(), "states": states}, values


def put_parameters(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Replace the given parameters and states, all or none of them.

    Optimiser state does not change, except that the rounding remainder of a replaced parameter is dropped.
    """
    session = _session(state, args)
    program = session.cached.program
    placed = _placed(state, (*program.parameters, *program.states), tensors)

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


def _check_slots(cached: CachedProgram, optimizer: Optimizer) -> None:
    """Raises ProgramError (reserved_name) if a variable has the name of an optimiser state."""
    names = {v.name for v in cached.program.variables}
    for parameter in cached.program.parameters:
        for slot in state_types(optimizer, parameter.type):
            if f"{parameter.name}/{slot}" in names:
                message = f"rename {parameter.name}/{slot}: it names the {optimizer.type} state of {parameter.name!r}"
                raise ProgramError(message, "reserved_name")


def _check_rows(name: str, table: TensorType, rows: np.ndarray, values: np.ndarray) -> None:
    """Raises ProgramError (feed_dtype, feed_shape) unless `values` holds one row of the table for each of `rows`."""
    if table.rank == 0:
        raise ProgramError(f"{name!r} is {table} and has no rows", "feed_shape")
    check_type(f"rows/{name}", TensorType((-1,), "int64"), rows)
    check_type(f"grad/{name}", TensorType((len(rows), *table.shape[1:]), table.dtype), values)


def _placed(state: WorkerState, variables: Iterable[Variable], tensors: Mapping[str, np.ndarray]) -> Arrays:
    """`tensors` on the device.

    Raises ProgramError (feed_unknown, feed_dtype, feed_shape) for a tensor that is not one of `variables` or not of its
    type.
    """
    types = {v.name: v.type for v in variables}
    for name, value in tensors.items():
        if name not in types:
            raise ProgramError(f"the program has no parameter or state {name!r}", "feed_unknown")
        check_type(name, types[name], value)
    return {name: state.xp.asarray(value) for name, value in tensors.items()}


def _on_host(state: WorkerState, arrays: Arrays) -> Arrays:
    return {name: state.to_host(value) for name, value in arrays.items()}
