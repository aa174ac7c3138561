"""The submission of a job: all mistakes at once, then its session, then its place in the queue."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fastapi import Request
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from service.caller import tenant
from service.datasets import Dataset, is_absent
from service.engine import EngineError, RemoteError, Reply
from service.http.request_body import Body
from service.ids import new_id
from service.jobs import Job, Spec
from service.jobs.early_stop import EarlyStop
from service.jobs.job import Validation
from service.jobs.store import session_in_use
from service.problems import FieldError, HttpProblem, from_remote
from service.routes.new_sessions import optimizer_of
from service.routes.sample_data import restore_dataset
from service.routes.sessions import open_session
from service.routes.state import datasets, job_store, objects, runner, sessions, settings
from service.sampling import Sampling
from service.schemas import jobs as schemas
from service.schemas.examples import SAMPLE_DATASET
from service.sessions.session import Session
from service.store.errors import StorageError
from service.store.files import storage_errors

__all__ = ["submitted"]

MOST_STEPS = 2**40
TRAINING, VALIDATION = "/dataset_id", "/validation/dataset_id"


async def submitted(
    request: Request,
    body: Body,
    asked: schemas.CreateJob,
    id: str | None = None,
    paused: bool = False,
    check: Callable[[Connection], None] = lambda connection: None,
) -> Job:
    """The job in the queue. id: by default a fresh one. paused: let it wait until it is resumed.

    check: as of `JobStore.add`.
    Raises HttpProblem with all mistakes; then nothing has been created.
    """
    id = new_id("job_") if id is None else id
    errors = _mistakes(asked)
    data, validation = await _datasets(request, asked, errors)
    if asked.session_id is None and not errors:
        try:
            left = partial(_withdrawn, request, asked)  # no client could list the session and close it
            session = await open_session(request, body, asked.session(), job=id, left=left)
        except HttpProblem as problem:
            raise HttpProblem(
                problem.code, problem.detail, status=problem.status, errors=[*problem.errors, *errors],
                **problem.extensions,
            ) from problem  # fmt: skip
    else:
        session = await _found(request, asked, errors)
    try:
        job = await _checked(request, asked, id, session, data, validation, errors)
        if paused:
            job.state = "paused"
    except BaseException:
        await _withdrawn(request, asked, session)
        raise
    adding = asyncio.create_task(_added(request, asked, session, job, check))
    adding.add_done_callback(lambda task: task.cancelled() or task.exception())  # the client may have left
    await asyncio.shield(adding)  # a cancelled write may take effect: its job would have no session
    return job


async def _added(
    request: Request, asked: schemas.CreateJob, session: Session, job: Job, check: Callable[[Connection], None]
) -> None:
    """Put the job into the queue, or close the session that was opened for it. Raises HttpProblem."""

    def complete(connection: Connection) -> None:
        gone = [pointer for pointer, id in _named(asked).items() if is_absent(connection, job.tenant, id)]
        if gone:  # deleted since the check: nothing kept it before this job named it
            raise _refused([_unknown(pointer) for pointer in gone])
        check(connection)

    try:
        await job_store(request).add(job, [("state", {"state": job.state, "reason": None})], complete)
    except IntegrityError:
        pass  # an earlier execution of the request has added it
    except Exception:
        await _withdrawn(request, asked, session)
        raise
    runner(request).wake()


async def _withdrawn(request: Request, asked: schemas.CreateJob, session: Session) -> None:
    """Close the session if it was opened for the job, and no job has it: that may be in the store in spite of an error,
    or by another execution of the request. If this cannot be known, its lease closes it."""
    if asked.session_id is None and session.job is not None:
        with contextlib.suppress(HttpProblem, EngineError, StorageError):
            if not await job_store(request).exists(session.tenant, session.job):
                await sessions(request).close(session.tenant, session.id)


def _mistakes(asked: schemas.CreateJob) -> list[FieldError]:
    """The mistakes that show without a look at the program and the data."""
    found: list[FieldError] = []
    if asked.session_id is None and asked.from_checkpoint is None:
        try:
            optimizer_of(asked.optimizer)
        except HttpProblem as problem:
            found += problem.errors
    known = {"loss", *asked.metrics}
    if asked.validation is not None:
        known |= {f"validation/{name}" for name in known}
    metric = None if asked.early_stop is None else asked.early_stop.metric
    loss = {} if asked.loss is None else {asked.loss: "loss", f"validation/{asked.loss}": "validation/loss"}
    if metric is not None and metric not in known and metric not in loss:
        detail = f"{metric!r} is not recorded; recorded are {', '.join(sorted(known))}"
        found.append(FieldError("/early_stop/metric", "invalid", detail))
    if asked.save_every is not None and asked.save_every.best and asked.early_stop is None:
        detail = "needs early_stop, whose metric it follows"
        found.append(FieldError("/save_every/best", "invalid", detail))
    return found


async def _datasets(
    request: Request, asked: schemas.CreateJob, errors: list[FieldError]
) -> tuple[Dataset | None, Dataset | None]:
    """The datasets of training and validation, with their files on this machine; adds the mistakes to `errors`."""
    found: dict[str, Dataset | None] = {}
    for pointer, name in _named(asked).items():
        if name == SAMPLE_DATASET:
            await restore_dataset(request)
        dataset = found[pointer] = await datasets(request).get(tenant(), name)
        if dataset is None:
            errors.append(_unknown(pointer))
        elif dataset.rows == 0:
            errors.append(FieldError(pointer, "invalid", "the dataset has no rows"))
        else:
            with storage_errors(objects(request)), contextlib.suppress(FileNotFoundError):  # the worker reports it
                await datasets(request).path(dataset)
    data, fraction = found[TRAINING], None if asked.validation is None else asked.validation.fraction
    if data is not None and fraction is not None and not 0 < _kept(data, fraction) < data.rows:
        detail = f"{fraction} of {data.rows} rows leave none for the validation, or none for the training"
        errors.append(FieldError("/validation/fraction", "invalid", detail))
    return data, found.get(VALIDATION)


def _named(asked: schemas.CreateJob) -> dict[str, str]:
    """JSON pointer -> id of the dataset that the request names there."""
    of_validation = None if asked.validation is None else asked.validation.dataset_id
    return {TRAINING: asked.dataset_id} | ({} if of_validation is None else {VALIDATION: of_validation})


def _unknown(pointer: str) -> FieldError:
    return FieldError(pointer, "not-found", "there is no dataset with this id")


def _kept(data: Dataset, fraction: float) -> int:
    """The number of rows for the validation."""
    return round(data.rows * fraction)


async def _found(request: Request, asked: schemas.CreateJob, errors: list[FieldError]) -> Session:
    """The open session that the request names. Raises HttpProblem with `errors` if there are any before that."""
    if asked.session_id is not None:
        try:
            session = await sessions(request).find(tenant(), asked.session_id)
        except HttpProblem as problem:
            if problem.code not in ("not-found", "gone"):
                raise
            errors.append(FieldError("/session_id", problem.code, problem.detail))
        else:
            if session.job is not None:
                raise session_in_use(session.job)
            if not errors:
                return session
    raise _refused(errors)


async def _checked(
    request: Request,
    asked: schemas.CreateJob,
    id: str,
    session: Session,
    data: Dataset | None,
    validation: Dataset | None,
    errors: list[FieldError],
) -> Job:
    """The job, after the worker has compared its data with the feeds of the session. Raises HttpProblem."""
    if session.about.get("loss") is None:
        place = "/session_id" if asked.from_checkpoint is None else "/from_checkpoint"
        errors.append(FieldError(place, "invalid", "the session has targets; a job needs a loss"))
    if data is None or errors:
        raise _refused(errors)
    kept = 0
    if asked.validation is not None and asked.validation.fraction is not None:
        kept = _kept(data, asked.validation.fraction)
    reply = await _compared(request, asked, session, data, validation, kept)
    fit = _fit(asked, data, kept, reply.result)
    sampling = Sampling(data.rows, fit["batch_size"], fit["drop_last"], fit["shuffle"], fit["seed"], kept)
    steps = asked.steps if asked.steps is not None else (asked.epochs or 1) * sampling.batches
    if steps > MOST_STEPS:
        raise _refused([FieldError("/epochs", "too_large", f"{steps} steps are more than {MOST_STEPS}")])
    every = sampling.batches if asked.validation is None else asked.validation.every or sampling.batches
    loss, saves, now = session.about["loss"], asked.save_every, time.time()
    spec = Spec(
        program_id=session.program_id,
        dataset_id=data.id,
        loss=loss,
        data=fit,
        steps=steps,
        every=every,
        metrics=[name for name in dict.fromkeys(asked.metrics) if name != loss],
        require_finite=asked.require_finite,
        validation=None if asked.validation is None else _judged(fit, validation, every),
        early_stop=_early_stop(asked, loss),
        checkpoint_steps=None if saves is None else saves.steps,
        checkpoint_s=None if saves is None else saves.seconds,
        checkpoint_best=saves is not None and saves.best,
        checkpoint_keep=None if saves is None else saves.keep,
        deadline_s=asked.deadline_s,
        base_step=session.step,
        opened=asked.session_id is None,
        name=asked.name,
        labels=asked.labels,
    )
    job = Job(id, session.tenant, session.id, spec, asked.priority, now, now)
    job.progress.seq = session.seq
    return job


def _fit(asked: schemas.CreateJob, data: Dataset, kept: int, found: Mapping[str, Any]) -> dict[str, Any]:
    """The data of the calls that train. kept: rows for the validation. found: the answer of `_compared`."""
    return {
        "key": data.key,
        "rows": data.rows,
        "columns": found["columns"],
        "batch_size": found["batch_size"],
        "drop_last": found["drop_last"],
        "shuffle": asked.shuffle,
        "seed": asked.init.seed if asked.seed is None else asked.seed,
        "holdout": kept,
    }


def _judged(fit: dict[str, Any], validation: Dataset | None, every: int) -> Validation:
    """The validation on rows of its own dataset, or on those that the training leaves out."""
    if validation is None:
        return Validation(fit, fit["holdout"], every)
    data = {**fit, "key": validation.key, "rows": validation.rows, "shuffle": False}
    return Validation(data, validation.rows, every, validation.id)


async def _compared(
    request: Request, asked: schemas.CreateJob, session: Session, data: Dataset, validation: Dataset | None, kept: int
) -> Reply:
    """The answer of the worker to the check. Raises HttpProblem with the places of all mistakes."""
    args: dict[str, Any] = {
        "data": {"key": data.key, "rows": data.rows, "holdout": kept},
        "validation": None if validation is None else {"key": validation.key, "rows": validation.rows},
        "feeds": asked.feeds,
        "batch_size": asked.batch_size,
        "drop_last": asked.drop_last,
        "metrics": asked.metrics,
    }
    try:
        return await sessions(request).read(session, "session.check_fit", args, {}, settings(request).step_deadline)
    except RemoteError as error:
        if error.kind == "program":
            raise from_remote(error) from error
        gone = [pointer for pointer, id in _named(asked).items() if not await datasets(request).get(tenant(), id)]
        if gone:  # deleted since they were found
            raise _refused([_unknown(pointer) for pointer in gone]) from error
        raise


def _early_stop(asked: schemas.CreateJob, loss: str) -> EarlyStop | None:
    rule = asked.early_stop
    if rule is None:
        return None
    metric = rule.metric or ("loss" if asked.validation is None else "validation/loss")
    if metric in (loss, "validation/loss"):  # the loss may be a variable of another name
        metric = "loss" if metric == loss else f"validation/{loss}"
    return EarlyStop(metric, rule.patience, rule.min_delta, rule.mode)


def _refused(errors: list[FieldError]) -> HttpProblem:
    count = "one value is" if len(errors) == 1 else f"{len(errors)} values are"
    first = f": {errors[0].pointer}: {errors[0].detail}" if errors else ""
    return HttpProblem("invalid-request", f"{count} not valid{first}", errors=errors)
