"""The sample session, tape, dataset, upload, operation and checkpoint of the documentation.

Their ids are constant, so that every form of the API page can be sent as it is. They are made when a request first
names them, and again after they were closed, deleted, expired or lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from fastapi import Request

from service.caller import tenant
from service.http.recorded import Recorded
from service.http.request_body import JSON, Body
from service.problems import HttpProblem
from service.routes import on_tape, sessions, state, tapes
from service.routes.sample_checkpoint import keep_sample
from service.routes.sample_data import restore_dataset, restore_upload
from service.routes.sample_job import cancel_job, restore_job
from service.schemas import sessions as session_schemas
from service.schemas import tapes as tape_schemas
from service.schemas.examples import (
    SAMPLE_DATASET,
    SAMPLE_JOB,
    SAMPLE_LINE,
    SAMPLE_OPERATION,
    SAMPLE_SESSION,
    SAMPLE_SETTINGS,
    SAMPLE_TAPE,
    SAMPLE_UPLOAD,
)
from service.sessions.tape import OpenTape

__all__ = ["restored_samples"]


async def restored_samples(request: Request) -> None:
    """A dependency of every route: open the sample that the path names, unless it is open. Raises EngineError, or
    HttpProblem if it cannot be opened."""
    try:
        await _restored(request)
    except HttpProblem as problem:
        if problem.code != "quota-exceeded" or request.method not in MAKING_NOTHING:
            raise
        raise HttpProblem("not-found", f"the sample is not there, and cannot be made: {problem.detail}") from problem


MAKING_NOTHING = ("GET", "HEAD", "DELETE")
"""Methods of requests that no quota of things refuses."""


async def _restored(request: Request) -> None:
    named = request.path_params
    if "checkpoint_id" in named:
        await keep_sample(request, named["checkpoint_id"])
    for (parameter, sample), restore in RESTORING.items():
        if named.get(parameter) == sample:
            async with state.samples_lock(request):
                await restore(request)


SAMPLE_ANSWER = Recorded(200, {"content-type": JSON}, (b'{"sample":"the answer of a call"}',))


async def _restore_session(request: Request) -> None:
    if not state.sessions(request).is_open(tenant(), SAMPLE_SESSION):
        asked = session_schemas.CreateSession.model_validate(SAMPLE_SETTINGS)
        await sessions.open_session(request, Body(SAMPLE_SETTINGS, {}, JSON, b""), asked, SAMPLE_SESSION)


async def _restore_tape(request: Request) -> None:
    registry = state.tapes(request)
    if not registry.is_open(tenant(), SAMPLE_TAPE):
        await tapes.open_tape(request, tape_schemas.CreateTape.model_validate({}), SAMPLE_TAPE)
    tape = await registry.find(tenant(), SAMPLE_TAPE)
    assert isinstance(tape, OpenTape)
    if tape.ops == 0:
        asked = tape_schemas.AppendOps.model_validate(SAMPLE_LINE)
        await on_tape.append(request, tape, Body(SAMPLE_LINE, {}, JSON, b""), asked, as_file=False)


async def _restore_dataset(request: Request) -> None:
    await restore_dataset(request)
    if request.method == "DELETE":
        await cancel_job(request)  # it uses the dataset, and waits until it is resumed


async def _restore_operation(request: Request) -> None:
    await state.operations(request).keep(SAMPLE_OPERATION, "GET /v1", SAMPLE_ANSWER)


RESTORING: Mapping[tuple[str, str], Callable[[Request], Awaitable[None]]] = {
    ("session_id", SAMPLE_SESSION): _restore_session,
    ("tape_id", SAMPLE_TAPE): _restore_tape,
    ("job_id", SAMPLE_JOB): restore_job,
    ("dataset_id", SAMPLE_DATASET): _restore_dataset,
    ("upload_id", SAMPLE_UPLOAD): restore_upload,
    ("operation_id", SAMPLE_OPERATION): _restore_operation,
}
"""Parameter of a path, and the id of a sample -> the function that makes the sample unless it is there."""
