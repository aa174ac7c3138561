"""Programs as graphs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.formats import json_tensors as tensors
from service.formats.graph import as_graphviz, as_mermaid, as_page, graph_of
from service.http.request_body import JSON
from service.problems import HttpProblem, responses
from service.routes.common import ProgramId, program
from service.routes.programs import WORKER_PROBLEMS, backward_of
from service.schemas.gradients import Question

__all__ = ["router"]

router = APIRouter(prefix="/v1/programs", tags=["programs"])

GRAPHVIZ, MERMAID, PAGE = "text/vnd.graphviz", "text/plain", "text/html"
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src data:; frame-ancestors 'none'"
)


@router.get(
    "/{program_id}/graph",
    summary="Draw a program",
    response_class=Response,
    responses={
        200: {
            "description": "The graph in the media type of the Accept header.",
            "content": {
                JSON: {},
                GRAPHVIZ: {"schema": {"type": "string"}},
                MERMAID: {"schema": {"type": "string"}},
                PAGE: {"schema": {"type": "string"}},
            },
        },
        **responses(
            "not-found", "not-acceptable", "invalid-program", "no-gradient", "invalid-request", *WORKER_PROBLEMS
        ),
    },
)
async def get_graph(
    request: Request,
    program_id: ProgramId,
    loss: Annotated[str | None, Query(description="Include the backward pass of this loss.", examples=["loss"])] = None,
) -> Response:
    """The graph of ops and variables. Nested blocks are clusters; ops of the backward pass have another colour.

    The Accept header selects the form: `text/vnd.graphviz` for Graphviz, `text/plain` for Mermaid, `text/html` for a
    page that draws the graph in the browser, `application/json` for nodes and edges.
    """
    form = _form(request.headers.get("accept", "*/*"))
    stored = await program(request, program_id)
    if loss is None:
        graph = graph_of(stored.document)
    else:
        answer = await backward_of(request, stored, Question.model_validate({"loss": loss}))
        graph = graph_of(answer["program"], [each["op"] for each in answer["backward_ops"]])
    if form == PAGE:
        page = as_page(graph, f"Program {program_id}", "../../../static")
        return Response(page, media_type=PAGE, headers={"Content-Security-Policy": POLICY})
    if form == JSON:
        return Response(tensors.dumps(graph.as_document()), media_type=JSON)
    return Response(as_graphviz(graph) if form == GRAPHVIZ else as_mermaid(graph), media_type=form)


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
    raise HttpProblem("not-acceptable", f"a graph can be {JSON}, {GRAPHVIZ}, {MERMAID} or {PAGE}")
