"""Handlers that compute with a session: steps, gradients, updates, evaluations.

Every handler computes first, and replaces the session's values at its end in one go. A call that fails, is stopped, or
runs out of memory does not change the session; of several batches in one call, those before the failure stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.compiler.compile import Outputs
from core.ir.errors import ExecutionError, ProgramError
from core.optim.rates import Rates
from core.runtime.sparse_rows import RowArray
from service.worker.batches import batches_of, steps_of_batches
from service.worker.computed import (
    AccumulatedStep,
    Computed,
    draw_of,
    gradients_for,
    kept,
    later_step_for,
    one_step,
    runs_of,
    stacked,
    step_for,
    streamed_step_for,
    summed_update,
    update_for,
)
from service.worker.finite import judged
from service.worker.given import FLAWED
from service.worker.given_gradients import given_gradients
from service.worker.gradient_sum import GradientSum, nbytes_of
from service.worker.last_step import last_step
from service.worker.memory import require
from service.worker.roomy import Roomy, step_for_call
from service.worker.running import answer_of, run, streamed_gradients, times_of
from service.worker.session import Arrays, WorkerSession, session_of
from service.worker.state import Answer, WorkerState
from service.worker.step_kinds import ForwardStep
from service.worker.warnings import zero_warnings

__all__ = ["discard", "evaluate", "gradients", "step", "update"]


def step(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Forward, backward and update. tensors: the feeds, and the cotangents ``target_gradients/<i>``.

    args: id, seq, fetch, returned, require_finite, profile?, learning_rate?, batches?, accumulate?, reduction?,
    stream?.
    With `stream` the returned gradients are also sent during the step, and `ready_at` of the result has their order.
    """
    session = session_of(state, args)
    rates = session.rates_for(args.get("learning_rate"))
    if args.get("batches") is not None or args.get("accumulate") is not None:
        if args.get("profile"):
            raise ProgramError("a profile is of one step on one batch", "bad_query")
        if args.get("batches") is not None:
            return steps_of_batches(state, session, rates, args, session.feeds(tensors, args))
        return _accumulated(state, session, rates, args, tensors)
    again = session.last_step
    if args.get("stream") or again is None or not again.serves(session.version, rates, args, tensors):
        return _first_step(state, session, rates, args, tensors)
    out = again.run(state, session.seed, session.steps)
    result, arrays = answer_of(state, again.compiled, out, args["returned"], args["require_finite"])
    arrays = {name: state.to_host(value) for name, value in arrays.items()}  # the transfer may fail: before any change
    result |= _about_step(session, rates, out, result)

    session.adopt(out)
    session.count_update(args["seq"])
    again.keep(session.version)
    return result | session.about(), arrays


def _first_step(
    state: WorkerState, session: WorkerSession, rates: Rates, args: dict[str, Any], tensors: dict[str, np.ndarray]
) -> Answer:
    """A step that does not reuse the last one. Afterwards, if both were equal, it is bound to the session's arrays."""
    feeds, times = session.feeds(tensors, args), times_of(args)
    chosen = streamed_step_for if args.get("stream") else later_step_for if args.get("profile") else step_for
    compiled = chosen(session, rates, args["fetch"], feeds)
    streamed = streamed_gradients(compiled, args) if args.get("stream") else []
    sent: dict[str, int | None] = {}
    done = one_step(state, session, rates, compiled, feeds, times, streamed, sent)
    result, arrays = _answered(state, session, rates, args, done, times)
    if args.get("stream"):
        result["ready_at"] = sent
    before, version, fetch = session.last_step, session.version, args["fetch"]
    again = last_step(before, version, rates, compiled, fetch, done.values, done.out, state.memory)
    _adopt(state, session, args, done, arrays)
    session.remember(again)
    return result | session.about(), arrays


def _accumulated(
    state: WorkerState, session: WorkerSession, rates: Rates, args: dict[str, Any], tensors: dict[str, np.ndarray]
) -> Answer:
    """One update with the gradients of `accumulate` batches."""
    batches = batches_of(session, session.feeds(tensors, args), args["accumulate"])
    done = AccumulatedStep(session, rates, args["fetch"], batches[0], args["reduction"])(state, batches)
    result, arrays = _answered(state, session, rates, args, done)
    _adopt(state, session, args, done, arrays)
    return result | session.about(), arrays


def _answered(
    state: WorkerState, session: WorkerSession, rates: Rates, args: dict[str, Any], done: Computed, times: Any = None
) -> Answer:
    result, arrays = answer_of(state, done.compiled, done.out, args["returned"], args["require_finite"], times=times)
    arrays = {name: state.to_host(value) for name, value in arrays.items()}  # the transfer may fail: before any change
    return result | _about_step(session, rates, done.out, result), arrays


def _adopt(state: WorkerState, session: WorkerSession, args: dict[str, Any], done: Computed, arrays: Arrays) -> None:
    session.adopt_rows(done.out, done.values, arrays, state.xp)
    session.count_update(args["seq"])
    if not args.get("stream"):  # a stream needs no code for these shapes
        session.ran_on(done.feeds, done.compiled.executable)


def _about_step(session: WorkerSession, rates: Rates, out: Outputs, result: Mapping[str, Any]) -> dict[str, Any]:
    """The learning rate of a step, and the warnings about its gradients."""
    used = {name: value.item() for name, value in out.rates.items()}
    return {"applied": 1, "learning_rate": rates.shown(used)} | _warned(session, out, result)


def _warned(session: WorkerSession, out: Outputs, result: Mapping[str, Any]) -> dict[str, Any]:
    norms = result.get("gradient_norms", {})
    is_first = session.steps == 0
    found = zero_warnings(out, norms, is_first) if is_first or norms else []
    return {"warnings": found} if found else {}


def gradients(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Gradients at the present parameters.

    args: id, fetch, returned, stream, compile?, profile?, accumulate?, batches?, seq?.
    tensors: the feeds and cotangents. Random ops draw the same values as in the next step. With `accumulate` the
    gradients are added to those of the session, its states are written, and random ops draw new values in each call.
    Without, nothing changes.
    """
    session = session_of(state, args)
    feeds = session.feeds(tensors, args)
    if args.get("accumulate"):
        return _added(state, session, args, feeds)
    kind, streams = session.gradient_step(args["fetch"], feeds), bool(args["stream"])
    is_roomy = args.get("compile") == "dynamic" and not streams
    roomy = Roomy(session.cached, kind, feeds).prepared() if is_roomy else None
    compiled = roomy or session.cached.step(kind, feeds, repeated=True, streamed=streams)
    values = session.values(state, compiled.executable, feeds)
    streamed = streamed_gradients(compiled, args)
    times = times_of(args)
    ready = session.cached.timed(compiled) if times is not None else compiled
    out = run(state, ready.executable, values, session.seed, session.steps, streamed, times)
    result, arrays = answer_of(state, compiled, out, args["returned"], streamed=streamed, times=times)
    return result | _warned(session, out, result) | session.about(), arrays


def _added(state: WorkerState, session: WorkerSession, args: dict[str, Any], feeds: Arrays) -> Answer:
    """Gradients of one batch, or of `batches` of them, added to those of the session."""
    count, times = args.get("batches"), times_of(args)
    if count is not None and (args["returned"] not in ("none", []) or times is not None):
        raise ProgramError("with several batches an accumulating call returns no gradients and no profile", "bad_query")
    batches = [feeds] if count is None else batches_of(session, feeds, count)
    compiled = gradients_for(session, args["fetch"], batches[0]).first
    if times is not None:
        values = session.values(state, compiled.executable, feeds)
        ready, draw = session.cached.timed(compiled), draw_of(session.steps, session.gradients.count)
        runs = iter([run(state, ready.executable, values, session.seed, draw, times=times)])
    else:
        runs = runs_of(state, session, compiled, batches, first=session.gradients.count)
    if count is not None:
        require(state.memory, sum(map(nbytes_of, session.gradients.sums.values())), "a copy of the sum of gradients")
    # in place for one batch, where nothing can fail between the addition and the end of the call
    total = session.gradients if count is None else session.gradients.copy()
    outs: list[Outputs] = []
    warned: dict[str, Any] = {}
    written: Arrays = {}
    finite = True
    for out in runs:
        if count is None:
            result, arrays = answer_of(state, compiled, out, args["returned"], times=times)
            arrays = {name: state.to_host(value) for name, value in arrays.items()}
            warned, finite = _warned(session, out, result), result["finite"]
        else:
            is_finite, _ = judged(state, out, with_norms=False, require_finite=False)
            warned, finite = warned or _warned(session, out, {}), finite and is_finite
        written = {name: value.copy() for name, value in out.states.items()}
        outs.append(out if count is None else kept(out))
        if not total.sums:
            require(state.memory, sum([nbytes_of(each) for each in out.gradients.values()]), "the sum of gradients")
        total.add(out.gradients, session.trained, state.xp)
    if count is not None:
        result, arrays = answer_of(state, compiled, stacked(state, outs), "none")

    session.gradients = total
    session.ran_on(batches[0], compiled.executable)
    session.states |= written
    session.version += bool(written)
    session.seq = args["seq"]
    return result | warned | {"finite": finite} | session.about(), arrays


def update(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Apply the optimiser to gradients. args: id, seq, tables, require_finite, learning_rate?, reduction?.

    tensors: ``grad/<parameter>`` or the name. If there is a tensor ``rows/<parameter>``, the gradient is sparse: values
    of these rows, in any order; the values of a repeated row are added. ``args["tables"]`` may hold the shapes that the
    client expects the tables to have. Without tensors the gradients that the session has added up are applied.
    Parameters without a gradient do not change, and neither does their optimiser state.
    """
    session = session_of(state, args)
    rates = session.rates_for(args.get("learning_rate"))
    is_given = bool(tensors or args.get(FLAWED))
    done = _with_given(state, session, rates, args, tensors) if is_given else _with_sums(state, session, rates, args)
    used = {name: value.item() for name, value in done.out.rates.items()}
    scaling = {name: state.to_host(value).item() for name, value in done.out.scaling.items()}

    session.adopt_rows(done.out, done.values, {}, state.xp)
    session.count_update(args["seq"])
    if not tensors:
        session.gradients = GradientSum()
    densified = [each.as_document() for each in done.out.densified]
    result = {"densified": densified, "compiled": done.compiled.fresh, "learning_rate": rates.shown(used), **scaling}
    return {**session.about(), **result}, {}


def _with_sums(state: WorkerState, session: WorkerSession, rates: Rates, args: dict[str, Any]) -> Computed:
    """The update with the gradients that the session has added up."""
    total = session.gradients
    if not total.sums:
        raise ProgramError(
            "an update needs at least one gradient: none is given, and none is accumulated", "feed_missing"
        )
    sums = total.reduced(args.get("reduction", "sum"))
    for name, value in sums.items():
        values = value.values if isinstance(value, RowArray) else value
        if args["require_finite"] and not bool(state.xp.isfinite(values).all()):
            raise ExecutionError(f"the gradient of {name!r} is not finite", "not_finite")
    rows = sorted(name for name, value in sums.items() if isinstance(value, RowArray))
    return summed_update(state, session, rates, update_for(session, rates, sorted(sums), rows), sums)


def _with_given(
    state: WorkerState, session: WorkerSession, rates: Rates, args: dict[str, Any], tensors: dict[str, np.ndarray]
) -> Computed:
    """The update with gradients of the client."""
    given, rows = given_gradients(session.cached.program, tensors, args)
    compiled = session.cached.update(sorted(given), rates.optimizer, session.clip, sorted(rows))
    by_name = {f"{name}@GRAD": value for name, value in given.items()}
    by_name |= {f"{name}@GRAD@ROWS": value for name, value in rows.items()}
    ready = session.values(state, compiled.executable, {**by_name, **rates.inputs})
    return Computed(compiled, run(state, compiled.executable, ready, session.seed, session.steps), ready)


def discard(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Drop the gradients that the session has added up."""
    session = session_of(state, args)
    session.gradients = GradientSum()
    return session.about(), {}


def evaluate(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Compute `fetch` without gradients; changes nothing.

    args: id, fetch, for_test?, compile?, profile?; tensors: feeds.
    Random ops draw the same values as in the next step or accumulating call.
    """
    session = session_of(state, args)
    feeds = session.feeds(tensors, args, args["fetch"])
    cached = session.cached.for_test() if args.get("for_test") else session.cached
    compiled = step_for_call(
        cached, ForwardStep(tuple(args["fetch"]), adapts=False), feeds, args.get("compile", "auto")
    )
    values = session.values(state, compiled.executable, feeds)
    times = times_of(args)
    ready = cached.timed(compiled) if times is not None else compiled
    draw = draw_of(session.steps, session.gradients.count)
    out = run(state, ready.executable, values, session.seed, draw, times=times)
    result, arrays = answer_of(state, compiled, out, "none", times=times)
    return result | session.about(), arrays
