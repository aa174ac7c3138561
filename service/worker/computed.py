"""Computations of a session that do not change it: one step, or one update with summed gradients.

The callers judge the outputs and adopt them; a computation that fails has changed nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from core.compiler.compile import Outputs, Summed
from core.ir import TensorType
from core.ir.errors import ExecutionError
from core.ir.names import root_array
from core.optim.loss_scaling import largest_factor
from core.optim.rates import Rates
from core.runtime.run import Run
from core.runtime.sparse_rows import RowArray
from core.runtime.times import Times
from service.worker.binding import bind
from service.worker.gradient_sum import GradientSum, Reduction, nbytes_of
from service.worker.memory import require
from service.worker.programs import Prepared
from service.worker.roomy import Roomy
from service.worker.running import limits_of, run
from service.worker.session import FEW_SHAPES, Arrays, WorkerSession
from service.worker.state import WorkerState

__all__ = [
    "AccumulatedStep",
    "Computed",
    "draw_of",
    "gradients_for",
    "kept",
    "later_step_for",
    "one_step",
    "runs_of",
    "stacked",
    "step_for",
    "steps_for",
    "streamed_step_for",
    "summed_update",
    "update_for",
]


@dataclass(frozen=True, slots=True)
class Computed:
    """The outputs of a step or update, and the inputs that it ran on. feeds: those of the first batch of a step."""

    compiled: Prepared
    out: Outputs
    values: Mapping[str, Any]
    feeds: Mapping[str, Any] = field(default_factory=dict)


def draw_of(step: int, number: int) -> int:
    """The number that random ops draw from in the batch `number` of those whose gradients are added up."""
    return step + (number << 40)


def step_for(session: WorkerSession, rates: Rates, fetch: Sequence[str], feeds: Arrays) -> Prepared:
    """The executable of the next training step, which is on feeds of these shapes.

    The first step on feeds of new shapes runs in the reference executor, unless it is predicted to take longer than the
    compilation. In a session that has seen some shapes it runs on code with room for many sizes, and so do the next
    ones. So it depends on the calls of the session alone, and a call that is repeated gives equal bits.
    """
    cached = session.cached
    kind = session.training_step(rates, fetch, feeds)
    if session.varies_to(feeds):
        roomy = Roomy(cached, kind, feeds).prepared()
        if roomy is not None:
            if session.recurs_soon(feeds):
                cached.first_step(kind, feeds)  # begins the compilation of code of its own
            return roomy
    if session.is_first_on(feeds):
        if len(session.seen) == FEW_SHAPES - 1:
            Roomy(cached, kind, feeds).begin()
        first = cached.first_step(kind, feeds)
        if first is not None:
            return first
    return cached.step(kind, feeds, repeated=True)


def later_step_for(session: WorkerSession, rates: Rates, fetch: Sequence[str], feeds: Arrays) -> Prepared:
    """The executable of training steps on feeds of these shapes, from the second one on."""
    return session.cached.step(session.training_step(rates, fetch, feeds), feeds, repeated=True)


def streamed_step_for(session: WorkerSession, rates: Rates, fetch: Sequence[str], feeds: Arrays) -> Prepared:
    """The executable of a training step that sends its gradients while it runs."""
    return session.cached.step(session.training_step(rates, fetch, feeds), feeds, repeated=True, streamed=True)


@dataclass(frozen=True, slots=True)
class Steps:
    """The executables of several steps on feeds of equal shapes: `first` until these have code of their own."""

    first: Prepared
    later: Prepared

    @property
    def fresh(self) -> bool:
        return self.first.fresh or self.later.fresh

    def on(self, session: WorkerSession, feeds: Arrays) -> Prepared:
        """The executable of the next step."""
        return self.first if session.is_first_on(feeds) else self.later


def steps_for(session: WorkerSession, rates: Rates, fetch: Sequence[str], feeds: Arrays, count: int) -> Steps:
    """The executables of the next `count` training steps. They are ready before the first one changes the session."""
    first = step_for(session, rates, fetch, feeds)
    is_only = count == 1 or (first.executable.packs is not None and not session.recurs_within(count, feeds))
    return Steps(first, first if is_only else later_step_for(session, rates, fetch, feeds))


def one_step(
    state: WorkerState,
    session: WorkerSession,
    rates: Rates,
    compiled: Prepared,
    feeds: Arrays,
    times: Times | None = None,
    streamed: Collection[str] = (),
    sent: dict[str, int | None] | None = None,
) -> Computed:
    """One training step on `feeds`. compiled: from `step_for`; streamed, sent: as of `run`."""
    values = session.values(state, compiled.executable, {**feeds, **rates.inputs})
    ready = session.cached.timed(compiled) if times is not None else compiled
    out = run(state, ready.executable, values, session.seed, session.steps, streamed, times, sent)
    return Computed(compiled, out, values, feeds)


def gradients_for(session: WorkerSession, fetch: Sequence[str], feeds: Arrays, count: int = 1) -> Steps:
    """The executables of gradients that are added up, in the next `count` calls on feeds of these shapes.

    Those of 16-bit parameters are not rounded. In a session that has seen some shapes, gradients on new ones come from
    code with room for many sizes, as in `step_for`.
    """
    cached, kind = session.cached, session.gradient_step(fetch, feeds, rounds=False)
    roomy = Roomy(cached, kind, feeds).prepared() if session.varies_to(feeds) else None
    if roomy is None:
        of_this_shape = cached.step(kind, feeds, repeated=True)
        return Steps(of_this_shape, of_this_shape)
    if session.recurs_within(count, feeds):
        return Steps(roomy, cached.step(kind, feeds, repeated=True))
    if session.recurs_soon(feeds):
        cached.begin_step(kind, feeds)
    return Steps(roomy, roomy)


def update_for(session: WorkerSession, rates: Rates, names: Sequence[str], rows: Sequence[str]) -> Prepared:
    """The executable of an update with summed gradients of `names`, of which those of `rows` are rows of tables."""
    query, scale, summed = session.query, session.loss_scale, Summed()
    if scale is not None and query.loss is not None:
        program = session.cached.program
        type = program.block.types[root_array(program, query.loss)]
        assert isinstance(type, TensorType), "a loss is an array"
        summed = Summed(scale, largest_factor(type))
    return session.cached.update(names, rates.optimizer, session.clip, rows, summed)


def summed_update(
    state: WorkerState, session: WorkerSession, rates: Rates, compiled: Prepared, sums: Mapping[str, Any]
) -> Computed:
    """The update with `sums`, the sums or means of gradients. compiled: from `update_for`."""
    given: dict[str, Any] = dict(rates.inputs)
    for name, value in sums.items():
        if isinstance(value, RowArray):
            given[f"{name}@GRAD@ROWS"], value = value.rows, value.values
        given[f"{name}@GRAD"] = value
    values = session.values(state, compiled.executable, given)
    out = run(state, compiled.executable, values, session.seed, session.steps)
    return Computed(compiled, out, values)


def runs_of(
    state: WorkerState, session: WorkerSession, compiled: Prepared, batches: Sequence[Arrays], first: int
) -> Iterator[Outputs]:
    """The outputs for each of several batches whose gradients are added up. Each batch reads the states of the last.

    first: the number of the first batch, for `draw_of`. The arrays of an output change with the next one.
    """
    executable, states = compiled.executable, dict(session.states)
    values = session.values(state, executable, batches[0])
    held = {name: values[name] for name in executable.input_names if name in values}
    held |= {v.name: values[v.name].copy() for v in executable.inputs if v.role == "state"}  # a bound step writes them
    bound = bind(executable, held) if len(batches) > 2 else None
    limits = limits_of(state)
    for number, batch in enumerate(batches, first):
        draw = draw_of(session.steps, number)
        if bound is not None and bound.takes(batch):
            state.stop.check()
            out = bound.step(Run(state.xp, limits), session.seed, draw)
            bound.keep()
        else:
            given = session.values(state, executable, batch) | states
            out = run(state, executable, given, session.seed, draw)
        states |= out.states
        yield out


def stacked(state: WorkerState, outs: Sequence[Outputs]) -> Outputs:
    """The values of several batches, stacked; without gradients and states."""
    return Outputs(
        loss=None if outs[0].loss is None else _stack(state, [each.loss for each in outs]),
        fetched={name: _stack(state, [each.fetched[name] for each in outs]) for name in outs[0].fetched},
        recorded={name: _stack(state, [each.recorded[name] for each in outs]) for name in outs[0].recorded},
        missing=outs[0].missing,
        densified=outs[0].densified,
        messages=tuple(message for each in outs for message in each.messages),
        unsaid=sum(each.unsaid for each in outs),
    )


def kept(out: Outputs) -> Outputs:
    """The values of `out` that `stacked` reads, in arrays of their own."""
    return replace(
        out,
        loss=None if out.loss is None else out.loss.copy(),
        fetched={name: value.copy() for name, value in out.fetched.items()},
        recorded={name: value.copy() for name, value in out.recorded.items()},
        gradients={},
    )


class AccumulatedStep:
    """Updates with the sum or mean of the gradients of several batches, compiled for feeds of these shapes.

    count: the number of updates.
    """

    def __init__(
        self,
        session: WorkerSession,
        rates: Rates,
        fetch: Sequence[str],
        feeds: Arrays,
        reduction: Reduction,
        count: int = 1,
    ) -> None:
        self._session, self._rates, self._reduction = session, rates, reduction
        self._gradients = gradients_for(session, fetch, feeds, count)
        layout = self._gradients.first.executable.layout
        found = {each.name: each.table for each in layout if each.place == "gradients" and each.name in session.trained}
        rows = sorted(name for name, table in found.items() if table is not None)
        self._update = update_for(session, rates, sorted(found), rows)

    def __call__(self, state: WorkerState, batches: Sequence[Arrays]) -> Computed:
        """The outputs of the batches, stacked, and the gradients of the update. Each batch writes the states."""
        session = self._session
        gradient = self._gradients.on(session, batches[0])
        total, outs = GradientSum(), []
        for out in runs_of(state, session, gradient, batches, first=0):
            if not total.sums:
                require(state.memory, sum([nbytes_of(each) for each in out.gradients.values()]), "the sum of gradients")
            total.add(out.gradients, session.trained, state.xp)
            outs.append(kept(out))
        sums = total.reduced(self._reduction)
        updated = summed_update(state, session, self._rates, self._update, sums)
        out, seen = updated.out, stacked(state, outs)
        skipped = out.scaling and bool(out.scaling["skipped"])
        merged = replace(
            seen,
            gradients={name: _in_dtype_of(value, session.parameters[name]) for name, value in sums.items()},
            parameters=out.parameters,
            optimizer_state=out.optimizer_state,
            states={} if skipped else {name: value.copy() for name, value in outs[-1].states.items()},
            scaling=out.scaling,
            rates=out.rates,
            densified=(*seen.densified, *out.densified),
        )
        fresh = self._gradients.fresh or self._update.fresh
        return Computed(Prepared(gradient.executable, fresh), merged, updated.values, batches[0])


def _in_dtype_of(gradient: Any, parameter: Any) -> Any:
    if isinstance(gradient, RowArray):
        return RowArray(gradient.rows, _in_dtype_of(gradient.values, parameter), gradient.shape)
    return gradient.astype(parameter.dtype, copy=False)


def _stack(state: WorkerState, values: Sequence[Any]) -> Any:
    """The values of several batches as one array. Raises ExecutionError if their shapes differ."""
    shapes = {value.shape for value in values}
    if len(shapes) > 1:
        raise ExecutionError(f"values of several batches have different shapes: {sorted(shapes)}", "execution_failed")
    if isinstance(values[0], np.ndarray):
        return np.stack(values)
    return state.xp.stack(values)
