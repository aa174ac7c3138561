"""Several training steps in one call: the feeds have a leading axis of batches, and the answer has one, too.

The steps run in one loop in the worker. The first ones run as single steps do; as soon as a step is bound to the
session's arrays, the others cost little more than their computation. Each step is adopted before the next one starts:
if one fails or the deadline passes, the earlier ones stay, and the answer gives their number and the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from core.compiler.compile import Outputs
from core.ir import TensorType
from core.ir.errors import CoreError, ExecutionError, ProgramError
from core.optim.rates import Rates
from core.runtime.bound_step import BoundStep
from core.runtime.sparse_rows import RowArray
from service.worker.computed import AccumulatedStep, Computed, one_step, steps_for
from service.worker.finite import judged, with_global
from service.worker.last_step import last_step
from service.worker.memory import require
from service.worker.programs import Prepared
from service.worker.running import limits_of, message_of, runs, wanted
from service.worker.session import Arrays, WorkerSession
from service.worker.state import WorkerState
from service.worker.warnings import zero_warnings

if TYPE_CHECKING:
    from core.device.leaving import Leaving

__all__ = ["Batches", "batches_of", "steps_of_batches"]


@dataclass(frozen=True, slots=True)
class Batches(Sequence[Arrays]):
    """The feeds of several batches. split: arrays with a leading axis of batches; shared: equal in all batches."""

    split: Arrays
    shared: Arrays
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: Any) -> Any:
        """The feeds of batch `i`. Raises IndexError, which ends a loop even if no feed has an axis of batches."""
        if not 0 <= i < self.size:
            raise IndexError(i)
        return {**self.shared, **{name: value[i, ...] for name, value in self.split.items()}}


def batches_of(session: WorkerSession, feeds: Arrays, count: int, axes: int = 1) -> Batches:
    """The feeds of each of `count` batches.

    A feed with one axis more than the program declares holds one value for each batch; a feed of the declared rank is
    the same in all batches. axes: the most leading axes that a feed may have in addition to the declared ones.
    Raises ProgramError (feed_shape) for a leading axis of another size.
    """
    types = {v.name: v.type for v in session.cached.program.feeds}
    for name, variable in session.cotangents().items():
        type = session.cached.program.block.types[variable]
        assert isinstance(type, TensorType), "targets are arrays"
        types[name] = type
    split, shared = {}, {}
    for name, value in feeds.items():
        more = value.ndim - types[name].rank
        if 0 < more <= axes:
            if value.shape[0] != count:
                raise ProgramError(
                    f"{name!r} holds {value.shape[0]} batches along its first axis, but the call has {count}",
                    "feed_shape",
                )
            split[name] = value
        else:
            shared[name] = value
    return Batches(split, shared, count)


def steps_of_batches(
    state: WorkerState, session: WorkerSession, rates: Rates, args: Mapping[str, Any], feeds: Arrays
) -> tuple[dict[str, Any], Arrays]:
    """Run one step on each batch. args: of the handler `step`, with `batches`, and with `only` to run fewer of them."""
    count, parts = args["batches"], args.get("accumulate")
    batches = batches_of(session, feeds, count, axes=1 if parts is None else 2)
    if args.get("only") is not None:
        batches = replace(batches, size=args["only"])
    answers = _Answers(state, session, args)
    compute: Callable[[Arrays], Computed]
    if parts is None:
        steps = steps_for(session, rates, args["fetch"], batches[0], len(batches))
        compute = lambda batch: one_step(state, session, rates, steps.on(session, batch), batch)
    else:
        micro = batches_of(session, batches[0], parts)
        accumulated = AccumulatedStep(session, rates, args["fetch"], micro[0], args["reduction"], len(batches))
        compute = lambda batch: accumulated(state, batches_of(session, batch, parts))

    stopped = None
    try:
        for i in range(len(batches)):
            batch, again = batches[i], session.last_step
            if parts is None and again is not None and again.serves(session.version, rates, args, batch):
                _run_bound(state, session, args, batches, i, answers)
                break
            _run_one(state, session, rates, args, compute, batch, answers, binds=parts is None)
    except CoreError as error:
        if answers.done == 0:
            raise
        place = asdict(error.location) if error.location is not None else None
        stopped = {"code": error.code, "detail": error.message, "location": place, "batch": answers.done}
    result, arrays = answers.collected(rates)
    return {**result, "stopped": stopped, **session.about()}, arrays


def _run_one(
    state: WorkerState,
    session: WorkerSession,
    rates: Rates,
    args: Mapping[str, Any],
    compute: Callable[[Arrays], Computed],
    batch: Arrays,
    answers: _Answers,
    *,
    binds: bool,
) -> None:
    """One step that does not reuse the last one. Afterwards it is bound to the session's arrays if both were equal."""
    done = compute(batch)
    answers.add(done.out, done.compiled)
    again = None
    if binds:
        fetch, version = args["fetch"], session.version
        again = last_step(session.last_step, version, rates, done.compiled, fetch, done.values, done.out, state.memory)
    session.adopt_rows(done.out, done.values, {}, state.xp)
    session.count_update(args["seq"])
    session.remember(again)
    session.ran_on(done.feeds, done.compiled.executable)


def _run_bound(
    state: WorkerState,
    session: WorkerSession,
    args: Mapping[str, Any],
    batches: Batches,
    start: int,
    answers: _Answers,
) -> None:
    """Steps from batch `start` on, which is bound already, on arrays that stay bound."""
    again = session.last_step
    assert again is not None and again.bound is not None, "serves was true"
    bound, out, before = again.bound, None, session.steps
    series = bound.series(batches.split)
    found = bound.steps(runs(state, len(batches) - start), session.seed, before, lambda i: series(start + i))
    steps = before
    only_values = args["returned"] == "none"
    try:
        with closing(found):
            for new in found:
                finite = bound.has_finite_gradients() if only_values else None
                answers.add(new, again.compiled, finite, None if isinstance(bound, BoundStep) else bound.send)
                out, steps = new, steps + 1
    finally:
        bound.drop_feeds()
        if out is not None:
            session.adopt(out)
            session.count_update(args["seq"], steps - before)
            again.version = session.version


class _Answers:
    """The values of all steps, copied out of their buffers, and their JSON members."""

    def __init__(self, state: WorkerState, session: WorkerSession, args: Mapping[str, Any]) -> None:
        self.done = 0
        self._state, self._args, self._count = state, args, args["batches"]
        self._is_first = session.steps == 0
        self._warnings: list[dict[str, Any]] = []
        self._arrays: Arrays = {}
        self._finite, self._fresh = True, False
        self._norms: list[dict[str, float | None]] = []
        self._compiled: Prepared | None = None
        self._scaling: dict[str, list[Any]] = {}
        self._rates: dict[str, list[float]] = {}
        self._messages: list[dict[str, Any]] = []
        self._unsaid = 0
        self._last = Outputs()
        self._leaving: tuple[int, Leaving] | None = None

    def add(
        self,
        out: Outputs,
        compiled: Prepared,
        has_finite_gradients: bool | None = None,
        send: Callable[[Mapping[str, Any]], Leaving] | None = None,
    ) -> None:
        """Add the outputs of one step. Raises ExecutionError or ProgramError, before it changes anything visible.

        has_finite_gradients: if that is known; only for steps that return no gradients and no norms.
        send: begins to copy arrays from a GPU, which ends while the next step runs.
        """
        returned, require_finite = self._args["returned"], self._args["require_finite"]
        norms: dict[str, float] = {}
        if send is not None and has_finite_gradients is not None and not require_finite:
            finite = has_finite_gradients  # the values are judged when they have come
        else:
            finite, norms = judged(
                self._state,
                out,
                with_norms=returned != "none",
                require_finite=require_finite,
                has_finite_gradients=has_finite_gradients,
                executable=compiled.executable,
            )
        sent: Arrays = {}
        put = self._put if send is None else partial(self._put, sent=sent)
        if out.loss is not None:
            put("loss", out.loss)
        for name, value in out.fetched.items():
            put(f"fetch/{name}", value)
        for name, value in out.recorded.items():
            put(f"recorded/{name}", value)
        for name in wanted(returned, out.gradients, out.missing):
            grad = out.gradients[name]
            put(f"grad/{name}", grad.whole(self._state.xp) if isinstance(grad, RowArray) else grad)
        if send is not None:
            leaving = send(sent)
            self._arrived()
            self._leaving = self.done, leaving
        if returned != "none" or (self._is_first and self.done == 0):
            self._warnings = self._warnings or zero_warnings(out, norms, self._is_first and self.done == 0)
        if returned != "none":
            self._norms.append(with_global(norms))
        for name, value in out.scaling.items():
            self._scaling.setdefault(name, []).append(self._state.to_host(value).item())
        for name, value in out.rates.items():
            self._rates.setdefault(name, []).append(self._state.to_host(value).item())
        if out.messages:
            room = limits_of(self._state).messages - len(self._messages)
            self._messages += [message_of(each) for each in out.messages[:room]]
            self._unsaid += max(0, len(out.messages) - room)
        self._unsaid += out.unsaid
        self._compiled = compiled
        self._finite, self._fresh, self._last = self._finite and finite, self._fresh or compiled.fresh, out
        self.done += 1

    def _arrived(self) -> None:
        """Take the arrays of the last step that was sent."""
        leaving, self._leaving = self._leaving, None
        if leaving is None:
            return
        number, parts = leaving
        for name, value in parts.arrays().items():
            self._arrays[name][number] = value
            if name == "loss" or name.startswith("fetch/"):
                self._finite = self._finite and (value.dtype.kind in "biu" or bool(np.isfinite(value).all()))

    def _put(self, name: str, value: Any, sent: Arrays | None = None) -> None:
        """Store a value of this step, or add it to those to be sent."""
        stack = self._arrays.get(name)
        if stack is None:
            most = self._state.settings["tensor_bytes"]
            if self._count * value.nbytes > most:
                text = f"{name} of {self._count} batches has {self._count * value.nbytes} bytes, more than {most}"
                raise ExecutionError(text, "too_large")
            # twice: the answer is copied to shared memory
            require(self._state.host_memory, 2 * self._count * value.nbytes, f"the answer with {name} of all batches")
            stack = self._arrays[name] = np.empty((self._count, *value.shape), value.dtype)
        elif stack.shape[1:] != value.shape:
            raise ExecutionError(
                f"{name} has the shape {list(value.shape)} in a batch, and {list(stack.shape[1:])} in earlier ones",
                "execution_failed",
            )
        if sent is None:
            stack[self.done] = self._state.to_host(value)
        else:
            sent[name] = value

    def collected(self, rates: Rates) -> tuple[dict[str, Any], Arrays]:
        """(JSON members, arrays) of the answer."""
        self._arrived()
        members: dict[str, Any] = {
            **self._scaling,
            "applied": self.done,
            "finite": self._finite,
            "missing": dict(self._last.missing),
            "compiled": self._fresh,
            "sparse": {},
            "densified": [each.as_document() for each in self._last.densified],
            "messages": self._messages,
            "messages_left_out": self._unsaid,
            "learning_rate": rates.shown(self._rates, self.done),
        }
        if self._norms and self._norms[0]:
            members["gradient_norms"] = {name: [each[name] for each in self._norms] for name in self._norms[0]}
        if self._warnings:
            members["warnings"] = self._warnings
        choice = None if self._compiled is None else self._compiled.executable.choice
        if choice is not None:
            members["memory"] = choice.as_document()
        return members, {name: stack[: self.done] for name, stack in self._arrays.items()}
