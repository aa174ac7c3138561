"""Messages with tensors: safetensors files, whose metadata carries the rest of the message as JSON.

Eight bytes of header length, a JSON header, then the bytes of all tensors. bfloat16 needs `ml_dtypes`, if it is there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from backpass_client.errors import BackpassError

__all__ = ["MEDIA_TYPE", "pack", "unpack"]

MEDIA_TYPE = "application/x-safetensors"
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


def pack(tensors: Mapping[str, Any], request: Mapping[str, Any]) -> bytes:
    """A file of `tensors` with `request` in its metadata. Raises BackpassError for a dtype that cannot travel."""
    header: dict[str, Any] = {"__metadata__": {"request": json.dumps(request, default=_plain)}}
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    parts, end = [], 0
    # wide items first: then every tensor starts at a multiple of its item size
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize):
        if array.dtype.name not in CODES:
            why = ": complex numbers are not supported" if array.dtype.kind == "c" else ""
            raise BackpassError(f"{name!r} is {array.dtype}, which is not one of {', '.join(CODES)}{why}")
        raw = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        header[name] = {
            "dtype": CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [end, end + len(raw)],
        }
        parts.append(raw)
        end += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([LENGTH.pack(len(text)), text, *parts])


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(what the answer says, its tensors, which may be written to)."""
    (length,) = LENGTH.unpack_from(content)
    header = json.loads(content[LENGTH.size : LENGTH.size + length])
    said = json.loads(header.pop("__metadata__", {}).get("response", "{}"))
    start = LENGTH.size + length
    tensors = {}
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(content[begin:end], _dtype(entry["dtype"])).reshape(entry["shape"]).copy()
    return said, tensors


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy among the attributes of an op."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot travel as JSON")


def _dtype(code: str) -> np.dtype:
    try:
        return np.dtype(NAMES[code])
    except TypeError:
        raise BackpassError(f"numpy does not know {NAMES[code]}: import ml_dtypes first") from None
