"""The sample job of the documentation: it waits until it is resumed, and is made again after its end."""

from __future__ import annotations

from fastapi import Request

from service.caller import tenant
from service.http.request_body import JSON, Body
from service.ids import Repeatable
from service.jobs import ENDED, Job
from service.problems import HttpProblem
from service.routes.job_submission import submitted
from service.routes.state import job_store, runner
from service.schemas.examples import SAMPLE_JOB, SAMPLE_JOB_SETTINGS
from service.schemas.jobs import CreateJob

__all__ = ["cancel_job", "restore_job", "shown_id", "stored_id"]


def stored_id(id: str) -> str:
    """The id of the job in the store: each tenant has a sample job of its own."""
    return _sample_of(tenant()) if id == SAMPLE_JOB else id


def shown_id(job: Job) -> str:
    """The id of the job for its client: that of the sample job is the one of the documentation."""
    return SAMPLE_JOB if job.id == _sample_of(job.tenant) else job.id


def _sample_of(owner: str) -> str:
    return Repeatable(f"{owner}\0{SAMPLE_JOB}".encode()).made("job_")


async def _found(request: Request) -> Job | None:
    try:
        return await job_store(request).get(tenant(), stored_id(SAMPLE_JOB))
    except HttpProblem:
        return None


async def cancel_job(request: Request) -> None:
    """Cancel the sample job of the caller, and wait for its end. Nothing happens if there is none, or it has ended."""
    found = await _found(request)
    if found is not None:
        await _end(request, found)


async def _end(request: Request, job: Job) -> None:
    if job.state not in ENDED:
        try:
            runner(request).wake(await job_store(request).ask(job.tenant, job.id, "cancel"))
        except HttpProblem as problem:
            if problem.code != "invalid-state":  # it has just ended by itself
                raise
        await runner(request).ended(job.id)


async def restore_job(request: Request) -> None:
    """Let the sample job of the caller be in a state in which it takes the request.

    A job that does not exist waits in the state paused. One that has ended is made again before it is paused, resumed
    or canceled. One that has not ended is canceled before it is deleted. Raises HttpProblem, EngineError.
    """
    owner, id, action = tenant(), stored_id(SAMPLE_JOB), request.url.path.rpartition("/")[2]
    found = await _found(request)
    if request.method == "DELETE":
        if found is not None:
            await _end(request, found)
            return
    elif found is not None and not (action in ("cancel", "pause", "resume") and found.state in ENDED):
        return
    if found is not None:
        await job_store(request).remove(owner, id)
    asked = CreateJob.model_validate(SAMPLE_JOB_SETTINGS)
    body = Body(SAMPLE_JOB_SETTINGS, {}, JSON, b"")
    job = await submitted(request, body, asked, id, paused=True)
    if request.method == "DELETE":
        await job_store(request).ask(owner, job.id, "cancel")
