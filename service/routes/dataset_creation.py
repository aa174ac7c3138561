"""The dataset that a request describes: a file as the body, columns as JSON, or a complete upload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fastapi import Request
from pydantic import ValidationError

from service.caller import tenant
from service.datasets.dataset import Dataset
from service.datasets.ingest import Named
from service.datasets.options import Format, Options
from service.formats.json_tensors import decode_all
from service.http.request_body import JSON, SAFETENSORS, check_encoding, header_of, read_body
from service.http.spooled_body import spooled
from service.problems import FieldError, HttpProblem, from_validation, wrong_member, wrong_parameter
from service.routes.documented import FILE, accepts
from service.routes.sample_data import restore_upload
from service.routes.state import ingest, samples_lock, settings
from service.routes.uploads import upload_of
from service.schemas import datasets as schemas
from service.schemas.examples import SAMPLE_COLUMNS, SAMPLE_UPLOAD

__all__ = ["BODIES", "created"]

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

OF_FILES = ("format", "types", "floats", "missing", "delimiter", "header")
"""Members of a request that say how to read a file."""

BODIES = accepts(
    schemas.CreateDataset,
    binary=False,
    columns=("Columns in the request", {"name": "sample", "columns": SAMPLE_COLUMNS}),
    upload=(
        "The sample upload, a CSV file",
        {"name": "sample file", "upload": SAMPLE_UPLOAD, "format": "csv", "stack": {"x": ["a", "b"], "y": ["y"]}},
    ),
)
"""The bodies of the request, for the OpenAPI document."""
BODIES["requestBody"]["content"] |= dict.fromkeys((*FORMATS, OCTETS), FILE)

Created = tuple[Dataset, bool]
"""A dataset, and whether it is new."""


async def created(request: Request, query: schemas.FileOptions) -> Created:
    """Store the dataset of a request. Raises HttpProblem."""
    media_type = header_of(request, b"content-type").partition(";")[0].strip().lower()
    given = _members(query)
    if media_type != JSON:
        return await _of_file(request, media_type, given)
    if given:
        raise _wrong_option(next(iter(given)), "with JSON the options are members of the body")
    body = await read_body(request, settings(request), binary=False)
    asked = body.read_as(schemas.CreateDataset)
    if (asked.columns is None) == (asked.upload is None):
        raise wrong_member("/upload", "give exactly one of columns and upload")
    async with ingest(request).folder() as folder:
        return await (_of_upload if asked.columns is None else _of_columns)(request, asked, folder)


def _members(query: schemas.FileOptions) -> dict[str, Any]:
    """The parameters that are given, as members of `CreateDataset`."""
    given = query.model_dump(exclude_none=True)
    if query.types:
        given["types"] = _pairs("types", query.types, "rpartition")
    if query.stack:
        stack = _pairs("stack", query.stack, "partition")
        given["stack"] = {name: parts.split(",") for name, parts in stack.items()}
    return given


def _pairs(parameter: str, given: list[str], split: str) -> dict[str, str]:
    """`name:value` texts of a query as a mapping. split: the method that finds the colon."""
    found = {}
    for text in given:
        name, colon, value = getattr(text, split)(":")
        if not colon or not name or not value or name in found:
            raise _wrong_option(parameter, "each value must be `column:...`, once for each column")
        found[name] = value
    return found


async def _of_file(request: Request, media_type: str, given: Mapping[str, Any]) -> Created:
    """Store the file that is the body. given: the parameters of the query, as members of `CreateDataset`."""
    if media_type not in FORMATS and media_type != OCTETS:
        accepted = ", ".join((JSON, *FORMATS, OCTETS))
        raise HttpProblem(
            "unsupported-media-type", f"the Content-Type must be one of {accepted}", headers={"Accept": accepted}
        )
    check_encoding(request)
    format = given.get("format") or FORMATS.get(media_type)
    if format is None:
        raise _wrong_option("format", f"a body of {OCTETS} needs the parameter format")
    try:
        asked = schemas.CreateDataset.model_validate(given)
    except ValidationError as error:
        problem = from_validation(error, given)
        errors = [replace(each, pointer="", parameter=f"query: {each.pointer[1:]}") for each in problem.errors]
        raise HttpProblem(problem.code, problem.detail, errors=errors) from None
    async with ingest(request).folder() as folder:
        await spooled(request, folder / "body", settings(request).dataset_bytes, settings(request))
        with _placed(_in_query):
            return await ingest(request).of_file(
                tenant(), folder / "body", _options(asked, format), _named(asked), folder
            )


async def _of_columns(request: Request, asked: schemas.CreateDataset, folder: Path) -> Created:
    unfit = next((member for member in OF_FILES if member in asked.model_fields_set), None)
    if unfit is not None:
        raise wrong_member(f"/{unfit}", "this member belongs to files, not to columns")
    columns = decode_all(asked.columns or {}, pointer="/columns", limits=settings(request).tensor_limits)
    with _placed(_in_columns):
        return await ingest(request).of_columns(
            tenant(), columns, _options(asked, "safetensors"), _named(asked), folder
        )


async def _of_upload(request: Request, asked: schemas.CreateDataset, folder: Path) -> Created:
    assert asked.upload is not None
    if asked.format is None:
        raise wrong_member("/format", "an upload needs a format")
    if asked.upload == SAMPLE_UPLOAD:
        async with samples_lock(request):
            await restore_upload(request)
    upload = await upload_of(request, asked.upload)
    return await ingest(request).of_upload(tenant(), upload, _options(asked, asked.format), _named(asked), folder)


def _options(asked: schemas.CreateDataset, format: Format) -> Options:
    options = {field.name: getattr(asked, field.name) for field in fields(Options)}
    return Options(**{**options, "format": format})


def _named(asked: schemas.CreateDataset) -> Named:
    return Named(asked.name, asked.labels, asked.expires_at)


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


def _wrong_option(name: str, detail: str) -> HttpProblem:
    return wrong_parameter(f"query: {name}", detail)
