"""Jobs end with the numbers of an uninterrupted training, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import numpy as np
import pytest

import service.jobs.validation as validation_module
from service.engine import DeadlineExceeded, NoCapacity, RemoteError, WorkerLost
from service.jobs import ENDED, Job, Runner
from service.jobs.curves import joined
from service.jobs.early_stop import EarlyStop
from service.jobs.job import Validation
from service.jobs.store import Fenced, Turn
from service.jobs.training import MOST_FAILURES
from service.problems import HttpProblem
from service.store.errors import StorageUnavailable
from service.worker import fit
from tests.service.jobs.conftest import House, described
from tests.service.worker.test_fit import PLAIN, Side, batches, same

pytestmark = pytest.mark.anyio


async def until(runner: Runner, job: Job, *states: str) -> Job:
    """The job as soon as it is in one of `states`, by default an end."""
    async with asyncio.timeout(120):
        while True:
            found = await runner.jobs.get(job.tenant, job.id)
            if found.state in (states or ENDED):
                return found
            await asyncio.sleep(0.005)


async def curve(runner: Runner, job: Job, name: str = "loss") -> list[Any]:
    steps, columns = joined(await runner.jobs.curves(job.id, "training"))
    assert steps.tolist() == list(range(1, len(steps) + 1)), "each step once"
    return [value if math.isfinite(value) else None for value in columns[name].tolist()]


def by_steps(house: House, data: dict[str, Any], count: int) -> tuple[Side, list[float]]:
    """A session trained step by step, and its losses."""
    side = house.side()
    return side, [float(side.step(feeds)[1]["loss"]) for feeds in batches(data, count, PLAIN)]


async def test_a_job_equals_single_steps(house):
    runner = await house.runner()
    job = await house.submit(runner, steps=40)
    done = await until(runner, job)
    side, losses = by_steps(house, described(), 40)
    assert (done.state, done.reason, done.progress.step) == ("succeeded", "completed", 40)
    assert await curve(runner, job) == losses
    assert same(house.held(job), side.held())
    assert done.progress.samples == sum(len(each["label"]) for each in batches(described(), 40, PLAIN))
    assert done.progress.last["loss"] == losses[-1]
    assert len({count for op, count in house.sessions.calls}) > 1, "calls of different lengths"


@pytest.mark.parametrize("chunk_s", [1e-6, 10.0], ids=["short calls", "long calls"])
async def test_the_mean_of_each_round_is_told_however_many_a_call_trains(house, chunk_s):
    runner = await house.runner(chunk_s=chunk_s)
    job = await house.submit(runner, steps=60, every=7)
    await until(runner, job)
    losses = by_steps(house, described(), 60)[1]

    page = await runner.jobs.events(job.id, 0, 1000)

    ends = [*range(7, 60, 7), 60]
    expected = [(end, start, np.mean(losses[start:end])) for start, end in zip([0, *ends], ends, strict=False)]
    told = [(e.data["step"], e.data["since"], e.data["metrics"]["loss"]) for e in page.events if e.kind == "mean"]
    assert np.allclose(told, expected, rtol=1e-12, atol=0)
    assert (len(house.sessions.calls) < len(ends)) == (chunk_s > 1), "a long call trains several rounds"


async def test_pauses_losses_of_answers_and_restarts_change_no_number(house):
    """Every way to interrupt a job, at random moments: its curve and its session stay those of single steps."""
    rng = random.Random(3)
    side, losses = by_steps(house, described(holdout=7), 60)
    settings = {"steps": 60, "data": described(holdout=7), "every": 7, "checkpoint_steps": 9}
    settings["validation"] = Validation(described(holdout=7), 7, 7)
    runner = await house.runner()
    quiet = await house.submit(runner, **settings)
    await until(runner, quiet)
    expected = joined(await runner.jobs.curves(quiet.id, "validation"))
    saved = [step for _, step in house.saved]

    for _ in range(4):
        house.saved.clear()

        def trouble(op: str) -> None:
            if rng.random() < 0.3:
                raise rng.choice(
                    [WorkerLost("wrk_1", "killed"), NoCapacity("none"), DeadlineExceeded("late", waited=False)]
                )

        house.sessions.before = lambda op: trouble(op) if rng.random() < 0.3 else None
        house.sessions.after = trouble
        job = await house.submit(runner, **settings)
        while (found := await runner.jobs.get("local", job.id)).state not in ENDED:
            await asyncio.sleep(rng.random() * 0.02)
            match rng.randrange(4):
                case 0:
                    await runner.stop()
                    runner = await house.runner()
                case 1 if found.state in ("running", "queued"):
                    try:
                        await runner.jobs.ask("local", job.id, "pause")
                    except HttpProblem:
                        continue
                case _ if found.state == "paused":
                    await runner.jobs.ask("local", job.id, "resume")
                    runner.wake()
        house.sessions.before = house.sessions.after = lambda op: None
        done = await until(runner, job)
        assert (done.state, done.progress.step) == ("succeeded", 60)
        assert await curve(runner, job) == losses
        assert same(house.held(job), side.held())
        steps, columns = joined(await runner.jobs.curves(job.id, "validation"))
        assert steps.tolist() == expected[0].tolist()
        assert all(np.array_equal(columns[name], expected[1][name]) for name in expected[1])
        assert sorted({step for _, step in house.saved}) == saved


async def test_a_call_whose_answer_was_lost_is_not_repeated(house):
    """The process ends between the worker's answer and the store; the next one gets the stored answer."""
    runner = await house.runner()
    lost = asyncio.Event()
    advance = runner.jobs.advance

    async def fails(job: Job, turn: Turn) -> Any:
        if turn.progress.step > 8 and not lost.is_set():
            lost.set()
            await asyncio.sleep(100)
        return await advance(job, turn)

    runner.jobs.advance = fails  # type: ignore[method-assign]
    job = await house.submit(runner, steps=30)
    async with asyncio.timeout(60):
        await lost.wait()
    before = len(house.sessions.calls)
    await runner.stop()
    runner = await house.runner()
    await until(runner, job)
    assert await curve(runner, job) == by_steps(house, described(), 30)[1]
    assert sum(count for _, count in house.sessions.calls) == 30, (before, house.sessions.calls)


async def test_an_answer_that_is_not_stored_any_more_costs_its_metrics_alone(house):
    runner = await house.runner()
    job = await house.submit(runner, steps=30)
    write, dropped = house.sessions.write, []

    async def forgets(session: Any, asked: Any, deadline: float) -> Any:
        if asked.args["start"] > 0 and not dropped:
            dropped.append(asked.args["start"])
            await write(session, asked, deadline)
            house.sessions.answers[session.id, asked.seq] = asked.digest, None
            raise WorkerLost("wrk_1", "killed")
        return await write(session, asked, deadline)

    house.sessions.write = forgets  # type: ignore[method-assign]
    done = await until(runner, job)
    side, losses = by_steps(house, described(), 30)
    assert done.state == "succeeded"
    assert same(house.held(job), side.held())
    steps, columns = joined(await runner.jobs.curves(job.id, "training"))
    assert len(steps) < 30
    assert [losses[i - 1] for i in steps] == columns["loss"].tolist()
    page = await runner.jobs.events(job.id, 0, 1000)
    assert any("are lost" in str(each.data) for each in page.events if each.kind == "warning")


async def test_early_stop_follows_the_rule_computed_by_hand(house):
    runner = await house.runner()
    data = described(holdout=9)
    validation = Validation(data, 9, 4)
    free = await house.submit(runner, steps=48, data=data, every=4, validation=validation)
    await until(runner, free)
    values = joined(await runner.jobs.curves(free.id, "validation"))[1]["loss"].tolist()
    for patience, delta in ((1, 0.0), (2, 0.001), (3, 0.2), (1, 5.0)):
        best, since, end = math.inf, 0, 48
        for i, value in enumerate(values):
            best, since = (value, 0) if best - value > delta else (best, since + 1)
            if since >= patience:
                end = 4 * (i + 1)
                break
        rule = EarlyStop("validation/loss", patience, delta)
        job = await house.submit(runner, steps=48, data=data, every=4, validation=validation, early_stop=rule,
                                 checkpoint_steps=1000)  # fmt: skip
        done = await until(runner, job)
        stopped = end < 48 or since >= patience
        assert (done.progress.step, done.reason) == (end, "early-stop" if stopped else "completed"), (patience, delta)
        assert done.progress.judged.best == pytest.approx(best)
        assert house.saved[-1] == (job.id, end)


@pytest.mark.parametrize("every", [None, 8])
async def test_each_best_judgement_is_saved_and_replaces_the_one_before(house, every):
    runner = await house.runner()
    rule = EarlyStop("accuracy", 1000, 0.0, "max")
    job = await house.submit(runner, steps=40, every=4, early_stop=rule, checkpoint_best=True, checkpoint_steps=every)
    done = await until(runner, job)
    accuracy = await curve(runner, job, "metric/accuracy")
    means = {end: math.fsum(accuracy[end - 4 : end]) / 4 for end in range(4, 41, 4)}
    best = [end for end in means if means[end] > max([-1.0, *(means[s] for s in means if s < end)])]
    regular = list(range(8, 41, 8)) if every else []
    saved = sorted({*best, *regular})
    replaced = [[before] if before not in regular else [] for before in best]
    assert len(best) > 2
    assert house.saved == [(job.id, end) for end in saved]
    assert house.replaced == [[[], *replaced][best.index(end)] if end in best else [] for end in saved]
    assert done.progress.judged.best_step == done.progress.best_saved_at == best[-1]


@pytest.mark.parametrize("keeps_best", [False, True])
async def test_a_job_keeps_as_many_checkpoints_as_asked_and_the_best_one(house, keeps_best):
    runner = await house.runner()
    rule = EarlyStop("accuracy", 1000, 0.0, "max")
    more = {"early_stop": rule, "checkpoint_best": True} if keeps_best else {}
    job = await house.submit(runner, steps=50, every=4, checkpoint_steps=5, checkpoint_keep=3, **more)
    done = await until(runner, job)
    staying, bests = set(), []
    page = await runner.jobs.events(job.id, 0, 1000)
    means = {each.data["step"]: each.data["metrics"]["metric/accuracy"] for each in page.events if each.kind == "mean"}
    for (_, step), gone in zip(house.saved, house.replaced, strict=True):
        if keeps_best and step in means and means[step] > max([-1.0, *(means[s] for s in means if s < step)]):
            bests.append(step)
        staying = (staying | {step}) - set(gone)
        wanted = {*range(5, step + 1, 5)[-3:], *bests[-1:]}
        assert staying == wanted, step
    assert staying >= {40, 45, 50}
    assert (len(bests) > 2) == keeps_best
    assert done.progress.kept == [40, 45, 50]


async def test_a_best_judgement_without_room_for_its_checkpoint_leaves_the_one_before(house, monkeypatch):
    rule = EarlyStop("accuracy", 1000, 0.0, "max")
    made = house.checkpointed

    async def first_alone(session, job, step, replaces=()):
        if house.saved:
            raise HttpProblem("quota-exceeded", "no room")
        return await made(session, job, step, replaces)

    monkeypatch.setattr(house, "checkpointed", first_alone)
    runner = await house.runner()
    job = await house.submit(runner, steps=40, every=4, early_stop=rule, checkpoint_best=True)
    done = await until(runner, job)
    page = await runner.jobs.events(job.id, 0, 1000)
    refused = [each.data["detail"] for each in page.events if each.kind == "warning"]
    assert (done.state, house.saved, done.progress.best_saved_at) == ("succeeded", [(job.id, 4)], 4)
    assert done.progress.judged.best_step > 4
    assert f"no checkpoint of step {done.progress.judged.best_step}: no room" in refused


async def test_early_stop_on_a_training_metric_uses_its_mean_since_the_last_judgement(house):
    runner = await house.runner()
    job = await house.submit(runner, steps=60, early_stop=EarlyStop("accuracy", 2, 0.0, "max"))
    done = await until(runner, job)
    accuracy = await curve(runner, job, "metric/accuracy")
    each = fit.sampling_of(described()).batches
    means = [math.fsum(accuracy[i : i + each]) / each for i in range(0, len(accuracy), each)]
    best, since = -math.inf, 0
    for i, value in enumerate(means):
        best, since = (value, 0) if value > best else (best, since + 1)
        assert (since >= 2) == (i == len(means) - 1 and done.reason == "early-stop")


async def test_cancel_ends_a_job_after_its_call_and_a_queued_one_at_once(house):
    runner = await house.runner(limit=1)
    running = await house.submit(runner, steps=10_000_000)
    queued = await house.submit(runner, steps=10)
    await until(runner, running, "running")
    assert await runner.jobs.positions([await runner.jobs.get("local", queued.id)]) == {queued.id: 0}
    assert (await runner.jobs.ask("local", queued.id, "cancel")).state == "aborted"
    await runner.jobs.ask("local", running.id, "cancel")
    done = await until(runner, running)
    assert (done.state, done.reason) == ("canceled", "requested")
    assert done.progress.step == house.sessions.open[running.session].step
    for job in (running, queued):
        assert (await runner.jobs.ask("local", job.id, "cancel")).state in ENDED
        with pytest.raises(HttpProblem) as caught:
            await runner.jobs.ask("local", job.id, "pause")
        assert caught.value.code == "invalid-state"
        assert caught.value.extensions["allowed_states"] == ["queued", "running", "pausing", "paused"]


async def test_a_job_waits_in_the_queue_while_its_tenant_has_no_compute_seconds(house):
    spent: set[str] = set()
    write = house.sessions.write

    async def spending(session: Any, asked: Any, deadline: float) -> Any:
        if session.tenant == "local" and asked.args["start"] == 4:
            spent.add("local")
        return await write(session, asked, deadline)

    house.sessions.write = spending  # type: ignore[method-assign]
    runner = await house.runner(limit=1, has_compute=lambda tenant: tenant not in spent)
    job = await house.submit(runner, steps=40, priority=9)
    other = await house.submit(runner, tenant="other")
    assert (await until(runner, other)).state == "succeeded"
    waiting = await runner.jobs.get("local", job.id)
    assert waiting.state == "queued"
    assert 4 < waiting.progress.step < 40
    await asyncio.sleep(0.05)
    assert (await runner.jobs.get("local", job.id)).epoch == waiting.epoch
    events = (await runner.jobs.events(job.id, 0, 100)).events
    assert ["compute seconds" in str(each.data) for each in events if each.kind == "warning"] == [True]

    spent.clear()
    runner.wake()

    assert (await until(runner, job)).state == "succeeded"
    assert await curve(runner, job) == by_steps(house, described(), 40)[1]


@pytest.mark.parametrize(("action", "state"), [("cancel", "canceled"), ("pause", "paused")])
async def test_a_job_that_waits_for_a_worker_takes_actions(house, action, state):
    def fails(op: str) -> None:
        raise NoCapacity("all workers are full")

    runner = await house.runner()
    house.sessions.before = fails
    job = await house.submit(runner)
    await until(runner, job, "running")
    await asyncio.sleep(0.05)
    await runner.jobs.ask("local", job.id, action)

    assert (await until(runner, job, state)).state == state


@pytest.mark.parametrize(("asked", "end"), [("cancel", "requested"), ("pause", None), (None, "deadline")])
async def test_a_long_validation_ends_when_its_job_must_stop(house, clock, monkeypatch, asked, end):
    monkeypatch.setattr(validation_module, "MOST_BATCHES", 1)
    data = described(size=1, holdout=30)
    runner = await house.runner(limit=1)  # it does not claim its job again when the clock is set forward
    read, calls = house.sessions.read, 0

    async def stopped_at_the_third(*call: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3 and asked:
            await runner.jobs.ask("local", job.id, asked)
        elif calls == 3:
            clock.ahead = 901.0
        return await read(*call)

    monkeypatch.setattr(house.sessions, "read", stopped_at_the_third)
    deadline = None if asked else 900.0
    job = await house.submit(
        runner, steps=20, data=data, every=5, validation=Validation(data, 30, 5), deadline_s=deadline
    )
    done = await until(runner, job, *ENDED, "paused")

    assert (done.reason, done.progress.step, calls) == (end, 5, 3)
    if asked == "pause":
        await runner.jobs.ask("local", job.id, "resume")
        assert (await until(runner, job)).state == "succeeded"
        assert joined(await runner.jobs.curves(job.id, "validation"))[0].tolist() == [5, 10, 15, 20]


@pytest.mark.parametrize(("action", "end"), [("resume", "succeeded"), ("cancel", "canceled")])
async def test_an_action_that_comes_while_a_job_becomes_paused_is_not_lost(house, monkeypatch, action, end):
    runner = await house.runner()
    job = await house.submit(runner, steps=30)
    advance, write, calls = runner.jobs.advance, house.sessions.write, 0

    async def paused_at_the_second(*call: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            await runner.jobs.ask("local", job.id, "pause")
        return await write(*call)

    async def late(running: Job, turn: Turn) -> Any:
        if turn.state == "paused":
            monkeypatch.setattr(runner.jobs, "advance", advance)
            answer = await runner.jobs.ask("local", job.id, action)
            assert (answer.state, answer.asked) == (("running", None) if action == "resume" else ("pausing", "cancel"))
        return await advance(running, turn)

    monkeypatch.setattr(runner.jobs, "advance", late)
    monkeypatch.setattr(house.sessions, "write", paused_at_the_second)
    done = await until(runner, job)

    assert done.state == end
    assert (done.progress.step == 30) == (end == "succeeded")
    assert await curve(runner, job) == by_steps(house, described(), done.progress.step)[1]


async def test_a_deadline_cancels_a_running_job_and_aborts_a_waiting_one(house, clock):
    runner = await house.runner(limit=1)
    running = await house.submit(runner, steps=10_000_000, deadline_s=900.0)
    await until(runner, running, "running")
    waiting = await house.submit(runner, steps=10, deadline_s=60.0)
    clock.ahead = 61.0
    runner.wake()
    done = await until(runner, waiting)
    assert (done.state, done.reason) == ("aborted", "deadline")
    assert (await runner.jobs.get("local", running.id)).state == "running"
    clock.ahead = 901.0
    done = await until(runner, running)
    assert (done.state, done.reason) == ("canceled", "deadline")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (HttpProblem("gone", "closed"), "session-lost"),
        (HttpProblem("sequence-gap", "used"), "session-changed"),
        (HttpProblem("worker-lost", "given up", retryable=False), "worker-lost"),
        (WorkerLost("wrk_1", "killed"), "worker-lost"),
        (RemoteError("execution", "not_finite", "not finite: loss", {}), "numeric-error"),
        (RemoteError("execution", "dataset_unavailable", "gone", {}), "dataset-unavailable"),
        (RemoteError("execution", "index_out_of_range", "label 9", {}), "execution-failed"),
        (RuntimeError("a defect"), "internal"),
    ],
)
async def test_a_failure_that_stays_ends_the_job_with_its_reason_and_its_problem(house, error, reason):
    runner = await house.runner()

    def fails(op: str) -> None:
        raise error

    house.sessions.before = fails
    done = await until(runner, await house.submit(runner))
    assert (done.state, done.reason) == ("failed", reason)
    assert done.error is not None
    assert "a defect" not in str(done.error)


AWAY = [
    RemoteError("execution", "storage_unavailable", "stored data cannot be reached", {}),
    RemoteError("execution", "storage_full", "no space is left for stored data", {}),
    HttpProblem("storage-unavailable", "the session cannot be rebuilt now"),
]


@pytest.mark.parametrize("error", AWAY)
@pytest.mark.parametrize("op", ["session.fit", "a checkpoint"])
async def test_a_job_waits_until_files_can_be_read_and_written_again(house, monkeypatch, op, error):
    failures = [error] * (3 * MOST_FAILURES)

    def fails(name: str) -> None:
        if name == op and failures:
            raise failures.pop()

    save = house.checkpointed

    async def checkpointed(*given: Any) -> str:
        fails("a checkpoint")
        return await save(*given)

    monkeypatch.setattr(house, "checkpointed", checkpointed)
    runner = await house.runner()
    house.sessions.before = fails
    done = await until(runner, await house.submit(runner, steps=20, checkpoint_steps=5))

    assert (done.state, done.reason, failures) == ("succeeded", "completed", [])
    assert [step for _, step in house.saved] == [5, 10, 15, 20]
    assert await curve(runner, done) == by_steps(house, described(), 20)[1]


@pytest.mark.parametrize("error", AWAY)
async def test_a_job_whose_checkpoint_cannot_be_written_can_be_canceled(house, monkeypatch, error):
    tried = asyncio.Event()

    async def checkpointed(*given: Any) -> str:
        tried.set()
        raise error

    monkeypatch.setattr(house, "checkpointed", checkpointed)
    runner = await house.runner()
    job = await house.submit(runner, steps=20, checkpoint_steps=5)
    await tried.wait()
    await runner.jobs.ask("local", job.id, "cancel")

    assert (await until(runner, job)).state == "canceled"


async def test_a_job_repeats_a_call_that_was_given_up_after_the_loss_of_its_workers(house):
    runner, calls = await house.runner(), 0

    def lost(op: str) -> None:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise HttpProblem("worker-lost", "the call ended two workers; the session is as before", retryable=False)

    house.sessions.before = lost
    job = await house.submit(runner, steps=20)

    assert (await until(runner, job)).reason == "completed"
    assert await curve(runner, job) == by_steps(house, described(), 20)[1]


async def test_a_job_with_a_defect_ends_as_soon_as_the_store_takes_its_end(house, monkeypatch):
    runner = await house.runner()
    advance, refusals = runner.jobs.advance, 2

    async def refused(job: Job, turn: Turn) -> Any:
        nonlocal refusals
        if turn.state is not None and refusals:
            refusals -= 1
            raise StorageUnavailable("away for a moment")
        return await advance(job, turn)

    def fails(op: str) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(runner.jobs, "advance", refused)
    house.sessions.before = fails
    done = await until(runner, await house.submit(runner))

    assert (done.state, done.reason, refusals) == ("failed", "internal", 0)


async def test_the_session_of_a_waiting_job_is_free_after_the_deadline(house):
    runner = await house.runner(limit=0)
    job = await house.submit(runner, deadline_s=0.05)
    session = house.sessions.held("local", job.session)
    session.job = job.id

    await until(runner, job)
    for _ in range(1000):  # the end is stored before the session is told
        if session.job is None:
            break
        await asyncio.sleep(0.005)

    assert session.job is None


async def test_a_clock_that_is_set_forward_lets_no_process_take_over_its_own_job(house, clock, monkeypatch):
    runner = await house.runner(limit=2)
    write, waits, free = house.sessions.write, asyncio.Event(), asyncio.Event()

    async def long(session: Any, asked: Any, deadline: float) -> Any:
        if session.id == job.session:
            waits.set()
            await free.wait()
        return await write(session, asked, deadline)

    monkeypatch.setattr(house.sessions, "write", long)
    job = await house.submit(runner)
    await waits.wait()
    clock.ahead = 1000.0  # longer than the lease of the job
    other = await house.submit(runner)  # the queue is read once more
    assert (await until(runner, other)).state == "succeeded"
    free.set()

    assert (await until(runner, job)).epoch == 1
    assert "continued" not in [each.kind for each in (await runner.jobs.events(job.id, 0, 100)).events]


async def test_a_client_that_steps_the_session_of_a_job_ends_it(house):
    runner = await house.runner()
    job = await house.submit(runner, steps=10_000_000)
    await until(runner, job, "running")
    await asyncio.sleep(0.05)
    session = house.sessions.open[job.session]
    session.seq += 1
    session.step += 1
    done = await until(runner, job)
    assert (done.state, done.reason) == ("failed", "session-changed")


async def test_a_job_that_another_process_has_taken_over_is_left_alone(house):
    runner = await house.runner()
    job = await house.submit(runner, steps=10_000_000)
    await until(runner, job, "running")
    runner._limit = 0  # it takes no other job
    other = await house.runner()  # one process at a time uses an embedded store: it takes over at once
    taken = None
    async with asyncio.timeout(60):
        while taken is None or taken.epoch < 2:
            await asyncio.sleep(0.01)
            taken = await other.jobs.get("local", job.id)
        while runner.running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    with pytest.raises(Fenced):
        await runner.jobs.advance(job, Turn(job.progress))
    await other.jobs.ask("local", job.id, "cancel")
    done = await until(other, job)
    assert len(await curve(other, job)) == done.progress.step


async def test_the_queue_goes_by_priority_then_by_tenant_then_by_age(house):
    runner = await house.runner(limit=1)
    blocker = await house.submit(runner, steps=10_000_000, priority=9)
    await until(runner, blocker, "running")
    order = [
        await house.submit(runner, tenant=tenant, priority=priority, steps=2)
        for tenant, priority in [("a", 5), ("a", 5), ("a", 5), ("b", 5), ("a", 7), ("b", 5), ("c", 0)]
    ]
    await runner.jobs.ask("local", blocker.id, "cancel")
    for job in order:
        await until(runner, job)
    started = [(await runner.jobs.get(job.tenant, job.id)).started or 0 for job in order]
    assert sorted(range(len(order)), key=lambda i: started[i]) == [4, 3, 0, 5, 1, 2, 6]


async def test_other_tenants_see_no_job(house):
    runner = await house.runner()
    job = await house.submit(runner, tenant="a")
    await until(runner, job)
    for work in (
        runner.jobs.get("b", job.id),
        runner.jobs.ask("b", job.id, "cancel"),
        runner.jobs.remove("b", job.id),
    ):
        with pytest.raises(HttpProblem) as caught:
            await work
        assert caught.value.code == "not-found"
    assert set(house.sessions.callers) == {"a"}, "its calls count as those of its tenant"
    assert await runner.jobs.page("b", "", 10) == []
    assert [each.id for each in await runner.jobs.page("a", "", 10)] == [job.id]


async def test_a_deleted_job_leaves_no_rows(house):
    runner = await house.runner()
    job = await house.submit(runner)
    await until(runner, job)
    await runner.jobs.remove("local", job.id)
    assert await runner.jobs.curves(job.id, "training") == []
    page = await runner.jobs.events(job.id, 0, 10)
    assert (page.ended, list(page.events)) == (True, [])
