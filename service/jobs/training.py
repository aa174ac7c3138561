"""The loop of one job: calls of some steps each, and validations and checkpoints between them.

Every decision depends on numbers of steps alone, or is written to the store before it is acted on. A loop that another
process goes on with therefore takes the same steps, and gets the same numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import orjson

from service.engine import EngineError, QueueFull, RemoteError
from service.engine.line import Line, waiting_line
from service.engine.protocol import DeadlineExceeded, NoCapacity
from service.jobs.curves import joined, mean, packed
from service.jobs.job import Job, Progress, Spec, State
from service.jobs.sessions import Sessions
from service.jobs.store import AskedMeanwhile, Fenced, JobStore, Said, Turn
from service.jobs.validation import validated
from service.jobs.waiting import WAITS, Waiting
from service.problems import HttpProblem, from_exception, problem_body
from service.sessions.registry import Write
from service.sessions.session import Session
from service.store.errors import StorageError

__all__ = ["CHUNK_S", "LOST", "MOST_FAILURES", "Checkpointed", "Ended", "Training", "storage_is_away"]

log = logging.getLogger("backpass.jobs")

CHUNK_S = 0.25
"""Seconds of steps in one call. Other calls of the worker wait so long at most."""

FIRST_STEPS, MOST_STEPS = 4, 20_000
GROWTH = 4.0
MOST_FAILURES = 8
"""Failures one after the other that end a job. A call that was given up after the loss of its workers counts as two."""

MOST_FAILED_SAVES = 3
TOLD_S = 2.0
"""Seconds in a queue of the engine after which clients see that the job waits for a worker."""

SUSPENDED = "suspended"
GOES_ON = {
    "quota": "the compute seconds of this day (UTC) are used up; the job goes on when they return",
    SUSPENDED: "the tenant is suspended; the job goes on when that is lifted",
}
"""Reason why no job of a tenant may run -> what its readers see."""

LOST = "worker-lost"
"""The code of the problem, and the reason of the job."""

FORM: dict[str, Any] = {"as_file": False, "members": {}}
LATER = (QueueFull, NoCapacity, StorageError)
OF_CODES = {
    "not_finite": "numeric-error",
    "dataset_unavailable": "dataset-unavailable",
    "out_of_memory": "out-of-memory",
    "too_large": "out-of-memory",
}

Checkpointed = Callable[[Session, Job, int, Collection[int]], Awaitable[str]]
"""Makes a checkpoint of the session after a step of the job, which replaces those of other steps; returns its id."""


def storage_is_away(error: Exception) -> bool:
    """Whether the error is a full disk, or a database or a store of files that does not answer: it may pass."""
    return from_exception(error).code in ("storage-full", "storage-unavailable")


class Waits(Exception):
    """The job leaves its loop, and goes on later."""


class Ended(Exception):
    """The job leaves its loop for good."""

    def __init__(self, state: State, reason: str | None = None, error: Mapping[str, Any] | None = None) -> None:
        super().__init__(state)
        self.state, self.reason, self.error = state, reason, error


class Training:
    """One run of a job's loop."""

    def __init__(
        self,
        job: Job,
        jobs: JobStore,
        sessions: Sessions,
        checkpointed: Checkpointed,
        said: Callable[[Job], None],
        bar: Callable[[str], str | None],
        *,
        longest_call: float,
        chunk_s: float = CHUNK_S,
    ) -> None:
        """said: called after events were stored. longest_call: deadline of one call, in seconds.

        bar: why jobs of a tenant must wait, as a key of `GOES_ON`; None if they may run.
        """
        self._job, self._jobs, self._sessions, self._checkpointed = job, jobs, sessions, checkpointed
        self._said, self._bar, self._longest, self._chunk_s = said, bar, longest_call, chunk_s
        self._asked = job.asked
        self._steps = FIRST_STEPS
        self._failed_saves = 0
        self._waiting: Waiting | None = None
        self._line = Line()
        self._resumed = time.monotonic()
        left = None if job.spec.deadline_s is None else job.created + job.spec.deadline_s - time.time()
        self._end = None if left is None else time.monotonic() + min(left, job.spec.deadline_s or 0.0)

    @property
    def _spec(self) -> Spec:
        return self._job.spec

    @property
    def _at(self) -> Progress:
        return self._job.progress

    async def run(self) -> None:
        """Train until the job has ended or is paused. Raises Fenced when another process has taken it over, and
        EngineError or StorageError when the call can be made again later."""
        watching = asyncio.create_task(self._watch_queue())
        try:
            with waiting_line(self._line):
                while True:
                    await self._turn()
        except Waits:
            return
        except Ended as end:
            await self._finish(end)
        except LATER:
            raise
        except RemoteError as error:
            if error.kind in ("memory", "internal") or storage_is_away(error):
                raise
            await self._finish(_failed(OF_CODES.get(error.code, "execution-failed"), error))
        except HttpProblem as problem:
            if problem.retryable or problem.code == LOST:  # a call that was given up has not happened
                raise
            codes = {"gone": "session-lost", "not-found": "session-lost", "rolled-back": "session-lost"}
            codes |= {"sequence-conflict": "session-changed", "sequence-gap": "session-changed"}
            await self._finish(_failed(codes.get(problem.code, "internal"), problem))
        finally:
            watching.cancel()

    async def waits(self, waiting: Waiting | None) -> None:
        """Tell clients why the job waits from now on; None when it goes on. A wait keeps its beginning while its reason
        stays the same. Raises Fenced, StorageError."""
        before = self._waiting
        if waiting is not None and before is not None and waiting.reason == before.reason:
            if waiting.detail == before.detail:
                return
            waiting = replace(waiting, since=before.since)
        await self._jobs.note_waiting(self._job, waiting)
        self._waiting = waiting
        self._said(self._job)

    async def _watch_queue(self) -> None:
        """Tell clients of calls that wait long for a worker, until cancelled."""
        while True:
            await asyncio.sleep(TOLD_S)
            since = self._line.since
            is_told = self._waiting is not None and self._waiting.reason == "worker"
            if (since is not None and time.time() - since >= TOLD_S) == is_told:
                continue
            with contextlib.suppress(StorageError, Fenced):  # the loop finds a job that another process has
                await self.waits(None if since is None else Waiting("worker", WAITS["worker"], since))

    async def look(self) -> bool:
        """Whether a client asks for an action, which the next `run` takes. Raises Fenced, StorageError."""
        self._asked = await self._jobs.asked(self._job)
        return self._asked is not None

    async def give_up(self, error: Exception) -> None:
        """End the job after too many failures of the same call."""
        reason = LOST if from_exception(error).code == LOST else "internal"
        if isinstance(error, RemoteError) and error.kind == "memory":
            reason = "out-of-memory"
        await self._finish(_failed(reason, error))

    async def _turn(self) -> None:
        spec, at = self._spec, self._at
        if due := self._due():
            await self._judge(due)
            return
        ends = at.stops or at.step >= spec.steps
        if at.step != at.saved_at and (self._is_best or self._checkpoint_is_due(ends)):
            try:
                await self._save(ends)
            except (EngineError, HttpProblem, StorageError):
                self._must_go_on()  # a canceled job does not wait for its checkpoint
                raise
            return
        if ends:
            raise Ended("succeeded", "early-stop" if at.stops else "completed")
        self._must_go_on()
        if self._asked == "pause":
            await self._wait("paused")
        elif (reason := self._bar(self._job.tenant)) is not None:
            await self._wait_barred(reason)
        else:
            await self._train()

    def _must_go_on(self) -> None:
        """Raises Ended for a job that was canceled, or whose deadline has passed."""
        if self._asked == "cancel":
            raise Ended("canceled", "requested")
        if self._end is not None and time.monotonic() >= self._end:
            raise Ended("canceled", "deadline")

    async def _between(self) -> None:
        """Between two calls of a validation. Raises Ended or Waits if the job must not wait for its end."""
        await self.look()
        self._must_go_on()
        if self._asked == "pause":
            await self._wait("paused")
        elif self._bar(self._job.tenant) == SUSPENDED:
            await self._wait_barred(SUSPENDED)

    async def _wait_barred(self, reason: str) -> None:
        await self._wait("queued", [("warning", {"detail": GOES_ON[reason]})])

    # Steps

    async def _train(self) -> None:
        """One call of some steps, and its place in the store."""
        spec, at, job = self._spec, self._at, self._job
        session = await self._sessions.find(job.tenant, job.session)
        if spec.opened and session.step > spec.base_step + at.step and session.seq > at.seq + 1:
            raise Ended("failed", "session-changed")
        count = self._count()
        args = {"data": spec.data, "start": at.step, "batches": count, "metrics": spec.metrics}
        args["require_finite"] = spec.require_finite
        write = Write("session.fit", args, {}, at.seq + 1, f"fit {job.id} {at.step}", form=FORM, steps=count)
        left = self._longest if self._end is None else max(0.001, min(self._longest, self._end - time.monotonic()))
        started = time.monotonic()
        try:
            answer, replayed = await self._sessions.write(session, write, left)
        except DeadlineExceeded:
            if self._end is not None and time.monotonic() >= self._end:
                raise Ended("canceled", "deadline") from None
            raise
        except HttpProblem as problem:
            kept = session.history.get(at.seq + 1)
            if problem.code != "sequence-conflict" or kept is None or kept.digest != write.digest:
                raise
            await self._adopt_unanswered(session)
            return
        found = orjson.loads(b"".join(bytes(part) for part in answer.parts))
        await self._take(found, time.monotonic() - started, replayed)

    def _count(self) -> int:
        """Steps of the next call: up to the next decision or checkpoint, and no longer than `chunk_s`."""
        spec, at = self._spec, self._at
        ends = [spec.steps]
        if spec.validation is not None or spec.early_stop is not None:
            ends.append(at.step - at.step % spec.every + spec.every)
        if spec.checkpoint_steps is not None:
            ends.append(at.step - at.step % spec.checkpoint_steps + spec.checkpoint_steps)
        return max(1, min(self._steps, min(ends) - at.step))

    async def _take(self, found: Mapping[str, Any], seconds: float, replayed: bool) -> None:
        """Store what a call has answered, and the new position."""
        job, at = self._job, deepcopy(self._at)
        applied, curves = found["applied"], found["curves"]
        first = at.step + 1
        at.seq, at.step, at.samples = found["seq"], at.step + applied, at.samples + found["samples"]
        timing = found.get("timing_ms", {})
        at.compute_s += timing.get("compute", 0.0) / 1e3
        at.last = {name: values[-1] for name, values in curves.items() if values}
        self._count_time(at)
        if not replayed and seconds > 0 and not found["compiled"]:
            at.rate = applied / seconds
            wanted = max(1.0, self._chunk_s * at.rate)
            self._steps = int(min(wanted, self._steps * GROWTH, MOST_STEPS)) or 1
        said: list[tuple[str, Mapping[str, Any]]] = [
            ("progress", {"step": at.step, "steps": job.spec.steps, "rate": at.rate, "metrics": at.last})
        ]
        said += [("warning", each) for each in found.get("warnings", ())]
        said += [("message", each) for each in found.get("messages", ())]
        await self._store(Turn(at, [("training", first, applied, packed(curves))], said))

    async def _adopt_unanswered(self, session: Session) -> None:
        """Go on behind a call that took effect, but whose answer is lost."""
        at = deepcopy(self._at)
        at.seq, at.step = session.seq, session.step - self._spec.base_step
        at.samples = self._spec.sampling.total(at.step)
        said = {"detail": f"the metrics of the steps {self._at.step + 1} to {at.step} are lost"}
        await self._store(Turn(at, said=[("warning", said)]))

    # Between steps

    def _due(self) -> list[int]:
        """The steps until now after which a judgement is due: each `every` steps, and the last one."""
        spec, at = self._spec, self._at
        due = list(range(at.summed_at - at.summed_at % spec.every + spec.every, at.step + 1, spec.every))
        if at.step >= spec.steps and at.step > max([at.summed_at, *due]):
            due.append(at.step)
        return due

    async def _judge(self, due: Sequence[int]) -> None:
        """The means of training metrics up to the steps `due`, the validation, and the early stop.

        With a validation or an early stop there is one such step.
        """
        spec, job, at = self._spec, self._job, deepcopy(self._at)
        rows = await self._jobs.curves(job.id, "training", at.summed_at + 1, at.step)
        steps, columns = joined(rows)
        said: list[tuple[str, Mapping[str, Any]]] = []
        means: dict[str, float | None] = {}
        for end in due:
            part = slice(*np.searchsorted(steps, (at.summed_at, end), "right"))
            means = {name: mean(values[part]) for name, values in columns.items()}
            said.append(("mean", {"step": end, "since": at.summed_at, "metrics": means}))
            at.summed_at = end
        found, curves = {_plain(name): value for name, value in means.items()}, []
        if spec.validation is not None:
            session = await self._sessions.find(job.tenant, job.session)
            at.validated, seconds = await validated(self._sessions, session, spec, self._longest, self._between)
            at.validated_at, at.compute_s = at.step, at.compute_s + seconds
            said.append(("validation", {"step": at.step, "metrics": at.validated}))
            curves = [("validation", at.step, 1, packed({name: [value] for name, value in at.validated.items()}))]
            found |= {f"validation/{name}": value for name, value in at.validated.items()}
        rule = spec.early_stop
        at.stops = rule is not None and at.judged.add(rule, found.get(rule.metric), at.step)
        self._count_time(at)
        await self._store(Turn(at, curves, said))

    @property
    def _is_best(self) -> bool:
        """Whether this step has the best judgement so far, which is to be saved."""
        return self._spec.checkpoint_best and self._at.judged.best_step == self._at.step

    def _checkpoint_is_due(self, ends: bool) -> bool:
        """Whether this step has a checkpoint whatever its judgement. ends: whether it is the last step."""
        spec, at = self._spec, self._at
        if spec.checkpoint_steps is not None and at.step % spec.checkpoint_steps == 0:
            return True
        running = at.running_s + time.monotonic() - self._resumed
        if spec.checkpoint_s is not None and running - at.saved_s >= spec.checkpoint_s:
            return True
        return ends and (spec.checkpoint_steps is not None or spec.checkpoint_s is not None)

    async def _save(self, ends: bool) -> None:
        job, at = self._job, deepcopy(self._at)
        before, regular, keep = _staying(at), self._checkpoint_is_due(ends), self._spec.checkpoint_keep
        if self._is_best:
            at.best_saved_at, at.best_alone = at.step, not regular
        if keep is not None:
            if regular:
                at.kept = [*at.kept, at.step][-keep:]
            at.best_alone = at.best_saved_at > 0 and at.best_saved_at not in at.kept
        replaces = before - _staying(at)
        session = await self._sessions.find(job.tenant, job.session)
        said: tuple[str, Mapping[str, Any]]
        try:
            said = "checkpoint", {"step": at.step, "id": await self._checkpointed(session, job, at.step, replaces)}
        except HttpProblem as problem:
            if problem.code != "quota-exceeded":
                raise
            at = deepcopy(self._at)
            said = "warning", {"detail": f"no checkpoint of step {at.step}: {problem.detail}"}
        self._count_time(at)
        at.saved_at, at.saved_s = at.step, at.running_s
        await self._store(Turn(at, said=[said]))

    # Storing

    def _count_time(self, at: Progress) -> None:
        now = time.monotonic()
        at.running_s += now - self._resumed
        self._resumed = now

    async def _store(self, turn: Turn) -> None:
        self._asked = await self._jobs.advance(self._job, turn)
        self._job.progress, self._job.state = turn.progress, turn.state or self._job.state
        self._waiting = None
        self._said(self._job)

    async def _wait(self, state: Literal["paused", "queued"], said: Said = ()) -> None:
        """Let the job wait in `state`: raises Waits, unless a client has asked for another action meanwhile."""
        await self._keep_session()  # a waiting job can be canceled without another turn
        at, resumed = deepcopy(self._at), self._resumed
        self._count_time(at)
        try:
            await self._store(Turn(at, said=said, state=state))
        except AskedMeanwhile as revoked:
            self._asked, self._resumed = revoked.asked, resumed
            return
        log.info("job %s: %s at step %d", self._job.id, state, at.step)
        raise Waits

    async def _keep_session(self) -> Exception | None:
        """Save the session: a journal of calls on the dataset could not be repeated when that has been deleted, which
        is allowed when the job has ended. Returns the error if the session exists, but cannot be saved now."""
        job = self._job
        try:
            session = await self._sessions.find(job.tenant, job.session)
            await self._sessions.save(session, self._longest)
        except (EngineError, StorageError) as error:
            failure: Exception = error
        except HttpProblem as problem:
            if not problem.retryable:
                return None  # the session was closed
            failure = problem
        except Exception:  # a defect here must not keep the job from its end
            log.exception("the session of job %s is not saved", job.id)
            return None
        else:
            return None
        log.info("the session of job %s is not saved: %s", job.id, failure)
        return failure

    async def _finish(self, end: Ended) -> None:
        failure = await self._keep_session()
        if failure is not None and end.state == "succeeded" and self._failed_saves < MOST_FAILED_SAVES:
            self._failed_saves += 1
            raise failure  # the runner tries again; a cancel does not wait for a worker
        at = deepcopy(self._at)
        self._count_time(at)
        await self._store(Turn(at, state=end.state, reason=end.reason, error=end.error))
        log.info("job %s: %s %s at step %d", self._job.id, end.state, end.reason or "", at.step)


def _failed(reason: str, error: Exception) -> Ended:
    problem = from_exception(error)
    if not isinstance(error, EngineError | HttpProblem):
        log.error("a job failed", exc_info=error)
    document = problem_body(problem, "", "")
    return Ended("failed", reason, {name: document[name] for name in ("type", "title", "code", "detail")})


def _staying(at: Progress) -> set[int]:
    """The steps of checkpoints that a later one may replace."""
    return {*at.kept, at.best_saved_at} if at.best_alone else {*at.kept}


def _plain(column: str) -> str:
    """The name of a training metric as clients write it."""
    return column.removeprefix("metric/")
