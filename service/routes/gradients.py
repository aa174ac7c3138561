"""One-shot gradients: the service keeps no values, so the same request always has the same answer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fastapi import APIRouter, Request, Response

from service.http.ndjson_stream import GradientStream
from service.http.request_body import NDJSON, SAFETENSORS, Body, read_body, wanted_form
from service.http.tensor_payloads import render
from service.problems import responses, wrong_member
from service.routes.at_values import Called, call_at_values, registered
from service.routes.common import Profiled
from service.routes.documented import HOT_PROBLEMS, accepts, answers, lines
from service.routes.named_programs import ProgramId, named_program, program
from service.routes.state import settings
from service.schemas.examples import REGRESSION, REGRESSION_FEEDS, REGRESSION_ID, REGRESSION_PARAMETERS
from service.schemas.gradients import GradientsAnswer, GradientsRequest, InlineGradientsRequest

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["gradients"])

PROBLEMS = ("invalid-program", "no-gradient", "values-damaged", *HOT_PROBLEMS)
VALUES = {"loss": "loss", "feeds": REGRESSION_FEEDS, "parameters": REGRESSION_PARAMETERS, "fetch": ["prediction"]}
ANSWER = {
    "loss": {"dtype": "float32", "shape": [], "data": [1.61]},
    "gradients": {
        "w": {"dtype": "float32", "shape": [2, 1], "data": [-7.533333, -9.866667]},
        "b": {"dtype": "float32", "shape": [1], "data": [-2.3333333]},
    },
    "fetched": {"prediction": {"dtype": "float32", "shape": [3, 1], "data": [-0.3, -0.5, -0.7]}},
    "recorded": {},
    "states": {},
    "finite": True,
    "missing": {},
    "sparse": {},
    "densified": [],
    "messages": [],
    "messages_left_out": 0,
    "gradient_norms": {"w": 12.414, "b": 2.333, "global": 12.631},
    "compiled": True,
    "timing_ms": {"queue": 0.1, "transfer_in": 0.1, "compute": 2.4, "transfer_out": 0.1, "total": 3.0},
}
MEMBERS: dict[str, Any] = {"loss": None, "fetched": {}, "recorded": {}, "states": {}}
LINES = lines(ANSWER, b=12, w=13)


@router.post(
    "/gradients",
    summary="Compute gradients of a program in the request",
    responses=answers(GradientsAnswer, ANSWER, *PROBLEMS, stream=LINES) | responses("not-found"),
    openapi_extra=accepts(
        InlineGradientsRequest,
        regression=("A program with values", {"program": REGRESSION, **VALUES}),
        registered=("The id of a registered program", {"program_id": REGRESSION_ID, **VALUES}),
    ),
)
async def compute_gradients(request: Request, profile: Profiled = False) -> Response:
    """Compile the program and run it forward and backward once. The service keeps no values.

    With `Accept: application/x-ndjson` the answer is a stream of JSON lines: one for each gradient as soon as it is
    final, those of the last layers first, then one with the rest of the answer or with a problem. Closing the
    connection cancels the call.

    A call that is repeated with other values of the same shapes runs several times faster with `compile: always`, and
    one that is repeated with feeds of other sizes with `compile: dynamic`.
    """
    form = wanted_form(request, NDJSON)
    body = await read_body(request, settings(request))
    asked = body.read_as(InlineGradientsRequest)
    given, stored = await named_program(request, asked.program, asked.program_id)
    called = Called(given, stored, asked.program_id, in_body=True)
    return await _gradients(request, body, asked, called, form, profile)


@router.post(
    "/programs/{program_id}/gradients",
    summary="Compute gradients of a registered program",
    responses=answers(GradientsAnswer, ANSWER, *PROBLEMS, stream=LINES) | responses("not-found"),
    openapi_extra=accepts(GradientsRequest, regression=("Linear regression", VALUES)),
)
async def compute_program_gradients(request: Request, program_id: ProgramId, profile: Profiled = False) -> Response:
    """As `POST /v1/gradients`, with only values in the request. The answer can be streamed too.

    Parameters and states that are not in the request have the initial values of the program.
    """
    form = wanted_form(request, NDJSON)
    stored = await program(request, program_id)
    body = await read_body(request, settings(request))
    asked = body.read_as(GradientsRequest)
    return await _gradients(request, body, asked, registered(stored), form, profile)


async def _gradients(
    request: Request, body: Body, asked: GradientsRequest, called: Called, form: str, profile: bool
) -> Response:
    query = asked.query()

    def args(names: Collection[str]) -> dict[str, Any]:
        return {
            "query": query | {"target_gradients": _given_cotangents(asked, query["targets"], names)},
            "fetch": asked.fetch,
            "seed": asked.seed,
            "step": asked.step,
            "compile": asked.compile,
            "returned": asked.return_gradients,
            "stream": form == NDJSON,
            "profile": profile,
        }

    cotangents = {str(i): value for i, value in enumerate(asked.target_gradients) if value is not None}
    call = await call_at_values(request, called, "gradients", body, asked, args, cotangents)
    if form == NDJSON:
        return GradientStream(call.reply, dict, MEMBERS)
    reply = await call.reply()
    answer = await render(reply, reply.result, as_file=form == SAFETENSORS, members={**MEMBERS, "gradients": {}})
    return answer.response()


def _given_cotangents(asked: GradientsRequest, targets: list[str], given: Collection[str]) -> list[bool]:
    """For each target whether its cotangent is among the values; an empty list if none is."""
    if len(asked.target_gradients) > len(targets):
        detail = f"{len(asked.target_gradients)} target gradients are given for {len(targets)} targets"
        raise wrong_member("/target_gradients", detail, "too_long")
    cotangents = [f"target_gradients/{i}" in given for i in range(len(targets))]
    return cotangents if any(cotangents) else []
