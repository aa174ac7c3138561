"""Messages with tensors: safetensors files whose metadata holds the JSON members of the message.

A file is eight bytes of header length, a JSON header, and the bytes of all tensors. bfloat16 needs `ml_dtypes`.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from backpass_client.errors import BackpassError

__all__ = ["MEDIA_TYPE", "pack", "unpack"]

MEDIA_TYPE = "application/x-safetensors"
LITTLE = sys.byteorder == "little"
LENGTH = struct.Struct("<Q")
CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}
NAMES = {code: name for name, code in CODES.items()}
TEXTS = ": texts are no numbers; number them, such as np.unique(labels, return_inverse=True)[1]"
REASONS = {
    "c": ": complex numbers are not supported",
    "U": TEXTS,
    "S": TEXTS,
    "M": ": times are no numbers; subtract one and divide, (t - t[0]) / np.timedelta64(1, 's')",
    "O": ": its elements are Python objects",
}
"""Kind of a dtype that cannot be sent -> why, and what to do."""


def pack(tensors: Mapping[str, Any], request: Mapping[str, Any]) -> bytes:
    """A file of `tensors` with `request` in its metadata. Raises BackpassError for an unsupported dtype."""
    header: dict[str, Any] = {"__metadata__": {"request": json.dumps(request, default=_as_json)}}
    arrays = {name: _array(name, value) for name, value in tensors.items()}
    parts: list[memoryview] = []
    end = 0
    # the widest items first, so that every tensor starts at a multiple of its item size
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize):
        code = _code(array.dtype)
        if code is None:
            why = REASONS.get(array.dtype.kind, "")
            raise BackpassError(f"cannot send {name!r} of dtype {array.dtype}, only {', '.join(CODES)}{why}")
        stored = array if array.dtype.isnative == LITTLE else array.astype(array.dtype.newbyteorder("<"))
        header[name] = {"dtype": code, "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        parts.append(np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data)
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([LENGTH.pack(len(text)), text, *parts])


def _array(name: str, value: Any) -> np.ndarray:
    """Raises BackpassError for a value that is no array, such as rows of different lengths."""
    if value is None:
        raise BackpassError(f"the value of {name!r} is None: leave out a variable that has no value")
    try:
        return np.asarray(value)
    except ValueError as error:
        raise BackpassError(f"the value of {name!r} is no array: {str(error).split('.')[0]}") from None


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(JSON members, tensors) of a response. The tensors are writable copies."""
    (length,) = LENGTH.unpack_from(content)
    header = json.loads(content[LENGTH.size : LENGTH.size + length])
    said = json.loads(header.pop("__metadata__", {}).get("response", "{}"))
    start, data = LENGTH.size + length, memoryview(content)
    tensors = {}
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], _dtype(entry["dtype"])).reshape(entry["shape"]).copy()
    return said, tensors


@cache
def _code(dtype: np.dtype) -> str | None:
    """The code of a dtype in a file; numpy computes the name of a dtype anew for each call."""
    return CODES.get(dtype.name)


def _as_json(value: Any) -> Any:
    """A numpy number or array, such as an op's attribute, as a Python number or list."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"cannot write a {type(value).__name__} as JSON")


def _dtype(code: str) -> np.dtype:
    try:
        return np.dtype(NAMES[code])
    except TypeError:
        raise BackpassError(f"numpy has no dtype {NAMES[code]}: import ml_dtypes first") from None
