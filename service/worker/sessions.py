"""Sessions: parameters, states and optimiser state that stay on the device between calls.

Every handler computes first and puts the new values in place last, all at once: a call that fails, is stopped, or runs
out of memory leaves the session as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.compiler.compile import Clip, Executable, GradientQuery, LossScale, Outputs
from core.ir import TensorType, Variable
from core.ir.errors import ExecutionError, ProgramError
from core.optim.initializers import initial_parameters
from core.optim.optimizers import REST, Optimizer, state_types
from core.runtime.sparse_rows import RowArray
from service.worker.programs import Known, check_type, known_program
from service.worker.repeated import Repeated, repeated
from service.worker.running import answer_of, query_from, run, times_of, told_of
from service.worker.state import WorkerState
from service.worker.tables import own_tables

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
Arrays = dict[str, Any]

GRADIENT, ROWS = "grad/", "rows/"


@dataclass(slots=True)
class Session:
    """A model in training.

    slots:   optimiser state, as ``<parameter>/<slot>``; a slot that was never written is zero and not there.
    steps:   updates done; with the seed it decides what random ops draw.
    version: grows whenever a parameter or state may have changed.
    seq:     number of the client's last call that changed something.
    repeated: the last step, which the next one may be like.
    """

    known: Known
    query: GradientQuery
    optimizer: Optimizer
    clip: Clip | None
    loss_scale: LossScale | None
    seed: int
    parameters: Arrays
    states: Arrays
    slots: Arrays = field(default_factory=dict)
    steps: int = 0
    version: int = 0
    seq: int = 0
    repeated: Repeated | None = None

    def values(self, state: WorkerState, executable: Executable, given: Mapping[str, Any] | None = None) -> Arrays:
        """What `executable` reads: ours, and what is `given` with the call."""
        found = {**(given or {}), **self.parameters, **self.states}
        for v in executable.inputs:
            if v.name not in found and v.role == "state":
                slot = self.slots.get(v.name)
                found[v.name] = state.xp.zeros(v.type.shape, v.type.dtype) if slot is None else slot
        return found

    def feeds(self, tensors: Arrays) -> Arrays:
        """`tensors`, if each is a feed. Raises ProgramError (feed_unknown)."""
        names = {v.name for v in self.known.program.feeds}
        for name in tensors:
            if name not in names:
                raise ProgramError(f"the program has no feed {name!r}", "feed_unknown")
        return tensors

    def adopt(self, out: Outputs) -> None:
        """Put what a step gave in place, whole arrays all of them."""
        self.parameters |= out.parameters
        self.slots |= out.optimizer_state
        self.states |= out.states

    def about(self) -> dict[str, int]:
        return {"version": self.version, "step": self.steps, "seq": self.seq}


def create(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """A session ``args["id"]`` of a program; parameters and states that `tensors` does not give are initialised.

    args: id, program_id, document?, query, optimizer {type, attrs}, clip, loss_scale, seed, initializers.
    """
    known = known_program(state, args)
    query = query_from(args["query"])
    optimizer = Optimizer(args["optimizer"]["type"], args["optimizer"]["attrs"])
    variables = (*known.program.parameters, *known.program.states)
    _check_slots(known, optimizer)
    clip = Clip.read(args["clip"]) if args["clip"] else None
    scale = LossScale.read(args["loss_scale"]) if args.get("loss_scale") is not None else None
    known.training(query, optimizer, clip, (), {}, scale)  # shows now what is wrong with the question
    for v in variables:
        if not v.type.is_static:
            raise ProgramError(
                f"{v.name!r} is {v.type}; parameters and states of a session need a fixed shape", "bad_query"
            )
    given = _placed(state, variables, tensors)
    defaults = {v.name: {"type": "zeros"} for v in known.program.states}
    first = initial_parameters(variables, {**defaults, **args["initializers"]}, args["seed"])
    values = {name: given[name] if name in given else state.xp.asarray(value) for name, value in first.items()}
    session = state.sessions[args["id"]] = Session(
        known=known,
        query=query,
        optimizer=optimizer,
        clip=clip,
        loss_scale=scale,
        seed=args["seed"],
        parameters={v.name: values[v.name] for v in known.program.parameters},
        states={v.name: values[v.name] for v in known.program.states},
    )
    return {**session.about(), "bytes": sum(value.nbytes for value in values.values())}, {}


def describe(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    return _session(state, args).about(), {}


def step(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Forward, backward and update. args: id, seq, fetch, returned, require_finite, profile?; tensors: the feeds."""
    session = _session(state, args)
    again = session.repeated
    if again is None or not again.serves(session.version, args, tensors):
        return _first_step(state, session, args, tensors)
    out = again.run(state, session.seed, session.steps)
    result, arrays = answer_of(state, again.compiled, out, args["returned"], args["require_finite"])

    session.adopt(out)
    _count(session, args["seq"])
    again.keep(session.version)
    return result | session.about(), arrays


def _first_step(state: WorkerState, session: Session, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """A step of which little is known; one that is like the one before it is bound to its arrays afterwards."""
    feeds, scale = session.feeds(tensors), session.loss_scale
    compiled = session.known.training(session.query, session.optimizer, session.clip, args["fetch"], feeds, scale)
    values = session.values(state, compiled.executable, feeds)
    times = times_of(args)
    ready = session.known.timed(compiled) if times is not None else compiled
    out = run(state, ready.executable, values, session.seed, session.steps, times=times)
    result, arrays = answer_of(state, compiled, out, args["returned"], args["require_finite"], times=times)
    arrays = _on_host(state, arrays)  # now, because it may fail
    again = repeated(session.repeated, session.version, compiled, args["fetch"], values, out)

    _replace(state, session, out, values, arrays)
    _count(session, args["seq"])
    session.repeated = again
    return result | session.about(), arrays


def gradients(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Gradients at the present parameters, which stay. args: id, fetch, returned, stream, profile?; tensors: the feeds.

    Random ops draw what they will draw in the next step.
    """
    session = _session(state, args)
    feeds = session.feeds(tensors)
    compiled = session.known.gradient(session.query, args["fetch"], feeds, session.loss_scale, repeated=True)
    values = session.values(state, compiled.executable, feeds)
    told = told_of(compiled, args)
    times = times_of(args)
    ready = session.known.timed(compiled) if times is not None else compiled
    out = run(state, ready.executable, values, session.seed, session.steps, told, times)
    result, arrays = answer_of(state, compiled, out, args["returned"], told=told, times=times)
    return result | session.about(), arrays


def update(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Apply the optimiser to the client's gradients. args: id, seq, tables; tensors: ``grad/<parameter>`` or the name.

    With ``rows/<parameter>`` the gradient of a table is values of these rows, in any order, which add up where a row is
    there twice; ``args["tables"]`` may hold the shape that the client takes the table to have. Parameters without a
    gradient stay, and so does their optimiser state.
    """
    session = _session(state, args)
    trainable = {v.name: v for v in session.known.program.parameters if v.trainable}
    rows = {n.removeprefix(ROWS): v for n, v in tensors.items() if n.startswith(ROWS) and n not in trainable}
    values = {n: v for n, v in tensors.items() if n.removeprefix(ROWS) not in rows or n in trainable}
    given = {f"{name.removeprefix(GRADIENT)}@GRAD": value for name, value in values.items()}
    if not given or len(given) != len(values):
        raise ProgramError("an update needs one gradient for each of one or more parameters", "feed_missing")
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
    compiled = session.known.update(names, session.optimizer, session.clip, sorted(rows))
    given |= {f"{name}@GRAD@ROWS": value for name, value in rows.items()}
    values = session.values(state, compiled.executable, given)
    out = run(state, compiled.executable, values, session.seed, session.steps)

    _replace(state, session, out, values, {})
    _count(session, args["seq"])
    densified = [each.as_document() for each in out.densified]
    return {**session.about(), "densified": densified, "compiled": compiled.fresh}, {}


def evaluate(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Forward only; states are read, and not kept. args: id, fetch, profile?; tensors: the feeds they need."""
    session = _session(state, args)
    feeds = session.feeds(tensors)
    compiled = session.known.forward(args["fetch"], feeds)
    values = session.values(state, compiled.executable, feeds)
    times = times_of(args)
    ready = session.known.timed(compiled) if times is not None else compiled
    out = run(state, ready.executable, values, session.seed, session.steps, times=times)
    result, arrays = answer_of(state, compiled, out, "none", times=times)
    return result | session.about(), arrays


def get_parameters(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Parameters and states by name, those in ``args["names"]`` or all."""
    session = _session(state, args)
    held = session.parameters | session.states
    names = list(held) if args["names"] is None else args["names"]
    for name in names:
        if name not in held:
            raise ProgramError(f"the program has no parameter or state {name!r}", "feed_unknown")
    states = [name for name in names if name in session.states]
    return {**session.about(), "states": states}, {name: held[name] for name in names}


def put_parameters(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Replace parameters and states: those given, all or none of them. Optimiser state stays, but for what was rounded
    off a parameter that is replaced.
    """
    session = _session(state, args)
    program = session.known.program
    placed = _placed(state, (*program.parameters, *program.states), tensors)

    session.parameters |= {name: value for name, value in placed.items() if name in session.parameters}
    session.states |= {name: value for name, value in placed.items() if name in session.states}
    for name in placed:
        session.slots.pop(f"{name}/{REST}", None)
    session.version += 1
    return session.about(), {}


def delete(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Forget the session; also fine when it is not there."""
    state.sessions.pop(args["id"], None)
    state.free_device_memory()
    return {}, {}


def _session(state: WorkerState, args: Mapping[str, Any]) -> Session:
    session = state.sessions.get(args["id"])
    if session is None:
        raise ExecutionError("the worker does not hold this session", "session_unknown")
    return session


def _check_slots(known: Known, optimizer: Optimizer) -> None:
    """Raises ProgramError if a variable has the name under which optimiser state is kept."""
    names = {v.name for v in known.program.variables}
    for parameter in known.program.parameters:
        for slot in state_types(optimizer, parameter.type):
            if f"{parameter.name}/{slot}" in names:
                message = f"{parameter.name}/{slot} is the {optimizer.type} state of {parameter.name!r}; rename it"
                raise ProgramError(message, "reserved_name")


def _check_rows(name: str, table: TensorType, rows: np.ndarray, values: np.ndarray) -> None:
    """Raises ProgramError (feed_dtype, feed_shape) unless `values` are one row of the table for each of `rows`."""
    if table.rank == 0:
        raise ProgramError(f"{name!r} is {table} and has no rows", "feed_shape")
    check_type(f"rows/{name}", TensorType((-1,), "int64"), rows)
    check_type(f"grad/{name}", TensorType((len(rows), *table.shape[1:]), table.dtype), values)


def _replace(
    state: WorkerState, session: Session, out: Outputs, values: Mapping[str, Any], answered: Mapping[str, Any]
) -> None:
    """Put what is new by `out` in place. values: what it was made from; answered: arrays that are still to be sent."""
    new = out.parameters | out.optimizer_state
    if any(isinstance(value, RowArray) for value in new.values()):
        held = {**session.states, **session.slots, **session.parameters, **{name: values[name] for name in new}}
        tables = own_tables(new, held, (*answered.values(), *out.states.values()), state.xp)
        for rows, table in tables.values():  # from here on nothing fails
            rows.write(table)
        new |= {name: table for name, (_, table) in tables.items()}
    session.parameters |= {name: new[name] for name in out.parameters}
    session.slots |= {name: new[name] for name in out.optimizer_state}
    session.states |= out.states


def _count(session: Session, seq: int) -> None:
    session.steps += 1
    session.version += 1
    session.seq = seq


def _placed(state: WorkerState, variables: Iterable[Variable], tensors: Mapping[str, np.ndarray]) -> Arrays:
    """`tensors` on the device, each of them one of `variables` and of its type.

    Raises ProgramError (feed_unknown, feed_dtype, feed_shape).
    """
    types = {v.name: v.type for v in variables}
    for name, value in tensors.items():
        if name not in types:
            raise ProgramError(f"the program has no parameter or state {name!r}", "feed_unknown")
        check_type(name, types[name], value)
    return {name: state.xp.asarray(value) for name, value in tensors.items()}


def _on_host(state: WorkerState, arrays: Arrays) -> Arrays:
    return {name: state.to_host(value) for name, value in arrays.items()}
