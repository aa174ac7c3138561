"""Tensors as a safetensors file, with the JSON part of a request or answer as a string in its metadata.

A file is eight bytes of header length, a JSON header, then the bytes of all tensors without gaps. It is read without
copying, and every offset is checked.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from core.ir import unknown_dtype
from core.ir.errors import escaped
from service.formats.json_tensors import (
    DTYPES,
    MAX_NAME,
    TensorError,
    TensorLimits,
    checked_bytes,
    checked_shape,
    dumps,
)
from service.formats.strict_json import parse_json
from service.objects.tensor_file import CODES
from service.problems import FieldError, HttpProblem

__all__ = ["Entries", "header_size", "pack", "pieces", "read_header", "unpack", "views"]

Entries = dict[str, tuple[np.dtype, tuple[int, ...], int, int]]
"""Name -> (dtype, shape, begin, end) of each tensor, in bytes from the end of the header."""

LENGTH = struct.Struct("<Q")
METADATA = "__metadata__"
MAX_HEADER = 8 * 2**20
DEFAULT_LIMITS = TensorLimits()
Flaws = dict[str, TensorError]

DTYPE_OF = {code: DTYPES[name] for name, code in CODES.items()}
CODE_OF = {dtype: code for code, dtype in DTYPE_OF.items()}


def pack(tensors: Mapping[str, np.ndarray], document: Mapping[str, Any], *, key: str = "response") -> bytes:
    """A file of `tensors` whose metadata holds `document` as JSON under `key`.

    Raises TypeError for a dtype that requests cannot have.
    """
    return b"".join(pieces(tensors, document, key=key))


def pieces(
    tensors: Mapping[str, np.ndarray], document: Mapping[str, Any], *, key: str = "response"
) -> list[bytes | memoryview]:
    """The file as its header and views of the tensors, which are not copied. Raises as `pack` does."""
    header: dict[str, Any] = {METADATA: {key: dumps(document).decode()}}
    # Wide items first: then every tensor starts at a multiple of its item size.
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    parts: list[bytes | memoryview] = []
    offset = 0
    for name, array in ordered:
        code = CODE_OF.get(array.dtype)
        if code is None:
            raise TypeError(f"dtype {array.dtype} of {name!r} has no form on the wire")
        end = offset + array.nbytes
        header[name] = {
            "dtype": code,
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        offset = end
    text = dumps(header)
    text += b" " * (-len(text) % 8)
    return [LENGTH.pack(len(text)) + text, *parts]


def unpack(
    data: bytes | bytearray | memoryview,
    *,
    key: str = "request",
    limits: TensorLimits = DEFAULT_LIMITS,
    max_depth: int = 64,
    flaws: Flaws | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The JSON object under `key` of the metadata ({} when there is none), and read-only views of the tensors.

    flaws: receives the error of each tensor that breaks a limit or has an unknown dtype or a wrong number of bytes; the
           result lacks these tensors. None raises the errors.
    Raises HttpProblem: 400 invalid-tensor-file for an invalid file, 400 invalid-json or limit-exceeded for the object,
    422 for a tensor that breaks a limit or has an unknown dtype.
    """
    raw = memoryview(data).toreadonly()
    start = header_size(raw)
    document, entries = read_header(
        bytes(raw[LENGTH.size : start]), len(raw) - start, key=key, limits=limits, max_depth=max_depth, flaws=flaws
    )
    return document, views(raw[start:], entries, flaws)


def header_size(raw: memoryview) -> int:
    """The bytes of the file before its data. Raises HttpProblem 400."""
    if len(raw) < LENGTH.size:
        raise _broken("the file is shorter than eight bytes")
    (size,) = LENGTH.unpack(raw[: LENGTH.size])
    if size > MAX_HEADER:
        raise HttpProblem(
            "limit-exceeded", f"the header of the file exceeds the limit of {MAX_HEADER} bytes", status=400
        )
    if LENGTH.size + size > len(raw):
        raise _broken("the header is longer than the file")
    return LENGTH.size + size


def read_header(
    text: bytes,
    size: int,
    *,
    key: str = "request",
    limits: TensorLimits = DEFAULT_LIMITS,
    max_depth: int = 64,
    flaws: Flaws | None = None,
) -> tuple[dict[str, Any], Entries]:
    """The JSON object under `key`, and the tensors of the file. size: bytes of the data. Raises as `unpack` does."""
    header = _object(text, max_depth, "the file's header")
    document = _document(header.pop(METADATA, {}), key, max_depth)
    entries: Entries = {}
    spans, errors = [], {}
    for name, entry in header.items():
        try:
            entries[name] = _entry(name, entry, size, limits)
            spans.append(entries[name][2:])
        except TensorError as error:
            errors[name] = error
    _report(errors, len(header), flaws)
    if not errors:
        _check_layout(spans, size)
    return document, entries


def views(body: memoryview, entries: Entries, flaws: Flaws | None = None) -> dict[str, np.ndarray]:
    """Read-only views of the tensors. Raises HttpProblem 422 for a bool that is neither 0 nor 1. flaws: as `unpack`."""
    tensors, errors = {}, {}
    for name, (dtype, shape, begin, end) in entries.items():
        try:
            tensors[name] = checked_bytes(body[begin:end], dtype, shape, "")
        except TensorError as error:
            errors[name] = error
    _report(errors, len(entries), flaws)
    return tensors


def _report(errors: Flaws, count: int, flaws: Flaws | None) -> None:
    """Add the errors to `flaws`. Without it, raises HttpProblem 422 if there are any."""
    if flaws is not None:
        flaws |= errors
    elif errors:
        fields = [
            FieldError(f"/{escaped(name)}{each.pointer}", each.code, each.detail) for name, each in errors.items()
        ]
        detail = f"{len(errors)} of {count} tensors not valid: {fields[0].detail}"
        raise HttpProblem(fields[0].code, detail, errors=fields)


def _document(metadata: Any, key: str, max_depth: int) -> dict[str, Any]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _broken("__metadata__ must be an object of strings")
    return _object(metadata[key].encode(), max_depth, f"`{key}` of the file's metadata") if key in metadata else {}


def _object(text: bytes, max_depth: int, where: str) -> dict[str, Any]:
    """The JSON object in `text`. Raises as `parse_json` does, naming `where` it is."""
    try:
        return parse_json(text, max_depth=max_depth)
    except HttpProblem as problem:
        detail = f"{problem.detail}, in {where}"
        raise HttpProblem(problem.code, detail, status=problem.status, **problem.extensions) from None


def _entry(name: str, entry: Any, size: int, limits: TensorLimits) -> tuple[np.dtype, tuple[int, ...], int, int]:
    if len(name) > MAX_NAME:
        raise TensorError("limit-exceeded", f"the name of a tensor is longer than {MAX_NAME} characters")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _broken("the entry of a tensor must have exactly dtype, shape and data_offsets")
    code = entry["dtype"]
    dtype = DTYPE_OF.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise TensorError("dtype-mismatch", f"dtype {unknown_dtype(code, DTYPE_OF)}", "/dtype")
    shape = checked_shape(entry["shape"], dtype, limits)
    offsets = entry["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(offset) is int for offset in offsets):
        raise _broken("data_offsets must be a pair of integers")
    begin, end = offsets
    if not 0 <= begin <= end <= size:
        raise _broken("data_offsets lie outside of the file")
    wanted = math.prod(shape) * dtype.itemsize
    if end - begin != wanted:
        detail = f"shape {list(shape)} of {dtype.name} takes {wanted} bytes, but data_offsets span {end - begin}"
        raise TensorError("shape-mismatch", detail, "/data_offsets")
    return dtype, shape, begin, end


def _check_layout(spans: list[tuple[int, int]], size: int) -> None:
    """Raises HttpProblem unless the tensors lie one after the other: overlaps and gaps could hide data."""
    reached = 0
    for begin, end in sorted(spans):
        if begin != reached:
            raise _broken("tensors overlap" if begin < reached else "there is a gap between tensors")
        reached = end
    if reached != size:
        raise _broken(f"{size - reached} bytes follow the last tensor")


def _broken(detail: str) -> HttpProblem:
    return HttpProblem("invalid-tensor-file", detail)
