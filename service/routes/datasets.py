"""Datasets: store, list, read, change and delete tables for training jobs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Query, Request, Response

from service.caller import tenant
from service.datasets.dataset import DATASET_ID, Column, Dataset
from service.http.entity_tags import check_if_match, of_view
from service.http.file_answer import FILE_HEADERS, file_answer
from service.http.request_body import SAFETENSORS, read_body
from service.objects.tensor_file import DamagedFile
from service.problems import HttpProblem, responses, wrong_member, wrong_parameter
from service.routes.common import WithLabels, cut_page, json_answer, page_token_of
from service.routes.dataset_creation import BODIES, created
from service.routes.documented import FILE, accepts, empty_answer
from service.routes.preconditions import IF_MATCH, TAGGED, if_match, tagged
from service.routes.state import datasets, objects, settings
from service.schemas import datasets as schemas
from service.schemas.examples import SAMPLE_DATASET
from service.store.errors import StorageUnavailable

__all__ = ["router"]

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

STORAGE = ("storage-full", "storage-unavailable")
PREVIEW_NUMBERS = 100_000
DatasetId = Annotated[
    str,
    Path(
        pattern=DATASET_ID,
        description="Id of a dataset.",
        openapi_examples={"sample": {"summary": "The sample dataset", "value": SAMPLE_DATASET}},
    ),
]


async def dataset_of(request: Request, id: str) -> Dataset:
    """The dataset of the caller. Raises HttpProblem 404."""
    found = await datasets(request).get(tenant(), id)
    if found is None:
        raise HttpProblem("not-found", "no dataset has this id")
    return found


@router.post(
    "",
    summary="Store a dataset",
    status_code=201,
    response_model=schemas.DatasetView,
    responses={
        200: {"model": schemas.DatasetView, "description": "A dataset with this content was stored before."},
        **responses(
            "invalid-dataset",
            "invalid-json",
            "invalid-tensor-file",
            "shape-mismatch",
            "dtype-mismatch",
            "invalid-request",
            "invalid-state",
            "limit-exceeded",
            "not-found",
            "unsupported-media-type",
            "body-timeout",
            "body-too-large",
            "quota-exceeded",
            "queue-full",
            "no-capacity",
            "worker-lost",
            "deadline-exceeded",
            *STORAGE,
        ),
    },
    openapi_extra=BODIES,
)
async def create_dataset(request: Request, query: Annotated[schemas.FileOptions, Query()]) -> Response:
    """Store a table: a file as the body, columns as JSON, or a complete upload.

    Files may be safetensors, NPZ (without pickled objects), CSV, Parquet, or JSON lines. All mistakes are reported at
    once, with row and column. Texts become int64 codes of a vocabulary. The same content has the same id: it is stored
    once, and the answer is 200. Parameters of the query belong to a file; with JSON the members have these names.
    """
    dataset, is_new = await created(request, query)
    headers = {"Location": f"/v1/datasets/{dataset.id}", "ETag": _tag(dataset)}
    return json_answer(view(dataset), 201 if is_new else 200, headers)


@router.get(
    "",
    summary="List datasets",
    response_model=schemas.DatasetPage,
    responses=responses("invalid-request", "storage-unavailable"),
)
async def list_datasets(
    request: Request,
    label: WithLabels = None,
    page_size: Annotated[int, Query(ge=1, le=200, description="Largest number of datasets in the answer.")] = 50,
    page_token: Annotated[str, page_token_of(r"dst_[a-z2-7]{26}")] = "",
) -> Response:
    """One page of the datasets, the newest first."""
    found = await datasets(request).page(tenant(), page_token, page_size + 1, label or ())
    page, token = cut_page(found, page_size, page_token)
    return json_answer({"datasets": [_summary(each) for each in page], "next_page_token": token})


@router.get(
    "/{dataset_id}",
    summary="Read about a dataset",
    response_model=schemas.DatasetView,
    responses=TAGGED | responses("not-found", "invalid-request", "storage-unavailable"),
)
async def get_dataset(request: Request, dataset_id: DatasetId) -> Response:
    """The columns with their types, vocabularies and statistics."""
    found = await dataset_of(request, dataset_id)
    return tagged(request, view(found), _tag(found), "dataset")


@router.get(
    "/{dataset_id}/preview",
    summary="Read some rows of a dataset",
    response_model=schemas.Preview,
    responses=responses("not-found", "invalid-request", "limit-exceeded", "storage-unavailable"),
)
async def preview_dataset(
    request: Request,
    dataset_id: DatasetId,
    rows: Annotated[int, Query(ge=1, le=1000, description="Largest number of rows in the answer.")] = 10,
    first: Annotated[int, Query(ge=0, le=2**53, description="Number of the first row.")] = 0,
    columns: Annotated[
        list[str] | None, Query(max_length=1000, description="Names of columns; all by default.")
    ] = None,
) -> Response:
    """Rows as JSON, with texts in place of their codes. Rows of large tensors are fewer than asked for."""
    dataset = await dataset_of(request, dataset_id)
    known = {column.name: column for column in dataset.columns}
    for name in columns or ():
        if name not in known:
            raise wrong_parameter("query: columns", "the dataset has no column of this name")
    wanted = [known[name] for name in columns] if columns else list(dataset.columns)
    width = sum(math.prod(column.shape) for column in wanted)
    if width > PREVIEW_NUMBERS:
        detail = f"a row has {width} numbers, more than {PREVIEW_NUMBERS}; name fewer columns"
        raise HttpProblem("limit-exceeded", detail)
    count = max(0, min(rows, PREVIEW_NUMBERS // width, dataset.rows - first))
    try:
        found = await datasets(request).rows(
            dataset, [column.name for column in wanted], min(first, dataset.rows), count
        )
    except OSError as error:
        raise _lost(dataset, error) from error
    values = {column.name: _shown(found[column.name], column) for column in wanted}
    shown = [{name: each[i] for name, each in values.items()} for i in range(count)]
    return json_answer({"first": first, "rows": shown, "total": dataset.rows})


def _shown(array: np.ndarray, column: Column) -> list[Any]:
    """The rows of a column as JSON values; orjson writes a float that is not finite as null."""
    if column.vocabulary is not None:
        return [column.vocabulary[code] for code in array]
    if array.dtype.kind == "V":
        array = array.astype(np.float32)
    return array.tolist()


def _lost(dataset: Dataset, error: OSError) -> HttpProblem:
    text = "damaged" if isinstance(error, DamagedFile) else "missing or cannot be read"
    return StorageUnavailable(f"the file of the dataset is {text}", f"the file {dataset.key} is {text}: {error}")


@router.get(
    "/{dataset_id}/content",
    summary="Download a dataset",
    response_class=Response,
    responses={
        200: {
            "description": "The stored file, a safetensors file with a tensor for each column.",
            "content": {SAFETENSORS: FILE},
        },
        206: {"description": "The part of the file that the header Range asks for.", "content": {SAFETENSORS: FILE}},
        304: {"description": "The file is that of If-None-Match."},
        **responses("not-found", "invalid-request", "range-not-satisfiable", "storage-unavailable"),
    },
    openapi_extra=FILE_HEADERS,
)
async def download_dataset(request: Request, dataset_id: DatasetId) -> Response:
    """The stored file. Its ETag is its SHA-256 digest, which `Repr-Digest` has in base64 (RFC 9530)."""
    dataset = await dataset_of(request, dataset_id)
    open = partial(objects(request).open, dataset.key)
    try:
        return await file_answer(request, open, dataset.size, dataset.sha256, f"{dataset.id}.safetensors", SAFETENSORS)
    except OSError as error:
        raise _lost(dataset, error) from error


@router.patch(
    "/{dataset_id}",
    summary="Change name, labels or expiry",
    response_model=schemas.DatasetView,
    responses=responses(
        "not-found",
        "invalid-json",
        "invalid-request",
        "unsupported-media-type",
        "body-too-large",
        "precondition-failed",
        *STORAGE,
    ),
    openapi_extra=accepts(schemas.ChangeDataset, binary=False, name=("A label", {"labels": {"team": "research"}}))
    | IF_MATCH,
)
async def update_dataset(request: Request, dataset_id: DatasetId) -> Response:
    """Merge members into the dataset (a merge patch of RFC 7396). The content never changes."""
    body = await read_body(request, settings(request), binary=False)
    asked = body.read_as(schemas.ChangeDataset)
    check = _accepted(request)

    def changed(dataset: Dataset) -> Dataset:
        check(dataset)
        return _merged(dataset, asked)

    found = await datasets(request).change(tenant(), dataset_id, changed)
    if found is None:
        raise HttpProblem("not-found", "no dataset has this id")
    return json_answer(view(found), headers={"ETag": _tag(found)})


def _accepted(request: Request) -> Callable[[Dataset], None]:
    """A check of a dataset that a request is about to change. It raises HttpProblem 412."""
    accepts = if_match(request)
    return lambda found: check_if_match(accepts, _tag(found), "dataset")


def _merged(dataset: Dataset, asked: schemas.ChangeDataset) -> Dataset:
    given = asked.model_fields_set
    labels = dict(dataset.labels) if asked.labels is not None or "labels" not in given else {}
    for name, value in (asked.labels or {}).items():
        if value is None:
            labels.pop(name, None)
        else:
            labels[name] = value
    if len(labels) > 64:
        raise wrong_member("/labels", "a dataset may have at most 64 labels")
    expires = asked.expires_at if "expires_at" in given else dataset.expires
    return replace(dataset, name=asked.name or dataset.name, labels=labels, expires=expires)


@router.delete(
    "/{dataset_id}",
    summary="Delete a dataset",
    status_code=204,
    responses=empty_answer(
        "The dataset is deleted.", "not-found", "in-use", "precondition-failed", "invalid-request", *STORAGE
    ),
    openapi_extra=IF_MATCH,
)
async def delete_dataset(request: Request, dataset_id: DatasetId) -> Response:
    """Delete a dataset. Refused while a job uses it."""
    if not await datasets(request).delete(tenant(), dataset_id, _accepted(request)):
        raise HttpProblem("not-found", "no dataset has this id")
    return Response(status_code=204)


def _tag(dataset: Dataset) -> str:
    """The ETag of the description of a dataset; its content has another."""
    return of_view(_summary(dataset))


def _summary(dataset: Dataset) -> dict[str, Any]:
    return {
        "id": dataset.id,
        "name": dataset.name,
        "labels": dict(dataset.labels),
        "rows": dataset.rows,
        "size": dataset.size,
        "sha256": dataset.sha256,
        "created": dataset.created,
        "expires_at": dataset.expires,
    }


def view(dataset: Dataset) -> dict[str, Any]:
    columns = [
        {
            "name": column.name,
            "dtype": column.dtype,
            "shape": list(column.shape),
            "vocabulary": None if column.vocabulary is None else list(column.vocabulary),
            "statistics": dict(column.statistics),
        }
        for column in dataset.columns
    ]
    return {**_summary(dataset), "columns": columns}
