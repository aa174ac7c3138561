"""One session in a worker: its values, and their replacement by the outputs of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from core.compiler.compile import Clip, Executable, GradientQuery, LossScale, Outputs
from core.optim.optimizers import Optimizer
from core.runtime.sparse_rows import RowArray
from service.worker.given import check_feeds
from service.worker.last_step import LastStep
from service.worker.programs import CachedProgram
from service.worker.state import WorkerState
from service.worker.tables import own_tables

__all__ = ["Arrays", "WorkerSession"]

Arrays = dict[str, Any]


@dataclass(slots=True)
class WorkerSession:
    """A model in training.

    slots:     optimiser state by ``<parameter>/<slot>``; a slot that was never written is absent and counts as zero.
    steps:     number of updates; together with the seed it determines the values of random ops.
    version:   increases whenever a parameter or state may have changed.
    seq:       sequence number of the client's last call that changed the session.
    last_step: the last step, for reuse if the next call repeats it.
    """

    cached: CachedProgram
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
    last_step: LastStep | None = None

    def values(self, state: WorkerState, executable: Executable, given: Mapping[str, Any] | None = None) -> Arrays:
        """The inputs of `executable`: the session's values, and the values `given` with the call."""
        found = {**(given or {}), **self.parameters, **self.states}
        for v in executable.inputs:
            if v.name not in found and v.role == "state":
                slot = self.slots.get(v.name)
                found[v.name] = state.xp.zeros(v.type.shape, v.type.dtype) if slot is None else slot
        return found

    def feeds(self, tensors: Arrays, args: Mapping[str, Any], outputs: Sequence[str]) -> Arrays:
        """`tensors`, the feeds of a call that computes `outputs`. Raises ProgramError with all mistakes."""
        check_feeds(self.cached.program, tensors, args, outputs)
        return tensors

    def adopt(self, out: Outputs) -> None:
        """Take over the outputs of a step without sparse updates."""
        self.parameters |= out.parameters
        self.slots |= out.optimizer_state
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

    def count_update(self, seq: int) -> None:
        """Count one update, made by the client's call `seq`."""
        self.steps += 1
        self.version += 1
        self.seq = seq

    def about(self) -> dict[str, int]:
        return {"version": self.version, "step": self.steps, "seq": self.seq}
