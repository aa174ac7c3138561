"""Operations: their state, their results, and stopping them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from service.caller import tenant
from service.http.deferred import preferences
from service.http.entity_tags import check_if_match, if_match, of_view, unchanged
from service.http.recorded import load
from service.http.request_body import JSON
from service.problems import HttpProblem, responses
from service.routes.common import cut_page, json_answer, page_token_of
from service.routes.documented import empty_answer
from service.routes.preconditions import IF_MATCH, TAGGED
from service.routes.state import objects, operations, store
from service.schemas import operations as schemas
from service.schemas.examples import SAMPLE_OPERATION
from service.store import operations as rows
from service.store.operations import StoredOperation

__all__ = ["router"]

router = APIRouter(prefix="/v1/operations", tags=["operations"])

ID = r"opn_[a-z2-7]{26}"
OperationId = Annotated[
    str,
    Path(
        pattern=f"^{ID}$",
        description="Id of an operation.",
        openapi_examples={"sample": {"summary": "The sample operation", "value": SAMPLE_OPERATION}},
    ),
]
LONGEST_WAIT_S = 60.0
VIEW: dict[str, Any] = {
    "id": "opn_mfrggzdfmztwq2lknnwg23tpob",
    "state": "succeeded",
    "request": "POST /v1/gradients",
    "status": 200,
    "result": "/v1/operations/opn_mfrggzdfmztwq2lknnwg23tpob/result",
    "created": 1767225600.0,
    "ended": 1767225612.0,
    "expires_at": 1767229212.0,
    "expires": 1767229212.0,
}


@router.get("", summary="List operations", response_model=schemas.OperationPage, responses=responses("invalid-request"))
async def list_operations(
    request: Request,
    page_size: Annotated[int, Query(ge=1, le=200, description="Largest number of operations in the answer.")] = 50,
    page_token: Annotated[str, page_token_of(ID)] = "",
) -> Response:
    """One page of the operations, the newest first."""
    owner = tenant()
    found = await store(request).read(lambda db: rows.page(db, owner, page_token, page_size + 1))
    page, token = cut_page(found, page_size, page_token)
    return json_answer({"operations": [_view(each) for each in page], "next_page_token": token})


@router.get(
    "/{operation_id}",
    summary="Read an operation",
    response_model=schemas.OperationView,
    responses={
        200: {"description": "The operation.", "content": {JSON: {"example": VIEW}}},
        **TAGGED,
        **responses("not-found", "invalid-request"),
    },
    openapi_extra={
        "parameters": [
            {
                "name": "Prefer",
                "in": "header",
                "schema": {"type": "string"},
                "description": "`wait=20` waits up to 20 seconds for the end of the operation; at most 60.",
            }
        ]
    },
)
async def get_operation(request: Request, operation_id: OperationId) -> Response:
    """The state of an operation. `result` names the path of its answer as soon as it has ended."""
    found = await _found(request, operation_id)
    wait = preferences(request.scope).get("wait", "")
    if found.state == rows.RUNNING and wait.isdecimal() and len(wait) < 6:
        await operations(request).wait(operation_id, min(LONGEST_WAIT_S, float(wait)))
        found = await _found(request, operation_id)
    headers = {"Retry-After": "1"} if found.state == rows.RUNNING else {}
    view = _view(found)
    tag = of_view(view)
    return unchanged(request, tag, "operation", headers) or json_answer(view, headers={"ETag": tag, **headers})


@router.get(
    "/{operation_id}/result",
    summary="Read the answer of an operation",
    responses={
        200: {"description": "The answer of the call, if its status is 200."},
        "default": {"description": "The answer of the call, as it would have been without `Prefer`: any status."},
        **responses("not-found", "invalid-state", "invalid-request"),
    },
)
async def get_operation_result(request: Request, operation_id: OperationId) -> Response:
    """The answer of the call with its status, headers and body. It is kept for an hour."""
    found = await _found(request, operation_id)
    if found.answer is None:
        detail = "the operation is still running; it has a result when its state is another"
        raise HttpProblem("invalid-state", detail, headers={"Retry-After": "1"}, state=found.state)
    try:
        return (await load(found.answer, objects(request))).response()
    except FileNotFoundError:
        raise HttpProblem("gone", "the answer of the operation is not stored any more") from None


@router.post(
    "/{operation_id}/cancel",
    summary="Stop an operation",
    response_model=schemas.OperationView,
    responses={
        200: {"description": "The operation after the request.", "content": {JSON: {"example": VIEW}}},
        **responses("not-found", "precondition-failed", "invalid-request"),
    },
    openapi_extra=IF_MATCH,
)
async def cancel_operation(request: Request, operation_id: OperationId) -> Response:
    """Stop the call of the operation. Safe to repeat; an ended operation stays as it is.

    Several steps of a session end after the one that runs: the result has their number as `applied`, and `stopped` with
    the code `canceled`. Any other call that may change something goes on: its operation stays `running` until the call
    ends, and its result tells the effect.
    """
    check = _accepted(request)
    found = await _found(request, operation_id)
    check(found)
    await operations(request).cancel(operation_id, found.kind)
    view = _view(await _found(request, operation_id))
    return json_answer(view, headers={"ETag": of_view(view)})


@router.delete(
    "/{operation_id}",
    summary="Delete an operation",
    status_code=204,
    responses=empty_answer("The operation is deleted.", "not-found", "precondition-failed", "invalid-request"),
    openapi_extra=IF_MATCH,
)
async def delete_operation(request: Request, operation_id: OperationId) -> Response:
    """Delete the operation with its answer, and stop its call as `POST .../cancel` does.

    If the call may change something, its effect cannot be read afterwards.
    """
    if not await operations(request).delete(operation_id, _accepted(request)):
        raise _missing()
    return Response(status_code=204)


def _accepted(request: Request) -> Callable[[StoredOperation], None]:
    """A check of an operation that a request is about to stop. It raises HttpProblem 412.

    An operation has one other version, its end: then nothing is left to stop.
    """
    accepts = if_match(request)
    return lambda found: check_if_match(accepts, of_view(_view(found)), "operation")


async def _found(request: Request, id: str) -> StoredOperation:
    owner = tenant()
    found = await store(request).read(lambda db: rows.get(db, owner, id))
    if found is None:
        raise _missing()
    return found


def _missing() -> HttpProblem:
    return HttpProblem("not-found", "there is no operation with this id")


def _view(operation: StoredOperation) -> dict[str, Any]:
    has_ended = operation.state != rows.RUNNING
    return {
        "id": operation.id,
        "state": operation.state,
        "request": operation.kind,
        "status": operation.status,
        "result": f"/v1/operations/{operation.id}/result" if has_ended else None,
        "created": operation.created,
        "ended": operation.ended,
        "expires_at": operation.expires,
        "expires": operation.expires,
    }
