"""One session in a worker: its values, and their replacement by the outputs of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from core.compiler.compile import Clip, Executable, GradientQuery, LossScale, Outputs
from core.ir import TensorType
from core.ir.errors import ExecutionError
from core.ir.names import root_array
from core.ir.suggest import near
from core.optim.optimizers import Optimizer
from core.optim.rates import Rates
from core.runtime.sparse_rows import RowArray
from service.worker.given import Mistakes, check_feeds, outputs_of
from service.worker.gradient_sum import GradientSum
from service.worker.last_step import LastStep
from service.worker.programs import CachedProgram
from service.worker.state import WorkerState
from service.worker.step_kinds import GradientStep, TrainingStep
from service.worker.tables import own_tables

__all__ = ["Arrays", "WorkerSession", "chosen", "session_of"]

Arrays = dict[str, Any]

MOST_SEEN = 1000
"""Shapes of feeds that a session remembers as seen, and as many whose steps it counts."""

FEW_SHAPES = 3
"""Seen shapes after which steps on new ones run on code with room for many sizes, if there is such code."""

RECURRING = 32
"""Steps on code with room for many sizes after which a shape gets code of its own."""

AHEAD = 8
"""Steps before that, at which the compilation of this code begins."""


@dataclass(slots=True)
class WorkerSession:
    """A model in training.

    rates:     the learning rates of a step that gives none, and the optimiser without them.
    asked:     program_id, query, clip and loss scale in their JSON form, for checkpoints.
    shown:     the optimiser in the words of the client; None in a session of an earlier version, unless changed since.
    gradients: the gradients added up since the last update with them.
    slots:     optimiser state by ``<parameter>/<slot>``; a slot that was never written is absent and counts as zero.
    steps:     number of updates; together with the seed it determines the values of random ops.
    version:   increases whenever a parameter or state may have changed.
    seq:       sequence number of the client's last call that changed the session.
    last_step: the last step, for reuse if the next call repeats it.
    seen:      the open shapes of feeds (`CachedProgram.open_shapes`) that have code of their own, or will have it
               after a first step; at most MOST_SEEN.
    roomy:     other shapes -> the number of training steps, which ran on code with room for many sizes.
    """

    cached: CachedProgram
    query: GradientQuery
    optimizer: Optimizer
    clip: Clip | None
    loss_scale: LossScale | None
    seed: int
    parameters: Arrays
    states: Arrays
    rates: Rates
    asked: dict[str, Any] = field(default_factory=dict)
    shown: dict[str, Any] | None = None
    gradients: GradientSum = field(default_factory=GradientSum)
    slots: Arrays = field(default_factory=dict)
    steps: int = 0
    version: int = 0
    seq: int = 0
    last_step: LastStep | None = None
    seen: set[str] = field(default_factory=set)
    roomy: dict[str, int] = field(default_factory=dict)

    def is_first_on(self, feeds: Mapping[str, Any]) -> bool:
        """Whether no training step ran on feeds of these shapes, or none but on code with room for many sizes."""
        return len(self.seen) < MOST_SEEN and self.cached.open_shapes(feeds) not in self.seen

    def varies_to(self, feeds: Mapping[str, Any]) -> bool:
        """Whether feeds of these shapes are not seen, in a session that has seen some shapes already."""
        return len(self.seen) >= FEW_SHAPES and self.cached.open_shapes(feeds) not in self.seen

    def recurs_soon(self, feeds: Mapping[str, Any]) -> bool:
        """Whether feeds of these shapes are about to get code of their own."""
        return self.roomy.get(self.cached.open_shapes(feeds)) == RECURRING - AHEAD

    def recurs_within(self, count: int, feeds: Mapping[str, Any]) -> bool:
        """Whether feeds of these shapes get code of their own before the last of the next `count` steps on them."""
        done = self.roomy.get(self.cached.open_shapes(feeds), 0)
        is_counted = len(self.seen) < MOST_SEEN and (done > 0 or len(self.roomy) < MOST_SEEN)
        return is_counted and done + count > RECURRING

    def ran_on(self, feeds: Mapping[str, Any], executable: Executable) -> None:
        """Record a training step of `executable` on these feeds."""
        shapes = self.cached.open_shapes(feeds)
        if shapes in self.seen:
            return
        if executable.packs is not None:
            count = self.roomy.get(shapes, 0) + 1
            if count < RECURRING:
                if count > 1 or len(self.roomy) < MOST_SEEN:
                    self.roomy[shapes] = count
                return
            del self.roomy[shapes]
        if len(self.seen) < MOST_SEEN:
            self.seen.add(shapes)

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters and states."""
        return sum(value.nbytes for each in (self.parameters, self.states) for value in each.values())

    def values(self, state: WorkerState, executable: Executable, given: Mapping[str, Any] | None = None) -> Arrays:
        """The inputs of `executable`: the session's values, and the values `given` with the call."""
        found = {**(given or {}), **self.parameters, **self.states}
        for v in executable.inputs:
            if v.name not in found and v.role == "state":
                slot = self.slots.get(v.name)
                found[v.name] = state.xp.zeros(v.type.shape, v.type.dtype) if slot is None else slot
        return found

    def feeds(self, tensors: Arrays, args: Mapping[str, Any], outputs: Sequence[str] | None = None) -> Arrays:
        """`tensors`, the feeds and cotangents of a call. Raises ProgramError with all mistakes.

        args:    of the handler: fetch, flawed?, batches?, accumulate?.
        outputs: the variables that the call computes; by default those of the query and the fetched ones.
        """
        types = self.cached.program.block.types
        cotangents = {name: types[variable] for name, variable in self.cotangents().items()}
        counts = (args.get("batches"), args.get("accumulate"))
        leading = [n for n in counts if isinstance(n, int) and not isinstance(n, bool)]
        computed = outputs_of(self.query, args["fetch"]) if outputs is None else outputs
        known = {name: type if isinstance(type, TensorType) else None for name, type in cotangents.items()}
        check_feeds(self.cached.program, tensors, args, computed, known, leading)
        return tensors

    @property
    def trained(self) -> frozenset[str]:
        """The names of all trainable parameters."""
        return frozenset(v.name for v in self.cached.program.parameters if v.trainable)

    @property
    def trainable(self) -> frozenset[str]:
        """The names of the parameters that a step may train: those that the query names, or all."""
        asked = self.query.inputs if self.query.loss is None else self.query.parameter_list
        return self.trained if asked is None else self.trained & set(asked)

    def cotangents(self) -> dict[str, str]:
        """The name of the cotangent of each target in a request -> the variable of the target."""
        program = self.cached.program
        return {f"target_gradients/{i}": root_array(program, name) for i, name in enumerate(self.query.targets)}

    def query_for(self, feeds: Mapping[str, Any]) -> GradientQuery:
        """The query of a call with these feeds and cotangents of targets; a target without one has ones."""
        given = tuple(name in feeds for name in self.cotangents())
        return replace(self.query, target_gradients=given) if any(given) else self.query

    def training_step(self, rates: Rates, fetch: Sequence[str], feeds: Mapping[str, Any]) -> TrainingStep:
        """The training step of a call with these feeds and cotangents."""
        return TrainingStep(self.query_for(feeds), rates.optimizer, self.clip, tuple(fetch), self.loss_scale)

    def gradient_step(self, fetch: Sequence[str], feeds: Mapping[str, Any], rounds: bool = True) -> GradientStep:
        """The gradients of a call with these feeds and cotangents. rounds: as of `compile_gradient`."""
        return GradientStep(self.query_for(feeds), tuple(fetch), self.loss_scale, rounds)

    def rates_for(self, given: Any) -> Rates:
        """The learning rates of one call. given: rates in place of the session's; see `Rates.of`."""
        return self.rates if given is None else Rates.of(self.optimizer, given)

    def adopt(self, out: Outputs) -> None:
        """Take over the outputs of a step that is bound to the session's arrays; it writes rows of tables itself."""
        self.parameters |= {name: each for name, each in out.parameters.items() if not isinstance(each, RowArray)}
        self.slots |= {name: each for name, each in out.optimizer_state.items() if not isinstance(each, RowArray)}
        self.states |= out.states

    def adopt_rows(self, out: Outputs, values: Mapping[str, Any], answered: Mapping[str, Any], xp: ModuleType) -> None:
        """Take over the outputs of a run that may update only some rows of tables.

        values: the inputs of the run. answered: arrays that are not sent yet, which must not change.
        """
        new = out.parameters | out.optimizer_state
        if any(isinstance(value, RowArray) for value in new.values()):
            held = {**self.states, **self.slots, **self.parameters, **{name: values[name] for name in new}}
            tables = own_tables(new, held, (*answered.values(), *out.states.values()), xp)
            for rows, table in tables.values():  # no failure is possible from here on
                rows.write(table)
            new |= {name: table for name, (_, table) in tables.items()}
        self.parameters |= {name: new[name] for name in out.parameters}
        self.slots |= {name: new[name] for name in out.optimizer_state}
        self.states |= out.states

    def remember(self, step: LastStep | None) -> None:
        """`step` was the last one. If it is bound, it goes on with the session's tables, which may have moved."""
        if step is not None and step.bound is not None and not step.bound.put_tables({**self.slots, **self.parameters}):
            step.bound = None
        self.last_step = step

    def count_update(self, seq: int, updates: int = 1) -> None:
        """Count updates, made by the client's call `seq`."""
        self.steps += updates
        self.version += updates
        self.seq = seq

    def about(self) -> dict[str, int]:
        return {"version": self.version, "step": self.steps, "seq": self.seq, "accumulated": self.gradients.count}


def chosen(held: Iterable[str], names: Sequence[str] | None) -> list[str]:
    """`names`, which must be among those `held` by a session; all of these if None.

    Raises ProgramError (feed_unknown) with all unknown names.
    """
    known = dict.fromkeys(held)
    if names is None:
        return list(known)
    mistakes = Mistakes()
    for i, name in enumerate(names):
        if name not in known:
            message = f"the program has no parameter or state {name!r}"
            mistakes.add("feed_unknown", message, f"/names/{i}", near(name, known))
    mistakes.raise_if_any()
    return list(names)


def session_of(state: WorkerState, args: Mapping[str, Any]) -> WorkerSession:
    """The session ``args["id"]``. Raises ExecutionError (session_unknown)."""
    session: WorkerSession | None = state.sessions.get(args["id"])
    if session is None:
        raise ExecutionError("the worker does not have this session", "session_unknown")
    return session
