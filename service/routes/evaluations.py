"""Forward passes of registered programs: the service keeps no values."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.http.request_body import SAFETENSORS, read_body, wanted_form
from service.http.tensor_payloads import render
from service.routes.at_values import call_at_values, registered
from service.routes.common import Profiled
from service.routes.documented import HOT_PROBLEMS, accepts, answers
from service.routes.gradients import ANSWER as GRADIENTS_ANSWER
from service.routes.named_programs import ProgramId, program
from service.routes.state import settings
from service.schemas.evaluations import ProgramEvaluationAnswer, ProgramEvaluationRequest
from service.schemas.examples import REGRESSION_FEEDS, REGRESSION_PARAMETERS

__all__ = ["router"]

router = APIRouter(prefix="/v1/programs", tags=["programs"])

VALUES = {"feeds": {"x": REGRESSION_FEEDS["x"]}, "parameters": REGRESSION_PARAMETERS, "fetch": ["prediction"]}
OF_GRADIENTS = ("loss", "gradients", "recorded", "states", "gradient_norms")
ANSWER = {name: value for name, value in GRADIENTS_ANSWER.items() if name not in OF_GRADIENTS}


@router.post(
    "/{program_id}/evaluations",
    summary="Run the forward pass of a registered program",
    responses=answers(ProgramEvaluationAnswer, ANSWER, "not-found", "invalid-program", *HOT_PROBLEMS),
    openapi_extra=accepts(ProgramEvaluationRequest, regression=("Predictions", VALUES)),
)
async def evaluate_program(request: Request, program_id: ProgramId, profile: Profiled = False) -> Response:
    """Compute the variables of `fetch`, such as predictions, at the given values. The service keeps nothing.

    Feeds that the fetched values do not need may be left out. Parameters and states that are not in the request have
    the initial values of the program.
    """
    form = wanted_form(request)
    stored = await program(request, program_id)
    body = await read_body(request, settings(request))
    asked = body.read_as(ProgramEvaluationRequest)
    args = {
        "fetch": asked.fetch,
        "for_test": asked.for_test,
        "seed": asked.seed,
        "step": asked.step,
        "compile": asked.compile,
        "profile": profile,
    }
    call = await call_at_values(request, registered(stored), "evaluate", body, asked, lambda names: args)
    reply = await call.reply()
    return (await render(reply, reply.result, as_file=form == SAFETENSORS, members={"fetched": {}})).response()
