"""Jobs: submit, list, steer and delete them; their events and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from service.caller import tenant
from service.http.entity_tags import VARIES, any_tag, check_if_match, of_view
from service.http.request_body import JSON, header_of, read_body
from service.http.sse import EVENT_STREAM, EventStream, last_event_id
from service.jobs import JOB_ID, Job, checkpoint_id
from service.jobs.curves import Row, joined, thinned
from service.jobs.job import Action
from service.jobs.runner import Runner
from service.jobs.stream import JobEvents
from service.jobs.waiting import waiting_of
from service.problems import responses, wrong_parameter
from service.routes.checkpoints import PageSize, PageToken, page_of
from service.routes.common import WithLabels, cut_page, json_answer, page_token_of
from service.routes.documented import HOT_PROBLEMS, accepts, empty_answer
from service.routes.job_submission import submitted
from service.routes.preconditions import IF_MATCH, TAGGED, if_match, tagged
from service.routes.sample_job import shown_id, stored_id
from service.routes.state import job_store, quotas, runner, settings, streams
from service.schemas import jobs as schemas
from service.schemas.checkpoints import CheckpointPage
from service.schemas.examples import REGRESSION_ID, SAMPLE_DATASET, SAMPLE_JOB, SAMPLE_JOB_SETTINGS

__all__ = ["router"]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

JobId = Annotated[
    str,
    Path(
        pattern=JOB_ID,
        description="Id of a job.",
        openapi_examples={"sample": {"summary": "The sample job", "value": SAMPLE_JOB}},
    ),
]
VIEW: dict[str, Any] = {
    "id": "job_mfrggzdfmztwq2lknnwg23tpob",
    "name": "line",
    "labels": {},
    "state": "queued",
    "reason": None,
    "asked": None,
    "error": None,
    "priority": 5,
    "queue_position": 0,
    "waiting": {"reason": "turn", "detail": "it is the first in the queue", "since": 1767225600.0},
    "program_id": REGRESSION_ID,
    "session_id": "ses_mfrggzdfmztwq2lknnwg23tpob",
    "dataset_id": SAMPLE_DATASET,
    "columns": {"x": ["x"], "y": ["y"]},
    "batch_size": 2,
    "step": 0,
    "steps": 12,
    "epoch": 0.0,
    "steps_per_epoch": 4,
    "samples": 0,
    "rate": 0.0,
    "eta_s": None,
    "compute_s": 0.0,
    "running_s": 0.0,
    "metrics": {},
    "validation": {},
    "validated_at": None,
    "best": None,
    "created": 1767225600.0,
    "started": None,
    "ended": None,
    "deadline": None,
}
EVENTS = {
    "events": [{"id": 1, "kind": "state", "data": {"time": 1767225600.0, "state": "queued", "reason": None}}],
    "oldest": 1,
    "newest": 1,
    "ended": False,
}
METRICS = {
    "step": [1, 2],
    "columns": {"loss": [1.61, 1.58], "gradient_norm": [12.63, 12.4], "learning_rate": [0.01, 0.01]},
    "validation": {},
}
STREAM = 'id: 1\nevent: state\ndata: {"time":1767225600.0,"state":"queued","reason":null}\n\n'


@router.post(
    "",
    summary="Submit a job",
    status_code=201,
    response_model=schemas.JobView,
    responses={
        201: {"description": "The job is queued.", "content": {JSON: {"example": VIEW}}},
        **responses(
            "not-found",
            "invalid-program",
            "no-gradient",
            "quota-exceeded",
            "gone",
            "in-use",
            "rolled-back",
            "recovering",
            "checkpoint-damaged",
            "values-damaged",
            "storage-full",
            *HOT_PROBLEMS,
        ),
    },
    openapi_extra=accepts(
        schemas.CreateJob, regression=("Linear regression on the sample dataset", SAMPLE_JOB_SETTINGS)
    ),
)
async def create_job(request: Request) -> Response:
    """Train a session on a dataset, in the queue of the service. The job is checked completely before it is accepted.

    Its batches do not cross HTTP. It survives restarts of the service and ends with the same numbers.
    """
    body = await read_body(request, settings(request))
    asked = body.read_as(schemas.CreateJob)
    async with quotas(request).room_for(tenant(), "jobs", 1) as check:
        job = await submitted(request, body, asked, check=check)
    return await _answered(request, job, 201, {"Location": f"/v1/jobs/{job.id}"})


@router.get("", summary="List jobs", response_model=schemas.JobPage, responses=responses("invalid-request"))
async def list_jobs(
    request: Request,
    state: Annotated[schemas.State | None, Query(description="Only jobs in this state.")] = None,
    label: WithLabels = None,
    page_size: Annotated[int, Query(ge=1, le=200, description="Largest number of jobs in the answer.")] = 50,
    page_token: Annotated[str, page_token_of(r"job_[a-z2-7]{26}")] = "",
) -> Response:
    """One page of the jobs, the newest first."""
    found = await job_store(request).page(tenant(), page_token, page_size + 1, state, label or ())
    page, token = cut_page(found, page_size, page_token)
    positions = await job_store(request).positions(page)
    shown = [_view(job, positions, runner(request)) for job in page]
    return json_answer({"jobs": shown, "next_page_token": token})


@router.get(
    "/{job_id}",
    summary="Read a job",
    response_model=schemas.JobView,
    responses={
        200: {"description": "The job.", "content": {JSON: {"example": VIEW}}},
        **TAGGED,
        **responses("not-found", "invalid-request"),
    },
)
async def get_job(request: Request, job_id: JobId) -> Response:
    """State, position and last metrics of the job. The ETag is another one when any of them has changed."""
    job = await job_store(request).get(tenant(), stored_id(job_id))
    view = _view(job, await job_store(request).positions([job]), runner(request))
    return tagged(request, view, of_view(view), "job")


async def _asked(request: Request, id: str, action: Action) -> Response:
    job = await job_store(request).ask(tenant(), stored_id(id), action, _accepted(request))
    runner(request).wake(job)
    return await _answered(request, job)


def _accepted(request: Request) -> Callable[[Job, Mapping[str, int]], None] | None:
    """A check of a job that a request is about to change, from its position in the queue. It raises HttpProblem 412."""
    accepts = if_match(request)
    if accepts is any_tag:
        return None
    return lambda job, positions: check_if_match(accepts, of_view(_view(job, positions, runner(request))), "job")


CHANGED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The job after the request.", "content": {JSON: {"example": VIEW}}},
    **responses("not-found", "invalid-state", "precondition-failed", "invalid-request"),
}


@router.post(
    "/{job_id}/cancel",
    summary="Cancel a job",
    response_model=schemas.JobView,
    responses=CHANGED,
    openapi_extra=IF_MATCH,
)
async def cancel_job(request: Request, job_id: JobId) -> Response:
    """End the job after its running call, which takes part of a second. Its session keeps the steps that were done.

    Safe to repeat.
    """
    return await _asked(request, job_id, "cancel")


@router.post(
    "/{job_id}/pause",
    summary="Pause a job",
    response_model=schemas.JobView,
    responses=CHANGED,
    openapi_extra=IF_MATCH,
)
async def pause_job(request: Request, job_id: JobId) -> Response:
    """Let the job wait after its running call, until it is resumed. A pause changes no number. Safe to repeat."""
    return await _asked(request, job_id, "pause")


@router.post(
    "/{job_id}/resume",
    summary="Resume a job",
    response_model=schemas.JobView,
    responses=CHANGED,
    openapi_extra=IF_MATCH,
)
async def resume_job(request: Request, job_id: JobId) -> Response:
    """Let a paused job join the queue again. Safe to repeat."""
    return await _asked(request, job_id, "resume")


@router.get(
    "/{job_id}/events",
    summary="Read or follow the events of a job",
    response_model=schemas.JobEvents,
    responses={
        200: {
            "description": "The events.",
            "content": {JSON: {"example": EVENTS}, EVENT_STREAM: {"schema": {"type": "string"}, "example": STREAM}},
        },
        204: {"description": "The job has ended, and the client has all its events: do not connect again."},
        **responses("not-found", "invalid-request", "quota-exceeded", "draining"),
    },
    openapi_extra={
        "parameters": [
            {
                "name": "Last-Event-ID",
                "in": "header",
                "schema": {"type": "string"},
                "description": "Number of the last event that the client has, in place of `after`.",
            }
        ]
    },
)
async def get_job_events(
    request: Request,
    job_id: JobId,
    after: Annotated[int, Query(ge=0, le=2**53, description="Number of the last event that the client has.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most events in the answer.")] = 200,
) -> Response:
    """One page of events as JSON; with `Accept: text/event-stream` server-sent events, until the job has ended.

    A stream that breaks goes on with `Last-Event-ID`. The event `reset` says that events before its `oldest` are not
    kept any more, `shutdown` that the service stops.
    """
    job = await job_store(request).get(tenant(), stored_id(job_id))
    after = last_event_id(request, after)
    if EVENT_STREAM not in header_of(request, b"accept"):
        page = await job_store(request).events(job.id, after, limit)
        found = [{"id": each.id, "kind": each.kind, "data": each.data} for each in page.events]
        events = {"events": found, "oldest": page.oldest, "newest": page.newest, "ended": page.ended}
        return json_answer(events, headers=VARIES)
    source = JobEvents(job_store(request), runner(request).bell, job.id)
    page = await source.after(after, 1)
    if page.ended and after == page.newest:
        return Response(status_code=204, headers=VARIES)
    return EventStream(streams(request), tenant(), source, after)


@router.get(
    "/{job_id}/metrics",
    summary="Read the curves of a job",
    response_model=schemas.JobMetrics,
    responses={
        200: {"description": "The curves.", "content": {JSON: {"example": METRICS}}},
        **TAGGED,
        **responses("not-found", "invalid-request"),
    },
)
async def get_job_metrics(
    request: Request,
    job_id: JobId,
    points: Annotated[int, Query(ge=1, le=100_000, description="Most points of a curve.")] = 1000,
    first: Annotated[int, Query(ge=1, le=2**53, description="First step.")] = 1,
    last: Annotated[int | None, Query(ge=1, le=2**53, description="Last step; by default that of the job.")] = None,
) -> Response:
    """Loss, gradient norm, learning rate and metrics of the steps, as columns; and the metrics of validations."""
    job = await job_store(request).get(tenant(), stored_id(job_id))
    if last is not None and first > last:
        raise wrong_parameter("query: first", "first is after last", "out_of_range")
    training = await job_store(request).curves(job.id, "training", first, last)
    validation = await job_store(request).curves(job.id, "validation", first, last)
    return await asyncio.to_thread(_curves, request, training, validation, first, last, points)


def _curves(
    request: Request, training: Sequence[Row], validation: Sequence[Row], first: int, last: int | None, points: int
) -> Response:
    """The answer with the curves. A million steps take tenths of a second."""
    steps, columns = joined(training)
    inside = (steps >= first) & (steps <= (last or 2**53))
    steps, columns = thinned(steps[inside], {name: values[inside] for name, values in columns.items()}, points)
    at, validated = joined(validation)
    view = {"step": steps, "columns": columns, "validation": {"step": at, **validated} if validated else {}}
    return tagged(request, view, of_view(view), "curves")


@router.get(
    "/{job_id}/checkpoints",
    summary="List the checkpoints of a job",
    response_model=CheckpointPage,
    responses=responses("not-found", "invalid-request"),
)
async def list_job_checkpoints(
    request: Request,
    job_id: JobId,
    label: WithLabels = None,
    page_size: PageSize = 50,
    page_token: PageToken = "",
) -> Response:
    """One page of the checkpoints of the job's session, the newest first. They outlive the job and the session."""
    job = await job_store(request).get(tenant(), stored_id(job_id))
    return await page_of(request, page_size, page_token, job.session, label or ())


@router.delete(
    "/{job_id}",
    summary="Delete a job",
    status_code=204,
    responses=empty_answer(
        "The job is deleted.", "not-found", "invalid-state", "precondition-failed", "invalid-request"
    ),
    openapi_extra=IF_MATCH,
)
async def delete_job(request: Request, job_id: JobId) -> Response:
    """Delete an ended job with its events and metrics. Its session and its checkpoints stay."""
    job = await job_store(request).remove(tenant(), stored_id(job_id), _accepted(request))
    runner(request).wake(job)
    return Response(status_code=204)


async def _answered(
    request: Request, job: Job, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """The job as the answer to a call that changed it."""
    view = _view(job, await job_store(request).positions([job]), runner(request))
    return json_answer(view, status, {"ETag": of_view(view), **(headers or {})})


def _view(job: Job, positions: Mapping[str, int], runner: Runner) -> dict[str, Any]:
    spec, at = job.spec, job.progress
    position = positions.get(job.id)
    left = spec.steps - at.step
    judged, best = at.judged, None
    if judged.best is not None:
        saved = spec.checkpoint_best and at.best_saved_at == judged.best_step
        kept = checkpoint_id(job.id, judged.best_step) if saved else None
        best = {"value": judged.best, "step": judged.best_step, "since": judged.since, "checkpoint_id": kept}
    return {
        "id": shown_id(job),
        "name": spec.name,
        "labels": spec.labels,
        "state": job.state,
        "reason": job.reason,
        "asked": job.asked,
        "error": job.error,
        "priority": job.priority,
        "queue_position": position,
        "waiting": waiting_of(job, position, runner.bar(job.tenant)),
        "program_id": spec.program_id,
        "session_id": job.session,
        "dataset_id": spec.dataset_id,
        "columns": spec.data["columns"],
        "batch_size": spec.data["batch_size"],
        "step": at.step,
        "steps": spec.steps,
        "epoch": at.step / spec.sampling.batches,
        "steps_per_epoch": spec.sampling.batches,
        "samples": at.samples,
        "rate": at.rate,
        "eta_s": left / at.rate if job.state == "running" and at.rate > 0 else None,
        "compute_s": at.compute_s,
        "running_s": at.running_s,
        "metrics": at.last,
        "validation": at.validated,
        "validated_at": at.validated_at or None,
        "best": best,
        "created": job.created,
        "started": job.started,
        "ended": job.ended,
        "deadline": None if spec.deadline_s is None else job.created + spec.deadline_s,
    }
