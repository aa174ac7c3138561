"""Watching a session: the curves of its recent steps, and histograms of its parameters."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from service.caller import tenant
from service.http.entity_tags import VARIES
from service.http.given_values import told_in_query
from service.http.request_body import header_of
from service.http.sse import EVENT_STREAM, EventStream, last_event_id
from service.http.tensor_payloads import timing_of
from service.problems import responses
from service.routes.common import json_answer
from service.routes.in_session import AT, IN_SESSION, TIMING, SessionId, etag, shown
from service.routes.preconditions import IF_MATCH, if_match
from service.routes.state import live, sessions, settings, streams
from service.schemas.members import Dtype, Shape, Timing
from service.schemas.programs import Strict
from service.schemas.session_answers import Position
from service.sessions.live import MOST_POINTS, History, LivePoints

__all__ = ["router"]

router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

COLUMNS_EXAMPLE: dict[str, list[Any]] = {
    "point": [1, 2],
    "step": [1, 2],
    "time": [1767225600.0, 1767225600.1],
    "loss": [1.61, 1.24],
    "gradient_norm": [12.631, None],
    "learning_rate": [0.01, 0.01],
    "ms": [0.9, 0.2],
}
METRICS = {"session_id": "ses_mfrggzdfmztwq2lknnwg23tpob", "history": "9f1c02ab", "recorded": 2}
STREAM = f"id: 2\nevent: steps\ndata: {json.dumps({'history': '9f1c02ab', 'columns': COLUMNS_EXAMPLE})}\n\n"
HISTOGRAM = {
    "name": "w",
    "role": "parameter",
    "dtype": "float32",
    "shape": [2, 1],
    "count": 2,
    "zeros": 0,
    "nan": 0,
    "infinite": 0,
    "min": -0.2,
    "max": 0.1,
    "mean": -0.05,
    "std": 0.15,
    "counts": [1, 0, 0, 1],
}


class Curves(Strict):
    """Columns of equal length, one element for each point."""

    point: list[int] = Field(description="Numbers of the points: 1, 2, ... in the order of recording.")
    step: list[int] = Field(description="Number of updates after the step.")
    time: list[float] = Field(description="Time of the answer, in seconds since 1970.")
    loss: list[float | None] = Field(description="Loss before the update; null if it is not finite or not computed.")
    gradient_norm: list[float | None] = Field(
        description="Joint 2-norm of all gradients; null for steps whose answer has no norms."
    )
    learning_rate: list[float | None] = Field(description="Learning rate; of the first group if there are several.")
    ms: list[float | None] = Field(description="Milliseconds that the worker computed.")


class SessionMetrics(Strict):
    """The recent steps of a session."""

    session_id: str = Field(description="Id of the session.")
    history: str = Field(
        description="Identifies the numbering of points; it changes when the service starts again. Empty before the "
        "first step."
    )
    recorded: int = Field(description="Number of the last point: `after` of the next call.")
    columns: Curves = Field(description="The points, as columns.")


class ParameterHistogram(Strict):
    """The distribution of the elements of one parameter or state."""

    name: str = Field(description="Name of the parameter or state.")
    role: str = Field(description="Role of the variable: parameter or state.")
    dtype: Dtype
    shape: Shape
    count: int = Field(description="Number of elements.")
    zeros: int = Field(description="Number of elements that are zero.")
    nan: int = Field(description="Number of elements that are NaN.")
    infinite: int = Field(description="Number of infinite elements.")
    min: float | None = Field(description="Smallest finite element; null if no element is finite.")
    max: float | None = Field(description="Largest finite element; null if no element is finite.")
    mean: float | None = Field(description="Mean of the finite elements; null if there are none.")
    std: float | None = Field(
        description="Standard deviation of the finite elements; null if there are none or it is not finite."
    )
    counts: list[int] = Field(
        description="Number of finite elements in each of `bins` equal intervals from min to max. Complex elements "
        "count by their magnitude."
    )


class HistogramsAnswer(Position):
    """Histograms of parameters and states at `weights_version`."""

    histograms: list[ParameterHistogram] = Field(description="A histogram for each of `names`, in order.")
    timing_ms: Timing


@router.get(
    "/{session_id}/metrics",
    summary="Read the curves of a session",
    response_model=SessionMetrics,
    responses={
        200: {
            "description": "The recent steps, by column.",
            "content": {"application/json": {"example": {**METRICS, "columns": COLUMNS_EXAMPLE}}},
        },
        **responses("not-found", "gone", "invalid-request"),
    },
)
async def get_session_metrics(
    request: Request,
    session_id: SessionId,
    after: Annotated[int, Query(ge=0, le=2**53, description="Only points with greater numbers.")] = 0,
    points: Annotated[
        int,
        Query(
            ge=2,
            le=10_000,
            description="Largest number of points. Of more, each of equal intervals gives those of its lowest and its "
            "highest loss.",
        ),
    ] = 10_000,
) -> Response:
    """Loss, gradient norm, learning rate and time of the recent steps, without a call of the worker.

    The service keeps the last 5,000 steps of a session in memory, and of earlier ones every second, fourth, ...: the
    curves start again when the service does. Does not renew the lease.
    """
    session = await sessions(request).seen(tenant(), session_id, settings(request).step_deadline)
    history = live(request).history(session.key)
    return json_answer(_curves(session_id, history, after, points))


def _curves(id: str, history: History, after: int, points: int) -> dict[str, Any]:
    columns = history.columns(after, points)
    return {"session_id": id, "history": history.id, "recorded": history.recorded, "columns": columns}


@router.get(
    "/{session_id}/events",
    summary="Follow the curves of a session",
    response_model=SessionMetrics,
    responses={
        200: {
            "description": "The recent steps, or a stream of events.",
            "content": {EVENT_STREAM: {"schema": {"type": "string"}, "example": STREAM}},
        },
        **responses("not-found", "gone", "invalid-request", "quota-exceeded", "draining"),
    },
    openapi_extra={
        "parameters": [
            {
                "name": "Last-Event-ID",
                "in": "header",
                "schema": {"type": "string"},
                "description": "Number of the last point that the client has, in place of `after`.",
            }
        ]
    },
)
async def get_session_events(
    request: Request,
    session_id: SessionId,
    after: Annotated[int, Query(ge=0, le=2**53, description="Number of the last point that the client has.")] = 0,
) -> Response:
    """With `Accept: text/event-stream` events `steps`, at most ten a second, with the columns of the steps since the
    last one; else the answer of `GET .../metrics`.

    A stream that breaks goes on with `Last-Event-ID`. The event `reset` says that the numbers of points have started
    again, `shutdown` that the service stops. A stream ends after an hour, and with the event `closed` when its session
    is closed.
    """
    session = await sessions(request).seen(tenant(), session_id, settings(request).step_deadline)
    after = last_event_id(request, after)
    if EVENT_STREAM not in header_of(request, b"accept"):
        return json_answer(_curves(session_id, live(request).history(session.key), after, MOST_POINTS), headers=VARIES)
    source = LivePoints(live(request), session.key, sessions(request).why_closed)
    return EventStream(streams(request), tenant(), source, after)


@router.get(
    "/{session_id}/histograms",
    summary="Read histograms of the parameters",
    response_model=HistogramsAnswer,
    responses={
        200: {
            "description": "A histogram of each parameter and state.",
            "content": {"application/json": {"example": {"histograms": [HISTOGRAM], **AT, "timing_ms": TIMING}}},
        },
        **responses(*IN_SESSION),
    },
    openapi_extra=IF_MATCH,
)
async def get_session_histograms(
    request: Request,
    session_id: SessionId,
    names: Annotated[
        list[str] | None, Query(max_length=1000, description="Parameters and states; by default all.")
    ] = None,
    bins: Annotated[int, Query(ge=1, le=1000, description="Number of intervals.")] = 40,
) -> Response:
    """Counts, extremes and moments of the elements of each parameter and state, computed by the worker."""
    session = await sessions(request).find(tenant(), session_id, reads=True)
    deadline = settings(request).step_deadline
    with told_in_query("names", names or ()):
        args = {"names": names, "bins": bins}
        reply = await sessions(request).read(
            session, "session.histogram", args, {}, deadline, accepts=if_match(request)
        )
    return json_answer({**shown(reply.result), "timing_ms": timing_of(reply)}, headers={"ETag": etag(reply)})
