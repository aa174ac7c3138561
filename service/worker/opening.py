"""The settings of a new session, checked against its program and compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.compiler.compile import Clip, Executable, GradientQuery, LossScale
from core.cost.scratch import drawn_bytes
from core.ir import TensorType, Variable
from core.ir.errors import ProgramError, below
from core.ops.common.types import as_dtype, byte_size
from core.optim.initializers import initial_parameters
from core.optim.optimizers import Optimizer, state_types
from core.optim.parameter_roles import parameter_roles
from core.optim.rates import Rates
from service.worker.memory import require
from service.worker.programs import CachedProgram
from service.worker.running import query_from
from service.worker.session import Arrays, WorkerSession
from service.worker.state import WorkerState
from service.worker.step_kinds import TrainingStep

__all__ = ["Opening", "opening"]


@dataclass(frozen=True, slots=True)
class Opening:
    """A session without values.

    asked:    program_id, query, clip and loss scale in their JSON form.
    training: the training step; open sizes of feeds count as 1.
    """

    cached: CachedProgram
    query: GradientQuery
    optimizer: Optimizer
    clip: Clip | None
    loss_scale: LossScale | None
    seed: int
    rates: Rates
    asked: dict[str, Any]
    training: Executable

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The parameters and states of the program."""
        return *self.cached.program.parameters, *self.cached.program.states

    @property
    def slots(self) -> list[Variable]:
        """The optimiser state of a training step."""
        own = {v.name for v in self.cached.program.states}
        return [v for v in self.training.inputs if v.role == "state" and v.name not in own]

    def require(self, state: WorkerState, held: int, drawn: Sequence[TensorType] = ()) -> None:
        """Raises OutOfMemory if the values of the session and its first step do not fit into the memory that is left.

        held: bytes of all values that are not initialised. drawn: types of those that are.
        """
        peak = self.training.peak(self.training.machine is not None).peak
        require(state.memory, drawn_bytes(drawn) + held + peak, "the session with its first step")

    def first_values(self, state: WorkerState, given: Mapping[str, Any], initializers: Mapping[str, Any]) -> Arrays:
        """All parameters and states: those `given`, and initialised ones."""
        drawn = [v for v in self.variables if v.name not in given]
        own = {name: each for name, each in initializers.items() if name not in given}
        with below("/init/initializers"):
            first = initial_parameters(drawn, own, self.seed, parameter_roles(self.cached.program))
        return {**given, **{name: state.xp.asarray(value) for name, value in first.items()}}

    def zero_slots(self, state: WorkerState) -> Arrays:
        """Optimiser state of the first step, allocated so that no other session can take its memory before."""
        return {v.name: state.xp.zeros(v.type.shape, as_dtype(v.type.dtype)) for v in self.slots}

    def slot_bytes(self) -> int:
        return sum(byte_size(v.type) for v in self.slots)

    def session(self, values: Mapping[str, Any], slots: Arrays) -> WorkerSession:
        """The session with these parameters and states, before its first step. Raises ProgramError (bad_group)."""
        session = WorkerSession(
            cached=self.cached,
            query=self.query,
            optimizer=self.optimizer,
            clip=self.clip,
            loss_scale=self.loss_scale,
            seed=self.seed,
            rates=self.rates,
            asked=self.asked,
            parameters={v.name: values[v.name] for v in self.cached.program.parameters},
            states={v.name: values[v.name] for v in self.cached.program.states},
            slots=slots,
        )
        with below("/optimizer"):
            self.optimizer.check_groups(session.trainable)
        return session


def opening(cached: CachedProgram, asked: Mapping[str, Any]) -> Opening:
    """Check the settings of a session: program_id?, query, optimizer {type, attrs}, clip, loss_scale?, seed.

    Raises ProgramError now and not at the first step; CompilationPending.
    """
    query = query_from(asked["query"])
    if query.targets and not query.inputs:
        query = replace(query, inputs=tuple(v.name for v in cached.program.parameters if v.trainable))
    optimizer = Optimizer(asked["optimizer"]["type"], asked["optimizer"]["attrs"])
    _check_slots(cached, optimizer)
    rates = Rates.of(optimizer)
    with below("/clip"):
        clip = Clip.read(asked["clip"]) if asked["clip"] else None
    with below("/loss_scale"):
        scale = LossScale.read(asked["loss_scale"]) if asked.get("loss_scale") is not None else None
    kind = TrainingStep(query, rates.optimizer, clip, scale=scale)
    training = (cached.first_step(kind, {}) or cached.step(kind, {}, repeated=True)).executable
    for v in (*cached.program.parameters, *cached.program.states):
        if not v.type.is_static:
            raise ProgramError(
                f"{v.name!r} is {v.type}; parameters and states of a session need a fixed shape", "bad_query"
            )
    words = {name: asked.get(name) for name in ("program_id", "query", "clip", "loss_scale")}
    return Opening(cached, query, optimizer, clip, scale, asked["seed"], rates, words, training)


def _check_slots(cached: CachedProgram, optimizer: Optimizer) -> None:
    """Raises ProgramError (reserved_name) if a variable has the name of an optimiser state."""
    names = {v.name for v in cached.program.variables}
    for parameter in cached.program.parameters:
        own = optimizer.of(parameter.name)
        for slot in state_types(own, parameter.type):
            if f"{parameter.name}/{slot}" in names:
                message = f"rename {parameter.name}/{slot}: it names the {own.type} state of {parameter.name!r}"
                raise ProgramError(message, "reserved_name")
