"""Tensors in JSON: {"dtype": "float32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}, or "b64" instead of "data".

`data` is flat and row-major; `b64` is base64 of the little-endian bytes. Values are not converted: one that does not
fit its dtype is refused, never wrapped or rounded to infinity. An answer with NaN or infinity, which JSON cannot
express, has b64 and "finite": false.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import orjson

from core.ir import unknown_dtype
from service.problems import FieldError, HttpProblem
from service.settings import TensorLimits

__all__ = [
    "DTYPES",
    "TensorError",
    "TensorLimits",
    "checked_shape",
    "decode",
    "decode_all",
    "decode_one",
    "dumps",
    "encode",
    "encode_all",
]

DTYPES: dict[str, np.dtype] = {
    name: np.dtype(name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
NAMES = {dtype: name for name, dtype in DTYPES.items()}  # numpy builds a name at each access

DEFAULT_LIMITS = TensorLimits()
MEMBERS = {"dtype", "shape", "data", "b64", "finite"}
MAX_NAME = 256
TOO_LARGE = 2.0**63
"""From this size on a number of a shape is too large; JSON's parser reads larger integers than 64 bits as floats."""


class TensorError(Exception):
    """A tensor is not valid. code: a problem code; pointer: from the tensor to the wrong member."""

    def __init__(self, code: str, detail: str, pointer: str = "") -> None:
        super().__init__(detail)
        self.code, self.detail, self.pointer = code, detail, pointer


def decode(value: Any, *, pointer: str, limits: TensorLimits = DEFAULT_LIMITS) -> np.ndarray:
    """The array that `value` describes; it may be read-only. pointer: JSON pointer to `value` in the body.

    Raises HttpProblem 422: invalid-request, shape-mismatch, dtype-mismatch or limit-exceeded.
    """
    try:
        return decode_one(value, limits)
    except TensorError as error:
        field = FieldError(pointer + error.pointer, error.code, error.detail)
        raise HttpProblem(error.code, f"the tensor at {pointer}: {error.detail}", errors=[field]) from None


def decode_all(values: Any, *, pointer: str, limits: TensorLimits = DEFAULT_LIMITS) -> dict[str, np.ndarray]:
    """The arrays of an object of tensors, by name. Raises as `decode` does, with the errors of all tensors."""
    if not isinstance(values, dict):
        raise HttpProblem("invalid-request", f"{pointer} is not an object of tensors")
    arrays, errors = {}, []
    for name, value in values.items():
        try:
            arrays[name] = decode_one(value, limits)
        except TensorError as error:
            place = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}{error.pointer}"
            errors.append(FieldError(place, error.code, error.detail))
    if errors:
        count = "one tensor is" if len(errors) == 1 else f"{len(errors)} tensors are"
        raise HttpProblem(errors[0].code, f"{count} not valid: {errors[0].detail}", errors=errors)
    return arrays


EXAMPLE = '{"dtype": "float32", "shape": [2], "data": [1.5, 2.5]}'


def decode_one(value: Any, limits: TensorLimits = DEFAULT_LIMITS) -> np.ndarray:
    """The array that `value` describes. Raises TensorError, whose pointer starts at the tensor."""
    if hasattr(value, "extracted"):  # decoded in another process
        return value.extracted()
    if not isinstance(value, dict):
        detail = f"a tensor must be an object with dtype, shape, and data or b64, such as {EXAMPLE}"
        raise TensorError("invalid-request", detail)
    if unknown := value.keys() - MEMBERS:
        raise TensorError("invalid-request", f"unknown member {min(unknown)[:MAX_NAME]!r}")
    if ("data" in value) == ("b64" in value):
        raise TensorError("invalid-request", "give exactly one of data and b64")
    if not isinstance(value.get("finite", True), bool):
        raise TensorError("invalid-request", "finite must be a boolean", "/finite")
    name = value.get("dtype")
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise TensorError("dtype-mismatch", f"dtype {unknown_dtype(name, DTYPES)}", "/dtype")
    shape = checked_shape(value.get("shape"), dtype, limits)
    if "b64" in value:
        return _from_base64(value["b64"], dtype, shape)
    return _from_numbers(value["data"], dtype, math.prod(shape)).reshape(shape)


def checked_shape(shape: Any, dtype: np.dtype, limits: TensorLimits) -> tuple[int, ...]:
    """`shape` as a tuple, if it is a list of sizes whose exact product stays within `limits`.

    Raises TensorError before anything is allocated.
    """
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        huge = isinstance(shape, list) and any(type(size) is float and size >= TOO_LARGE for size in shape)
        text = "a size is too large" if huge else "shape must be a list of non-negative integers"
        raise TensorError("invalid-request", text, "/shape")
    if len(shape) > limits.rank:
        raise TensorError("limit-exceeded", f"rank {len(shape)} exceeds the limit of {limits.rank}", "/shape")
    # Zeros are left out of the product: numpy refuses [0, 2**62, 8], whose product of non-zero sizes overflows.
    elements = math.prod(size for size in shape if size)
    if elements > limits.elements:
        raise TensorError("limit-exceeded", f"the shape has more than {limits.elements} elements", "/shape")
    if elements * dtype.itemsize > limits.bytes:
        raise TensorError("limit-exceeded", f"the shape takes more than {limits.bytes} bytes", "/shape")
    return tuple(shape)


def _from_base64(text: Any, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if not isinstance(text, str):
        raise TensorError("invalid-request", "b64 must be a string", "/b64")
    wanted = math.prod(shape) * dtype.itemsize
    if len(text) != -(-wanted // 3) * 4:
        detail = f"shape {list(shape)} of {dtype.name} takes {wanted} bytes, but b64 has a different length"
        raise TensorError("shape-mismatch", detail, "/b64")
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise TensorError("invalid-request", "b64 must be standard base64 with padding", "/b64") from None
    if len(raw) != wanted:
        detail = f"shape {list(shape)} of {dtype.name} takes {wanted} bytes, but b64 has {len(raw)}"
        raise TensorError("shape-mismatch", detail, "/b64")
    return checked_bytes(raw, dtype, shape, "/b64")


def checked_bytes(raw: bytes | memoryview, dtype: np.dtype, shape: tuple[int, ...], pointer: str) -> np.ndarray:
    """A view of `raw`, which has the right length, as an array. Raises TensorError for a bool that is not 0 or 1."""
    array = np.frombuffer(raw, dtype).reshape(shape)
    if dtype == np.bool_ and array.size and int(array.view(np.uint8).max()) > 1:
        raise TensorError("dtype-mismatch", "a bool byte is neither 0 nor 1", pointer)
    return array


def _from_numbers(data: Any, dtype: np.dtype, count: int) -> np.ndarray:
    if not isinstance(data, list):
        raise TensorError("invalid-request", "data must be a list", "/data")
    if len(data) != count:
        nested = "; data is one flat list, row after row" if any(type(item) is list for item in data) else ""
        detail = f"the shape has {count} elements, but data has {len(data)}{nested}"
        raise TensorError("shape-mismatch", detail, "/data")
    wanted, words = _wanted_types(dtype)
    if not wanted.issuperset(map(type, data)):
        index = next(index for index, item in enumerate(data) if type(item) not in wanted)
        raise TensorError(
            "dtype-mismatch", f"an element of {dtype.name} must be {words} (data is flat)", f"/data/{index}"
        )
    if dtype == np.bool_:
        return np.array(data, dtype)
    try:
        exact = np.array(data, np.int64 if wanted == {int} else np.float64)
    except OverflowError:
        raise TensorError("dtype-mismatch", f"a number is outside the range of {dtype.name}", "/data") from None
    if wanted == {int}:
        limits = np.iinfo(dtype)
        fits = (exact >= limits.min) & (exact <= limits.max)
        array = exact.astype(dtype)
    else:
        with np.errstate(over="ignore"):
            array = exact.astype(dtype)
        fits = np.isfinite(array)
    if not _all(fits):
        index = int(np.argmin(fits))
        raise TensorError("dtype-mismatch", f"a number is outside the range of {dtype.name}", f"/data/{index}")
    return array


def _all(truths: np.ndarray) -> bool:
    """As `truths.all()`, which takes a microsecond more."""
    return bool(np.logical_and.reduce(truths, axis=None))


@cache
def _wanted_types(dtype: np.dtype) -> tuple[frozenset[type], str]:
    if dtype == np.bool_:
        return frozenset({bool}), "a boolean"
    if dtype.kind in "iu":
        return frozenset({int}), "an integer"
    return frozenset({int, float}), "a number"


def encode(array: np.ndarray, *, base64: bool = False) -> dict[str, Any]:
    """`array` as a JSON tensor; its `data` is a flat numpy array that `dumps` serialises.

    base64: use b64. An array with NaN or infinity always has b64 and "finite": false.
    Raises TypeError for a dtype that JSON tensors do not have.
    """
    dtype = array.dtype
    name = NAMES.get(dtype)
    if name is None:
        raise TypeError(f"dtype {dtype} has no form on the wire")
    document: dict[str, Any] = {"dtype": name, "shape": list(array.shape)}
    finite = dtype.kind in "biu" or _all(np.isfinite(array))
    if base64 or not finite:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        document["b64"] = binascii.b2a_base64(raw.data, newline=False).decode()
    else:
        flat = np.ascontiguousarray(array).reshape(-1)
        document["data"] = flat.astype(np.float32) if dtype == DTYPES["bfloat16"] else flat
    if not finite:
        document["finite"] = False
    return document


def encode_all(arrays: Mapping[str, np.ndarray], *, base64: bool = False) -> dict[str, dict[str, Any]]:
    """Each of `arrays`, encoded."""
    return {name: encode(array, base64=base64) for name, array in arrays.items()}


def dumps(document: Any) -> bytes:
    """JSON of plain data and encoded tensors. A float that is not finite becomes null."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
