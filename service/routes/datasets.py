"""Datasets: store, list, read, change and delete tables for training jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ValidationError

from service.caller import tenant
from service.datasets import Datasets
from service.datasets.dataset import DATASET_ID, Column, Dataset
from service.datasets.ingest import Named
from service.datasets.options import Format, Options
from service.formats.json_tensors import decode_all
from service.http.entity_tags import check_if_match, of_view
from service.http.file_answer import FILE_HEADERS, file_answer
from service.http.request_body import JSON, SAFETENSORS, read_body
from service.http.spooled_body import spooled
from service.objects.tensor_file import DamagedFile
from service.problems import FieldError, HttpProblem, from_validation, responses
from service.routes.common import cut_page, json_answer, objects, settings
from service.routes.documented import accepts, empty_answer
from service.routes.preconditions import IF_MATCH, TAGGED, if_match, tagged
from service.routes.sample_data import restore_upload
from service.routes.uploads import ingest, upload_of
from service.schemas import datasets as schemas
from service.schemas.examples import SAMPLE_COLUMNS, SAMPLE_DATASET, SAMPLE_UPLOAD
from service.store.errors import StorageUnavailable

__all__ = ["datasets", "router"]

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

FORMATS: dict[str, Format] = {
    SAFETENSORS: "safetensors",
    "application/x-npz": "npz",
    "application/zip": "npz",
    "text/csv": "csv",
    "application/vnd.apache.parquet": "parquet",
    "application/x-ndjson": "jsonl",
    "application/jsonl": "jsonl",
}
"""Media type of a body -> its format. `application/octet-stream` needs the parameter `format`."""
OCTETS = "application/octet-stream"
STORAGE = ("storage-full", "storage-unavailable")
PREVIEW_NUMBERS = 100_000
UNFIT = ("format", "types", "floats", "missing", "delimiter", "header")
DatasetId = Annotated[
    str,
    Path(
        pattern=DATASET_ID,
        description="Id of a dataset.",
        openapi_examples={"sample": {"summary": "The sample dataset", "value": SAMPLE_DATASET}},
    ),
]
FILE = {"schema": {"type": "string", "format": "binary"}}
CREATED = accepts(
    schemas.CreateDataset,
    binary=False,
    columns=("Columns in the request", {"name": "sample", "columns": SAMPLE_COLUMNS}),
    upload=(
        "The sample upload, a CSV file",
        {"name": "sample file", "upload": SAMPLE_UPLOAD, "format": "csv", "stack": {"x": ["a", "b"], "y": ["y"]}},
    ),
)
CREATED["requestBody"]["content"] |= dict.fromkeys((*FORMATS, OCTETS), FILE)


def datasets(request: Request) -> Datasets:
    return request.app.state.datasets


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
    openapi_extra=CREATED,
)
async def create_dataset(
    request: Request,
    name: Annotated[str | None, Query(max_length=128, description="Name for people.")] = None,
    format: Annotated[Format | None, Query(description="Format of the body, if its media type does not say.")] = None,
    types: Annotated[
        list[str] | None, Query(max_length=1000, description="`column:type`, such as `label:int64` or `kind:text`.")
    ] = None,
    floats: Annotated[str | None, Query(description="Dtype of decimal numbers: float32 (default) or float64.")] = None,
    missing: Annotated[
        str | None, Query(description="Missing values: refuse (default), nan, or drop their rows.")
    ] = None,
    delimiter: Annotated[str | None, Query(description="Delimiter of a CSV file; a comma by default.")] = None,
    header: Annotated[bool | None, Query(description="Whether the first line of a CSV file names the columns.")] = None,
    stack: Annotated[
        list[str] | None,
        Query(max_length=1000, description="`new:a,b,c` makes one tensor of columns; `*` stands for any characters."),
    ] = None,
    expires_at: Annotated[
        float | None, Query(description="Time in the future at which it is deleted, in seconds since 1970.")
    ] = None,
) -> Response:
    """Store a table: a file as the body, columns as JSON, or a complete upload.

    Files may be safetensors, NPZ (without pickled objects), CSV, Parquet, or JSON lines. All mistakes are reported at
    once, with row and column. Texts become int64 codes of a vocabulary. The same content has the same id: it is stored
    once, and the answer is 200. Parameters of the query belong to a file; with JSON the members have these names.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    query: dict[str, Any] = {
        "name": name,
        "format": format,
        "types": _pairs("types", types, "rpartition"),
        "floats": floats,
        "missing": missing,
        "delimiter": delimiter,
        "header": header,
        "stack": {name: parts.split(",") for name, parts in _pairs("stack", stack, "partition").items()} or None,
        "expires_at": expires_at,
    }
    given = {member: value for member, value in query.items() if value is not None and value != {}}
    if media_type == JSON:
        return await _of_json(request, given)
    if media_type not in FORMATS and media_type != OCTETS:
        accepted = ", ".join((JSON, *FORMATS, OCTETS))
        raise HttpProblem(
            "unsupported-media-type", f"the Content-Type must be one of {accepted}", headers={"Accept": accepted}
        )
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HttpProblem("unsupported-encoding", "bodies with a Content-Encoding are not supported")
    found = format or FORMATS.get(media_type)
    if found is None:
        raise _refused_parameter("format", f"a body of {OCTETS} needs the parameter format")
    try:
        asked = schemas.CreateDataset.model_validate(given)
    except ValidationError as error:
        problem = from_validation(error, given)
        errors = [replace(each, pointer="", parameter=f"query: {each.pointer[1:]}") for each in problem.errors]
        raise HttpProblem(problem.code, problem.detail, errors=errors) from None
    async with ingest(request).folder() as folder:
        await spooled(request, folder / "body", settings(request).dataset_bytes, settings(request))
        with _placed(_in_query):
            stored = await ingest(request).of_file(
                tenant(), folder / "body", _options(asked, found), _named(asked), folder
            )
    return _created(*stored)


async def _of_json(request: Request, query: Mapping[str, Any]) -> Response:
    """The dataset that a JSON body describes."""
    if query:
        raise _refused_parameter(next(iter(query)), "with JSON the options are members of the body")
    body = await read_body(request, settings(request), binary=False)
    asked = body.read_as(schemas.CreateDataset)
    if (asked.columns is None) == (asked.upload is None):
        raise _refused("/upload", "give exactly one of columns and upload")
    owner = tenant()
    async with ingest(request).folder() as folder:
        if asked.columns is not None:
            unfit = [member for member in UNFIT if member in asked.model_fields_set]
            if unfit:
                raise _refused(f"/{unfit[0]}", "this member belongs to files, not to columns")
            columns = decode_all(asked.columns, pointer="/columns", limits=settings(request).tensor_limits)
            with _placed(_in_columns):
                stored = await ingest(request).of_columns(
                    owner, columns, _options(asked, "safetensors"), _named(asked), folder
                )
        else:
            assert asked.upload is not None
            if asked.format is None:
                raise _refused("/format", "an upload needs a format")
            if asked.upload == SAMPLE_UPLOAD:
                async with request.app.state.samples:
                    await restore_upload(request)
            upload = await upload_of(request, asked.upload)
            stored = await ingest(request).of_upload(
                owner, upload, _options(asked, asked.format), _named(asked), folder
            )
    return _created(*stored)


@contextmanager
def _placed(place: Callable[[FieldError], FieldError]) -> Iterator[None]:
    """Errors of the block get another place. Theirs is a column, `/name`, or a member, `/stack/name/0`."""
    try:
        yield
    except HttpProblem as problem:
        problem.errors = tuple(map(place, problem.errors))
        raise


def _in_query(error: FieldError) -> FieldError:
    """The place in a request with the options in its query."""
    member, is_member, _ = error.pointer[1:].partition("/")
    return replace(error, pointer="", parameter=f"query: {member}") if is_member else error


def _in_columns(error: FieldError) -> FieldError:
    """The place in a request with the columns in its body."""
    return error if "/" in error.pointer[1:] else replace(error, pointer=f"/columns{error.pointer}")


def _pairs(parameter: str, given: list[str] | None, split: str) -> dict[str, str]:
    """`name:value` texts of a query as a mapping. split: the method that finds the colon."""
    found = {}
    for text in given or ():
        name, colon, value = getattr(text, split)(":")
        if not colon or not name or not value or name in found:
            raise _refused_parameter(parameter, "each value must be `column:...`, once for each column")
        found[name] = value
    return found


def _refused(pointer: str, detail: str) -> HttpProblem:
    return HttpProblem("invalid-request", detail, errors=[FieldError(pointer, "invalid", detail)])


def _refused_parameter(name: str, detail: str) -> HttpProblem:
    error = FieldError("", "invalid", detail, parameter=f"query: {name}")
    return HttpProblem("invalid-request", detail, errors=[error])


def _options(asked: schemas.CreateDataset, format: Format) -> Options:
    return Options(format, asked.types, asked.floats, asked.missing, asked.delimiter, asked.header, asked.stack)


def _named(asked: schemas.CreateDataset) -> Named:
    return Named(asked.name, asked.labels, asked.expires_at)


def _created(dataset: Dataset, is_new: bool) -> Response:
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
    page_size: Annotated[int, Query(ge=1, le=200, description="Largest number of datasets in the answer.")] = 50,
    page_token: Annotated[
        str, Query(max_length=40, pattern=r"^(dst_[a-z2-7]{26})?$", description="`next_page_token` of the last page.")
    ] = "",
) -> Response:
    """One page of the datasets, ordered by id."""
    found = await datasets(request).page(tenant(), page_token, page_size + 1)
    page, token = cut_page(found, page_size)
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
            raise _refused_parameter("columns", "the dataset has no column of this name")
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
        raise _refused("/labels", "a dataset may have at most 64 labels")
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
