"""Programs as graphs."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from service.formats.graph import drawn
from service.http.codec import CODEC
from service.http.entity_tags import VARIES, known_before, unchanged
from service.http.given_values import told_in_query
from service.http.pieces import Part, PiecedResponse
from service.http.request_body import INLINE_BYTES, JSON, header_of
from service.problems import HttpProblem, responses
from service.routes.named_programs import ProgramId, program
from service.routes.programs import CACHED, asked_of, backward_of, tag_of
from service.routes.registration import WORKER_PROBLEMS
from service.schemas.components import model as reference
from service.schemas.gradients import Name, Question
from service.schemas.graph import ProgramGraph

__all__ = ["router"]

router = APIRouter(prefix="/v1/programs", tags=["programs"])

STATIC = "../../../static"
GRAPHVIZ, MERMAID, PAGE = "text/vnd.graphviz", "text/plain", "text/html"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


@router.get(
    "/{program_id}/graph",
    summary="Draw a program",
    response_class=Response,
    responses={
        200: {
            "description": "The graph in the media type of the Accept header.",
            "content": {
                JSON: {"schema": reference(ProgramGraph)},
                GRAPHVIZ: {"schema": {"type": "string"}},
                MERMAID: {"schema": {"type": "string"}},
                PAGE: {"schema": {"type": "string"}},
            },
        },
        304: {"description": "The graph is that of If-None-Match."},
        **responses(
            "not-found", "not-acceptable", "invalid-program", "no-gradient", "invalid-request", *WORKER_PROBLEMS
        ),
    },
)
async def get_program_graph(
    request: Request,
    program_id: ProgramId,
    loss: Annotated[
        Name | None, Query(description="Include the backward pass of this loss.", examples=["loss"])
    ] = None,
) -> Response:
    """The graph of ops and variables, in the closed form of the program. Each edge has the type of its variable.

    `kind` of a node is `forward` or `backward` for an op; `parameter`, `feed`, `state` or `variable` for a variable
    that enters a block; `loss` or `gradient` for a result. `of` lists the forward ops of a backward op, and the
    variable of a gradient. Inner blocks are in `blocks`, each with the id of its op (`owner`).

    The Accept header selects the form: `text/vnd.graphviz` for Graphviz, `text/plain` for Mermaid, `text/html` for a
    page that draws the graph in the browser, `application/json` for nodes and edges. The page has the backward pass
    beside the forward pass, folds blocks, and searches names.
    """
    form = _form(header_of(request, b"accept").strip() or "*/*")
    stored = await program(request, program_id)
    tag = tag_of(request, form)
    headers = {"ETag": tag, **CACHED}
    if (known := known_before(request, tag, CACHED)) is not None:
        return known
    if loss is None:
        answer = await asked_of(request, "graph", stored.program, {})
    else:
        with told_in_query():
            answer = await backward_of(request, stored, Question.model_validate({"loss": loss}))
    if (known := unchanged(request, tag, "program", CACHED)) is not None:
        return known
    if form == PAGE:
        headers["Content-Security-Policy"] = POLICY
    return PiecedResponse([await _drawn(answer, form, f"Program {program_id}")], 200, headers, form)


async def _drawn(answer: np.ndarray, form: str, title: str) -> Part:
    codec = CODEC.get()
    if len(answer) > INLINE_BYTES and codec is not None:
        return await codec.drawn(answer, form, title, STATIC)
    return drawn(answer.data, form, title, STATIC)


def _form(accept: str) -> str:
    """The first supported media type of the Accept header; JSON for `*/*`. Raises HttpProblem 406."""
    for item in accept.split(","):
        wanted = item.split(";")[0].strip().lower()
        if wanted in (JSON, GRAPHVIZ, MERMAID, PAGE):
            return wanted
        if wanted in ("*/*", "application/*"):
            return JSON
        if wanted == "text/*":
            return MERMAID
    raise HttpProblem("not-acceptable", f"a graph can be {JSON}, {GRAPHVIZ}, {MERMAID} or {PAGE}", headers=VARIES)
