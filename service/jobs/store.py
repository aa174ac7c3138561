"""The rows of jobs, of their events and of their metrics.

A process that runs a job holds a lease on it. Every change by the runner names the epoch of the job, and is refused
when another process has taken the job over meanwhile.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, or_, select, update

from service.http.sse import KEPT, Event, Page
from service.jobs.curves import Row, unpacked
from service.jobs.job import ACTIVE, ALLOWED, ENDED, Action, Job, Progress, State, progress_of, text_of
from service.jobs.waiting import Waiting
from service.problems import HttpProblem
from service.store import tables
from service.store.labelled import labelled_page
from service.store.newest import Place
from service.store.store import Store

__all__ = ["LEASE_S", "AskedMeanwhile", "Fenced", "JobStore", "Said", "Turn", "session_in_use"]

LEASE_S = 30.0
"""Seconds after which another process may take over a job whose process is silent."""

jobs, events, metrics, sessions = tables.jobs, tables.job_events, tables.job_metrics, tables.sessions
Said = Sequence[tuple[str, Mapping[str, Any]]]
"""Events to add: (kind, data)."""
Check = Callable[[Job, Mapping[str, int]], None]
"""Refuses a call that would change the job, from the job and its position in the queue, as of `JobStore.positions`."""


class Fenced(Exception):
    """Another process runs the job now, or it was deleted."""


class AskedMeanwhile(Exception):
    """A client has asked for another action while the job was about to wait.

    asked: the action; None if it wants the job to go on.
    """

    def __init__(self, asked: str | None) -> None:
        super().__init__(f"asked: {asked}")
        self.asked = asked


WAITING: Mapping[State, Action | None] = {"paused": "pause", "queued": None}
"""States in which a job waits -> the action that its row must ask for when the job enters the state."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The changes of one turn of a job's loop, in one transaction.

    curves: rows of metrics as (kind, number of the first step, number of steps, bytes).
    """

    progress: Progress
    curves: Sequence[tuple[str, int, int, bytes]] = ()
    said: Said = ()
    state: State | None = None
    reason: str | None = None
    error: Mapping[str, Any] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


class JobStore:
    """All jobs. Methods for clients take the tenant and see its jobs alone. Raises StorageError."""

    def __init__(self, store: Store, owner: str) -> None:
        """owner: id of this process."""
        self._store, self.owner = store, owner

    # For clients

    async def add(self, job: Job, said: Said, check: Callable[[Connection], None] = lambda connection: None) -> None:
        """Store a new job, with its first events. Raises HttpProblem 409 while another job uses its session.

        check: refuses the job in its transaction, when it is stored.
        """
        of_session = and_(jobs.c.tenant == job.tenant, jobs.c.session == job.session)
        others = select(jobs.c.id, jobs.c.state).where(of_session, jobs.c.state.not_in(ENDED))

        def work(connection: Connection) -> None:
            other = connection.execute(others).first()
            if other is not None:  # the steps of one job would end the other with session-changed
                raise session_in_use(other.id, other.state)
            connection.execute(insert(jobs).values(job.row()))
            _say(connection, job.id, said)
            check(connection)

        await self._store.write(work)

    async def get(self, tenant: str, id: str) -> Job:
        """Raises HttpProblem 404."""
        query = select(jobs).where(jobs.c.tenant == tenant, jobs.c.id == id)
        row = await self._store.read(lambda connection: connection.execute(query).first())
        if row is None:
            raise HttpProblem("not-found", "there is no job with this id")
        return Job.of_row(row)

    async def exists(self, tenant: str, id: str) -> bool:
        query = select(jobs.c.id).where(jobs.c.tenant == tenant, jobs.c.id == id)
        return await self._store.read(lambda connection: connection.execute(query).first()) is not None

    async def page(
        self, tenant: str, after: str, size: int, state: str | None = None, labels: Sequence[str] = ()
    ) -> list[Job]:
        """Up to `size` jobs from the page token `after` on, the newest first; in one state or in any.

        labels: that they have, as of `has_labels`.
        """

        def work(connection: Connection) -> list[Job]:
            def read(after: str, size: int) -> list[Job]:
                query = Place.of(after).query(select(jobs).where(jobs.c.tenant == tenant), jobs).limit(size)
                if state is not None:
                    query = query.where(jobs.c.state == state)
                return [Job.of_row(row) for row in connection.execute(query)]

            return labelled_page(read, lambda each: each.spec.labels, after, size, labels)

        return await self._store.read(work)

    async def positions(self, found: Iterable[Job]) -> dict[str, int]:
        """The number of queued jobs before each of those in `found` that are queued, by priority and age."""
        queued = [job for job in found if job.state == "queued"]
        return await self._store.read(lambda connection: _positions(connection, queued)) if queued else {}

    async def ask(self, tenant: str, id: str, action: Action, check: Check | None = None) -> Job:
        """Cancel, pause or resume the job; does nothing if that has been asked before. Returns the job afterwards.

        Raises HttpProblem 404, or 409 with the states that allow the action, and what `check` raises.
        """

        def work(connection: Connection) -> Job:
            query = select(jobs).where(jobs.c.tenant == tenant, jobs.c.id == id)
            row = connection.execute(query.with_for_update()).first()
            if row is None:
                raise HttpProblem("not-found", "there is no job with this id")
            _check(connection, row, check)
            if row.state not in ALLOWED[action]:
                detail = f"the job is {row.state}; only a job that is {_words(ALLOWED[action])} takes {action!r}"
                raise HttpProblem("invalid-state", detail, state=row.state, allowed_states=list(ALLOWED[action]))
            values = _answer_to(action, row)
            if values:
                connection.execute(update(jobs).where(jobs.c.id == id).values(values))
                state = values.get("state", row.state)
                said: list[tuple[str, dict[str, Any]]] = [("asked", {"action": action})] if state in ACTIVE else []
                if state != row.state:
                    said.append(("state", {"state": state, "reason": values.get("reason")}))
                _say(connection, id, said)
                if state in ENDED:
                    _show_session(connection, row.session)
            return Job.of_row(connection.execute(query).one())

        return await self._store.write(work)

    async def remove(self, tenant: str, id: str, check: Check | None = None) -> Job:
        """Delete an ended job with its events and metrics.

        Raises HttpProblem 404, or 409 for another state, and what `check` raises.
        """

        def work(connection: Connection) -> Job:
            query = select(jobs).where(jobs.c.tenant == tenant, jobs.c.id == id)
            row = connection.execute(query.with_for_update()).first()
            if row is None:
                raise HttpProblem("not-found", "there is no job with this id")
            _check(connection, row, check)
            if row.state not in ENDED:
                detail = f"the job is {row.state}; cancel it first"
                raise HttpProblem("invalid-state", detail, state=row.state, allowed_states=list(ENDED))
            connection.execute(delete(jobs).where(jobs.c.id == id))
            connection.execute(delete(events).where(events.c.job == id))
            connection.execute(delete(metrics).where(metrics.c.job == id))
            return Job.of_row(row)

        return await self._store.write(work)

    async def events(self, id: str, after: int, limit: int) -> Page:
        """Events of a job with greater numbers than `after`. An ended or deleted job has no more events."""

        def work(connection: Connection) -> Page:
            row = connection.execute(select(jobs.c.events, jobs.c.state).where(jobs.c.id == id)).first()
            newest, ended = (0, True) if row is None else (row.events, row.state in ENDED)
            query = select(events).where(events.c.job == id, events.c.n > after, events.c.n <= newest)
            found = connection.execute(query.order_by(events.c.n).limit(limit)).all()
            listed = [Event(e.n, e.kind, {"time": e.time, **json.loads(e.data)}) for e in found]
            return Page(max(1, newest - KEPT + 1), newest, ended, listed)

        return await self._store.read(work)

    async def curves(self, id: str, kind: str, first: int = 1, last: int | None = None) -> list[Row]:
        """The metrics of the steps `first` to `last` (None: all), in order. kind: training or validation."""

        def work(connection: Connection) -> list[Row]:
            mine = and_(metrics.c.job == id, metrics.c.kind == kind, metrics.c.step + metrics.c.length > first)
            query = select(metrics).where(mine).order_by(metrics.c.step)
            if last is not None:
                query = query.where(metrics.c.step <= last)
            return [Row(row.step, row.length, unpacked(row.metrics)) for row in connection.execute(query)]

        return await self._store.read(work)

    async def count(self) -> dict[str, int]:
        """The number of jobs in each state."""
        query = select(jobs.c.state, func.count()).group_by(jobs.c.state)
        return {row[0]: row[1] for row in await self._store.read(lambda c: c.execute(query).all())}

    # For the runner

    async def disown(self) -> None:
        """Let this process take over the jobs of an earlier one at once, where only one process can use the store."""
        if self._store.is_sqlite:
            await self._store.write(lambda c: c.execute(update(jobs).values(owner=None, owner_until=None)))

    async def release(self) -> None:
        """Let other processes take over the jobs of this one."""
        mine = update(jobs).where(jobs.c.owner == self.owner)
        await self._store.write(lambda c: c.execute(mine.values(owner=None, owner_until=None)))

    async def expire(self) -> list[Job]:
        """End the waiting jobs whose deadline has passed; returns them as they are then."""

        def work(connection: Connection) -> list[Job]:
            now = time.time()
            late = select(jobs).where(jobs.c.state.in_(("queued", "paused")), jobs.c.deadline < now)
            rows = connection.execute(late.limit(100).with_for_update()).all()
            for row in rows:
                state = "aborted" if row.started is None else "canceled"
                values = {"state": state, "reason": "deadline", "ended": now}
                connection.execute(update(jobs).where(jobs.c.id == row.id).values(values))
                _say(connection, row.id, [("state", {"state": state, "reason": "deadline"})])
                _show_session(connection, row.session)
            ended = select(jobs).where(jobs.c.id.in_([row.id for row in rows]))
            return [Job.of_row(row) for row in connection.execute(ended)] if rows else []

        return await self._store.write(work)

    async def renew(self, running: Collection[str]) -> None:
        """Keep the jobs that this process runs. One that it has claimed without knowing lapses, and is claimed again.

        running: their ids.
        """
        mine = update(jobs).where(jobs.c.owner == self.owner, jobs.c.id.in_(running))
        mine = mine.values(owner_until=time.time() + LEASE_S)
        await self._store.write(lambda connection: connection.execute(mine))

    async def claim(self, barred: Collection[str] = (), running: Collection[str] = ()) -> Job | None:
        """Take the next job to run: one whose process is silent, else the next of the queue. None if there is none.

        barred: tenants whose queued jobs wait. running: jobs that this process runs, whose leases pass when the clock
        is set forward.
        The queue goes by priority; of equal ones the tenant with the fewest running jobs is next, then the one that
        was served least recently; of its jobs the oldest.
        """

        def work(connection: Connection) -> Job | None:
            now = time.time()
            lapsed = or_(jobs.c.owner_until.is_(None), jobs.c.owner_until < now)
            orphan = select(jobs).where(jobs.c.state.in_(ACTIVE), lapsed, jobs.c.id.not_in(running))
            row = connection.execute(orphan.order_by(jobs.c.started).limit(1)).first() or _next(connection, barred)
            if row is None:
                return None
            taken = update(jobs).where(jobs.c.id == row.id, jobs.c.epoch == row.epoch, jobs.c.state == row.state)
            values = {"epoch": row.epoch + 1, "owner": self.owner, "owner_until": now + LEASE_S}
            state = "running" if row.state == "queued" else row.state
            values |= {"state": state, "waiting": None}
            values |= {"started": now if row.state == "queued" or row.started is None else row.started}
            if connection.execute(taken.values(values)).rowcount != 1:
                return None  # another process was faster
            said = [("state", {"state": "running", "reason": None})] if row.state == "queued" else [("continued", {})]
            _say(connection, row.id, said)
            return Job.of_row(connection.execute(select(jobs).where(jobs.c.id == row.id)).one())

        return await self._store.write(work)

    async def asked(self, job: Job) -> str | None:
        """The action that a client asks for, if any. Raises Fenced."""
        mine = and_(jobs.c.id == job.id, jobs.c.epoch == job.epoch, jobs.c.owner == self.owner)
        row = await self._store.read(lambda c: c.execute(select(jobs.c.asked).where(mine)).first())
        if row is None:
            raise Fenced
        return row.asked

    async def note_waiting(self, job: Job, waiting: Waiting | None) -> None:
        """Store why the job waits, and tell its readers; None when it waits no more. Raises Fenced."""
        stored = None if waiting is None else text_of(astuple(waiting))

        def work(connection: Connection) -> None:
            mine = update(jobs).where(jobs.c.id == job.id, jobs.c.epoch == job.epoch, jobs.c.owner == self.owner)
            if connection.execute(mine.values(waiting=stored)).rowcount != 1:
                raise Fenced
            if waiting is not None:
                _say(connection, job.id, [("waiting", {"reason": waiting.reason, "detail": waiting.detail})])

        await self._store.write(work)

    async def advance(self, job: Job, turn: Turn) -> str | None:
        """Store one turn of the loop; returns the action that a client asks for, if any.

        Raises Fenced. Raises AskedMeanwhile, and stores nothing, if the job is to wait and a client has asked for
        another action: the answer to that request has promised it.
        """
        values: dict[str, Any] = {"progress": text_of(turn.progress), "owner_until": time.time() + LEASE_S}
        values["waiting"] = None
        values |= turn.values
        if turn.state is not None:
            now = time.time()
            values |= {"state": turn.state, "reason": turn.reason, "asked": None, "owner": None, "owner_until": None}
            values |= {"ended": now} if turn.state in ENDED else {}
            values |= {} if turn.error is None else {"error": text_of(turn.error)}

        def work(connection: Connection) -> str | None:
            mine = (jobs.c.id == job.id, jobs.c.epoch == job.epoch, jobs.c.owner == self.owner)
            if turn.state is not None and turn.state in WAITING:
                found = connection.execute(select(jobs.c.asked).where(*mine).with_for_update()).first()
                if found is not None and found.asked != WAITING[turn.state]:
                    raise AskedMeanwhile(found.asked)
            before = connection.execute(select(jobs.c.progress).where(*mine)).scalar()
            if connection.execute(update(jobs).where(*mine).values(values)).rowcount != 1:
                raise Fenced
            for kind, step, count, data in turn.curves:
                row = {"job": job.id, "kind": kind, "step": step, "length": count, "metrics": data}
                same = and_(metrics.c.job == job.id, metrics.c.kind == kind, metrics.c.step == step)
                connection.execute(delete(metrics).where(same))  # of a turn whose end the store did not tell
                connection.execute(insert(metrics).values(row))
            said = [*turn.said]
            if turn.state is None and before is not None and progress_of(before).place == turn.progress.place:
                said = []  # the answer to the first try was lost
            if turn.state is not None:
                said.append(("state", {"state": turn.state, "reason": turn.reason}))
            _say(connection, job.id, said)
            if turn.state in ENDED:
                _show_session(connection, job.session)
            return connection.execute(select(jobs.c.asked).where(jobs.c.id == job.id)).scalar()

        return await self._store.write(work)


def _answer_to(action: Action, row: Any) -> dict[str, Any]:
    """The columns that change when a client asks for `action`; none if nothing does."""
    now = time.time()
    match action, row.state:
        case "cancel", "queued" | "paused":
            state = "aborted" if row.started is None else "canceled"
            return {"state": state, "reason": "requested", "ended": now}
        case "cancel", "running" | "pausing" if row.asked != "cancel":
            return {"asked": "cancel"}
        case "pause", "queued":
            return {"state": "paused"}
        case "pause", "running" if row.asked is None:
            return {"state": "pausing", "asked": "pause"}
        case "resume", "paused":
            return {"state": "queued", "queued": now}
        case "resume", "pausing" if row.asked == "pause":
            return {"state": "running", "asked": None}
    return {}


def _check(connection: Connection, row: Any, check: Check | None) -> None:
    if check is not None:
        job = Job.of_row(row)
        check(job, _positions(connection, [job] if job.state == "queued" else []))


def _positions(connection: Connection, queued: Sequence[Job]) -> dict[str, int]:
    """The number of queued jobs before each of those in `queued`, by priority and age."""
    if not queued:
        return {}
    least = min(job.priority for job in queued)
    query = select(jobs.c.priority, jobs.c.queued).where(jobs.c.state == "queued", jobs.c.priority >= least)
    line = sorted((-priority, at) for priority, at in connection.execute(query))
    return {job.id: bisect_left(line, (-job.priority, job.queued)) for job in queued}


def _next(connection: Connection, barred: Collection[str]) -> Any:
    """The row of the next queued job."""
    queued = and_(jobs.c.state == "queued", jobs.c.tenant.not_in(barred))
    priority = connection.execute(select(func.max(jobs.c.priority)).where(queued)).scalar()
    if priority is None:
        return None
    candidates = and_(queued, jobs.c.priority == priority)
    waiting = connection.execute(
        select(jobs.c.tenant, func.min(jobs.c.queued)).where(candidates).group_by(jobs.c.tenant)
    ).all()
    tenants = [row[0] for row in waiting]
    running, served = {}, {}
    if len(tenants) > 1:
        active = and_(jobs.c.state.in_(ACTIVE), jobs.c.tenant.in_(tenants))
        counts = select(jobs.c.tenant, func.count()).where(active).group_by(jobs.c.tenant)
        running = {row[0]: row[1] for row in connection.execute(counts)}
        latest = select(jobs.c.tenant, func.max(jobs.c.started)).where(jobs.c.tenant.in_(tenants))
        served = {row[0]: row[1] or 0.0 for row in connection.execute(latest.group_by(jobs.c.tenant))}
    first = min(waiting, key=lambda row: (running.get(row[0], 0), served.get(row[0], 0.0), row[1]))[0]
    query = select(jobs).where(candidates, jobs.c.tenant == first).order_by(jobs.c.queued, jobs.c.id).limit(1)
    return connection.execute(query).first()


def session_in_use(job: str, state: str = "unfinished") -> HttpProblem:
    """The problem for a second job on a session. job, state: of the first one."""
    detail = f"job {job}, which is {state}, trains this session; cancel it, or wait for its end"
    return HttpProblem("in-use", detail, jobs=[job])


def _say(connection: Connection, job: str, said: Said) -> None:
    """Add events to a job, and drop the oldest ones."""
    if not said:
        return
    counted = update(jobs).where(jobs.c.id == job).values(events=jobs.c.events + len(said)).returning(jobs.c.events)
    last, now = connection.execute(counted).scalar_one(), time.time()
    first = last - len(said) + 1
    rows = [
        {"job": job, "n": n, "time": now, "kind": kind, "data": text_of(data)}
        for n, (kind, data) in enumerate(said, first)
    ]
    connection.execute(insert(events), rows)
    if last > KEPT:
        connection.execute(delete(events).where(events.c.job == job, events.c.n <= last - KEPT))


def _show_session(connection: Connection, session: str) -> None:
    """Let clients list and use the session of a job that has ended."""
    connection.execute(update(sessions).where(sessions.c.id == session).values(job=None))


def _words(states: Sequence[str]) -> str:
    return ", ".join(states[:-1]) + " or " + states[-1]
