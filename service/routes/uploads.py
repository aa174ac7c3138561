"""Uploads in parts that can be resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Path, Query, Request, Response

from service.caller import tenant
from service.datasets.uploads import UPLOAD_ID, Upload, Uploads
from service.http.entity_tags import check_if_match, if_match, of_view, unchanged
from service.http.request_body import check_encoding, header_of, read_body
from service.http.spooled_body import spooled
from service.problems import HttpProblem, responses, wrong_member
from service.routes.common import cut_page, json_answer, page_token_of
from service.routes.documented import accepts, empty_answer
from service.routes.preconditions import IF_MATCH, TAGGED
from service.routes.state import ingest, settings, uploads
from service.schemas import datasets as schemas
from service.schemas.examples import SAMPLE_CSV, SAMPLE_UPLOAD
from service.schemas.headers import ETAG

__all__ = ["UploadId", "router", "upload_of"]

T = TypeVar("T")

router = APIRouter(prefix="/v1/uploads", tags=["datasets"])

BODY_TYPES = ("application/offset+octet-stream", "application/octet-stream")
STORAGE = ("storage-full", "storage-unavailable")
UploadId = Annotated[
    str,
    Path(
        pattern=UPLOAD_ID,
        description="Id of an upload.",
        openapi_examples={"sample": {"summary": "The sample upload", "value": SAMPLE_UPLOAD}},
    ),
]
OFFSET = {"Upload-Offset": {"schema": {"type": "integer"}, "description": "Bytes that are stored."}}
STATE = {
    **OFFSET,
    "Upload-Length": {"schema": {"type": "integer"}, "description": "Bytes of the whole file."},
}


async def upload_of(request: Request, id: str) -> Upload:
    """The upload of the caller. Raises HttpProblem 404."""
    found = await uploads(request).get(tenant(), id)
    if found is None:
        raise HttpProblem("not-found", "no upload has this id")
    return found


@router.post(
    "",
    summary="Start an upload",
    status_code=201,
    response_model=schemas.UploadView,
    responses={
        201: {"description": "The upload has no bytes yet.", "headers": OFFSET},
        **responses("invalid-json", "invalid-request", "unsupported-media-type", "quota-exceeded", *STORAGE),
    },
    openapi_extra=accepts(schemas.CreateUpload, binary=False, table=("A table", {"size": len(SAMPLE_CSV)})),
)
async def create_upload(request: Request) -> Response:
    """Start an upload in parts. Send the bytes with PATCH, in order; after an interruption HEAD tells where to go on.

    A complete upload becomes a dataset with `POST /v1/datasets {"upload": id}`.
    """
    asked = (await read_body(request, settings(request), binary=False)).read_as(schemas.CreateUpload)
    limit = settings(request).dataset_bytes
    if asked.size > limit:
        detail = f"an upload may have at most {limit} bytes"
        raise wrong_member("/size", detail, "too_large", "limit-exceeded")
    async with ingest(request).room(tenant(), asked.size) as check:
        made = await uploads(request).create(tenant(), asked.size, asked.purpose, asked.sha256, check=check)
    return json_answer(view(made), 201, {"Location": f"/v1/uploads/{made.id}", **_headers(made)})


@router.get(
    "",
    summary="List uploads",
    response_model=schemas.UploadPage,
    responses=responses("invalid-request", "storage-unavailable"),
)
async def list_uploads(
    request: Request,
    page_size: Annotated[int, Query(ge=1, le=200, description="Largest number of uploads in the answer.")] = 50,
    page_token: Annotated[str, page_token_of(r"upl_[a-z2-7]{26}")] = "",
) -> Response:
    """One page of the uploads, the newest first: those that go on, and those that have become datasets."""
    found = await uploads(request).page(tenant(), page_token, page_size + 1)
    page, token = cut_page(found, page_size, page_token)
    return json_answer({"uploads": [view(each) for each in page], "next_page_token": token})


@router.head(
    "/{upload_id}",
    name="head_upload",
    summary="Read where to continue an upload",
    description="As GET, in headers alone.",
    response_class=Response,
    responses={
        200: {"description": "The state is in the headers.", "headers": STATE},
        **TAGGED,
        **responses("not-found", "invalid-request", "storage-unavailable"),
    },
)  # every path with GET has HEAD; this one is documented, as clients need it after an interruption
@router.get(
    "/{upload_id}",
    summary="Read the state of an upload",
    response_model=schemas.UploadView,
    responses={200: {"headers": STATE}, **TAGGED, **responses("not-found", "invalid-request", "storage-unavailable")},
)
async def get_upload(request: Request, upload_id: UploadId) -> Response:
    """How many bytes of the upload are stored."""
    found = await upload_of(request, upload_id)
    headers = _headers(found)
    return unchanged(request, headers["ETag"], "upload") or json_answer(view(found), headers=headers)


@router.patch(
    "/{upload_id}",
    summary="Send the next bytes of an upload",
    status_code=204,
    responses={
        204: {"description": "The bytes are stored.", "headers": OFFSET | {"ETag": ETAG}},
        **responses(
            "not-found",
            "invalid-request",
            "invalid-state",
            "precondition-failed",
            "limit-exceeded",
            "unsupported-media-type",
            "unsupported-encoding",
            "body-timeout",
            "body-too-large",
            *STORAGE,
        ),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {each: {"schema": {"type": "string", "format": "binary"}} for each in BODY_TYPES},
        }
    }
    | IF_MATCH,
)
async def append_to_upload(
    request: Request,
    upload_id: UploadId,
    upload_offset: Annotated[
        int,
        Header(
            ge=0,
            le=2**53,
            description="Position of the first byte of the body: the bytes that are stored already.",
            openapi_examples={"sample": {"summary": "The end of the sample upload", "value": len(SAMPLE_CSV)}},
        ),
    ],
) -> Response:
    """Add bytes at `Upload-Offset`. Another offset than the present one is answered with 409 and `offset`.

    Bytes that arrived before the connection broke stay. The answer 204 says that the bytes are on the disk.
    """
    check_encoding(request)
    media_type = header_of(request, b"content-type").partition(";")[0].strip().lower()
    if media_type not in BODY_TYPES:
        detail = f"the Content-Type must be {BODY_TYPES[0]}"
        raise HttpProblem("unsupported-media-type", detail, headers={"Accept": ", ".join(BODY_TYPES)})
    check = _accepted(request)
    found = await upload_of(request, upload_id)
    check(found)
    uploads(request).check(found, upload_offset)
    owner, left = tenant(), found.length - upload_offset
    async with ingest(request).folder() as folder:
        path = folder / "part"
        try:
            size = await spooled(request, path, left, settings(request))
        except HttpProblem as problem:
            if problem.code == "body-timeout":
                await _keep(uploads(request), owner, upload_id, upload_offset, path)
            raise
        except asyncio.CancelledError:  # the client left; the bytes that arrived stay
            await _finished(_keep(uploads(request), owner, upload_id, upload_offset, path))
            raise
        after = await _finished(uploads(request).append(owner, upload_id, upload_offset, path, size, check))
    if after is None:
        raise HttpProblem("not-found", "no upload has this id")
    return Response(status_code=204, headers=_headers(after))


async def _finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. A cancelled caller waits for its end, as `work` reads files that the caller deletes."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # nobody waits for it any more
        raise


async def _keep(store: Uploads, owner: str, id: str, offset: int, path: Any) -> None:
    size = (await asyncio.to_thread(path.stat)).st_size
    await store.append(owner, id, offset, path, size)


@router.delete(
    "/{upload_id}",
    summary="Delete an upload",
    status_code=204,
    responses=empty_answer("The upload is deleted.", "not-found", "precondition-failed", "invalid-request", *STORAGE),
    openapi_extra=IF_MATCH,
)
async def delete_upload(request: Request, upload_id: UploadId) -> Response:
    """Delete an upload and its bytes. A dataset that it has become stays."""
    if not await uploads(request).delete(tenant(), upload_id, _accepted(request)):
        raise HttpProblem("not-found", "no upload has this id")
    return Response(status_code=204)


def _accepted(request: Request) -> Callable[[Upload], None]:
    """A check of an upload that a request is about to change. It raises HttpProblem 412."""
    accepts = if_match(request)
    return lambda found: check_if_match(accepts, of_view(view(found)), "upload")


def view(upload: Upload) -> dict[str, Any]:
    return {
        "id": upload.id,
        "size": upload.length,
        "offset": upload.offset,
        "purpose": upload.purpose,
        "sha256": upload.sha256,
        "dataset": upload.dataset,
        "created": upload.created,
        "expires_at": upload.expires,
    }


def _headers(upload: Upload) -> dict[str, str]:
    sizes = {"Upload-Offset": str(upload.offset), "Upload-Length": str(upload.length)}
    return {**sizes, "ETag": of_view(view(upload))}
