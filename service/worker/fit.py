"""Training on a stored dataset: many steps in one call, whose batches never leave the machine.

A call trains the batches at some positions of a `Sampling`. Batches of equal size in one epoch are gathered in blocks;
the first steps run as single steps do, and as soon as a step is bound to the session's arrays the others cost little
more than their computation. Each step is adopted before the next one starts: if one fails, or the call must stop, the
earlier ones stay and the answer gives their number.

The arguments `data` describe the batches: key, rows, columns {feed: [column, ...]}, batch_size, drop_last, shuffle,
seed, holdout; see `Sampling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from core.ir.errors import CoreError
from service.sampling import Sampling
from service.worker.batches import Batches
from service.worker.columns import Feed, feed_of, stored
from service.worker.computed import Steps, one_step, steps_for
from service.worker.curves import Curves, scalar
from service.worker.last_step import last_step
from service.worker.programs import Prepared
from service.worker.running import message_of, run, runs
from service.worker.session import WorkerSession, session_of
from service.worker.state import Answer, WorkerState
from service.worker.step_kinds import ForwardStep
from service.worker.warnings import zero_warnings

__all__ = ["Source", "evaluate_on", "fit", "sampling_of"]


BLOCK_BYTES = 2**20
"""Bytes of feeds that are gathered at a time, which fit into the cache; at least one batch."""

MESSAGES = 20


def fit(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Train `batches` steps, on the batches from position `start` on.

    args: id, seq, data, start, batches, metrics: variables with one element to record, require_finite.
    only: number of steps that were taken, when a call that stopped early is repeated.
    The answer has the values of each step as `curves`, and `applied`, the number of steps.
    """
    session = session_of(state, args)
    source = Source(state, session, args["data"], args["metrics"])
    count = min(args["batches"], args.get("only", args["batches"]))
    sampling, position, end = source.sampling, args["start"], args["start"] + count
    sizes = dict.fromkeys(sampling.size(at) for at in _turns(sampling, position, end))
    metrics, rates = args["metrics"], session.rates
    prepared = {size: steps_for(session, rates, metrics, source.example(size), count) for size in sizes}
    steps = _Steps(state, session, args, Curves(state, session.rates, args["require_finite"]))
    stopped = None
    try:
        while position < end:
            block = source.block(position, end)
            steps.run(block, prepared[sampling.size(position)])
            position += len(block)
    except CoreError as error:
        if steps.curves.done == 0:
            raise
        stopped = {"code": error.code, "detail": error.message, "batch": steps.curves.done}
    applied = steps.curves.done
    samples = sum(sampling.size(at) for at in range(args["start"], args["start"] + applied))
    return {
        "applied": applied,
        "stopped": stopped,
        "samples": samples,
        "curves": steps.curves.columns(),
        "finite": steps.curves.finite,
        "compiled": any(each.fresh for each in prepared.values()),
        "messages": steps.messages,
        "warnings": steps.warnings,
        **session.about(),
    }, {}


def evaluate_on(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Values of `metrics` on batches of the rows kept for validation, or of a whole dataset; changes nothing.

    args: id, data, start: the first batch, batches, metrics.
    The program runs as for a test: dropout passes its input, and normalisation uses its running statistics.
    The answer has for each batch its number of rows and its values, so that their mean does not depend on the calls.
    """
    session = session_of(state, args)
    source = Source(state, session, args["data"], args["metrics"])
    sampling = source.sampling
    if sampling.holdout:
        rows = stored(state).validation(state, sampling)
        total = sampling.holdout
    else:
        rows, total = slice(0, sampling.rows), sampling.rows
    cached = session.cached.for_test()
    size, values, counts = sampling.batch_size, [], []
    last = total // size if source.declares_rows else -(-total // size)
    numbers = range(args["start"], min(args["start"] + args["batches"], last))
    ends = (numbers[0], numbers[-1]) if numbers else ()
    sizes = dict.fromkeys(min(size, total - number * size) for number in ends)
    prepared = {n: cached.step(ForwardStep(tuple(args["metrics"])), source.example(n), repeated=True) for n in sizes}
    for number in numbers:
        state.stop.check()
        count = min(size, total - number * size)
        feeds = source.gathered(_part(rows, number * size, count), 1, count)[0]
        compiled = prepared[count]
        given = session.values(state, compiled.executable, feeds)
        out = run(state, compiled.executable, given, session.seed, session.steps)
        values.append([scalar(state, out.fetched[name]) for name in args["metrics"]])
        counts.append(count)
    return {"values": values, "rows": counts, "batches": last, **session.about()}, {}


class Source:
    """The batches of one dataset as feeds of one session."""

    def __init__(
        self, state: WorkerState, session: WorkerSession, data: Mapping[str, Any], metrics: Sequence[str] = ()
    ) -> None:
        """Raises ExecutionError (dataset_unavailable, storage_full, storage_unavailable); the first one also if the
        file lacks a column."""
        held = stored(state).columns(state, data["key"])
        types = {v.name: v.type for v in session.cached.program.feeds}
        self.sampling = sampling_of(data)
        self.feeds: list[Feed] = [
            feed_of(name, types[name], [held[column] for column in columns])
            for name, columns in data["columns"].items()
        ]
        self.declares_rows = any(types[name].shape[0] != -1 for name in data["columns"])
        """Whether a feed has only batches of one size."""
        self._state = state
        self._epoch: tuple[int, Any] = (-1, None)

    def example(self, size: int) -> dict[str, np.ndarray]:
        """Feeds of the shapes of a batch with `size` rows."""
        return {each.name: np.broadcast_to(np.zeros((), each.dtype), (size, *each.shape)) for each in self.feeds}

    def gathered(self, rows: Any, count: int, size: int) -> Batches:
        """`rows` as `count` batches."""
        return Batches({each.name: each.batches(rows, count, size) for each in self.feeds}, {}, count)

    def block(self, position: int, end: int) -> Batches:
        """The batches from `position` on, up to `end`, that have one size and fit into a block."""
        sampling = self.sampling
        size = sampling.size(position)
        per_batch = size * sum(each.row_bytes for each in self.feeds)
        most = max(1, BLOCK_BYTES // max(1, per_batch))
        count = sampling.run(position, min(most, end - position))
        number, index = divmod(position, sampling.batches)
        if self._epoch[0] != number:
            self._epoch = number, stored(self._state).epoch(self._state, sampling, number)
        rows = _part(self._epoch[1], index * sampling.batch_size, count * size)
        return self.gathered(rows, count, size)


class _Steps:
    """Runs the steps of a call, block after block."""

    def __init__(self, state: WorkerState, session: WorkerSession, args: Mapping[str, Any], curves: Curves) -> None:
        self.curves = curves
        self.messages: list[dict[str, Any]] = []
        self.warnings: list[dict[str, Any]] = []
        self._state, self._session = state, session
        self._seq, self._fetch = args["seq"], args["metrics"]
        self._args = {"fetch": self._fetch}

    def run(self, block: Batches, prepared: Steps) -> None:
        """One step on each batch of the block."""
        session = self._session
        for i in range(len(block)):
            batch, again = block[i], session.last_step
            if again is not None and again.serves(session.version, session.rates, self._args, batch):
                self._bound(block, i)
                return
            self._single(batch, prepared.on(session, batch))

    def _single(self, batch: dict[str, Any], compiled: Prepared) -> None:
        """A step that is not bound. Afterwards it is bound to the session's arrays if it repeats the last one."""
        session, state, rates = self._session, self._state, self._session.rates
        done = one_step(state, session, rates, compiled, batch)
        if session.steps == 0:
            self.warnings += zero_warnings(done.out, {}, is_first=True)
        self.curves.add(done.out)
        self._say(done.out)
        before, version, memory = session.last_step, session.version, self._state.memory
        again = last_step(before, version, rates, done.compiled, self._fetch, done.values, done.out, memory)
        session.adopt_rows(done.out, done.values, {}, state.xp)
        session.count_update(self._seq)
        session.remember(again)
        session.ran_on(batch, done.compiled.executable)

    def _bound(self, block: Batches, start: int) -> None:
        """Steps from batch `start` on, which is bound already, on arrays that stay bound."""
        session, state, again = self._session, self._state, self._session.last_step
        assert again is not None and again.bound is not None, "serves was true"
        bound, out, before = again.bound, None, session.steps
        series = bound.series(block.split)
        found = bound.steps(runs(state, len(block) - start), session.seed, before, lambda i: series(start + i))
        steps = before
        try:
            with closing(found):
                for new in found:
                    self.curves.add(new)
                    if new.messages:
                        self._say(new)
                    out, steps = new, steps + 1
        finally:
            bound.drop_feeds()
            if out is not None:
                session.adopt(out)
                session.count_update(self._seq, steps - before)
                again.version = session.version

    def _say(self, out: Any) -> None:
        room = MESSAGES - len(self.messages)
        self.messages += [message_of(each) for each in out.messages[:room]]


def sampling_of(data: Mapping[str, Any]) -> Sampling:
    """The batches that `data` describe."""
    return Sampling(data["rows"], data["batch_size"], data["drop_last"], data["shuffle"], data["seed"], data["holdout"])


def _turns(sampling: Sampling, position: int, end: int) -> list[int]:
    """Positions whose batches have all the sizes that occur from `position` to `end`."""
    last = position - position % sampling.batches + sampling.batches - 1  # of this epoch: it may be smaller
    return [position, *(at for at in (last, last + 1) if position < at < end)]


def _part(rows: Any, start: int, count: int) -> Any:
    if isinstance(rows, slice):
        return slice(rows.start + start, rows.start + start + count)
    return rows[start : start + count]
