"""Stored tensors: safetensors files that the service wrote itself, mapped into memory or read whole.

Files of clients are read by `service.formats.safetensors`, which reports every flaw as a problem document.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import ml_dtypes
import numpy as np

from service.objects.errors import DamagedFile

__all__ = ["CODES", "DamagedFile", "Entry", "chunks", "mapped", "read", "read_entries"]

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
"""Name of a dtype -> its code in a safetensors file."""

DTYPES = {code: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name, code in CODES.items()}
CODE_OF = {dtype: code for code, dtype in DTYPES.items()}
LENGTH = struct.Struct("<Q")
METADATA = "__metadata__"
MAX_HEADER = 64 * 2**20
CHUNK = 4 * 2**20

Entry = tuple[np.dtype, tuple[int, ...], int, int]
"""dtype, shape, begin and end in bytes from the start of the file."""


def chunks(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The bytes of a file in parts of a few megabytes; no copy of the tensors is made, unless one is not contiguous.

    Raises TypeError for a dtype without a code.
    """
    header: dict[str, object] = {METADATA: dict(metadata)}
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)  # so that all are aligned
    offset = 0
    for name, array in ordered:
        if array.dtype not in CODE_OF:
            raise TypeError(f"dtype {array.dtype} of {name!r} has no code in a safetensors file")
        end = offset + array.nbytes
        header[name] = {"dtype": CODE_OF[array.dtype], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield LENGTH.pack(len(text)) + text
    for _, array in ordered:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        for begin in range(0, len(data), CHUNK):
            yield data[begin : begin + CHUNK]


def read_entries(file: IO[bytes], size: int) -> tuple[dict[str, Entry], dict[str, str]]:
    """The place of each tensor, and the metadata. size: bytes of the file. Raises DamagedFile."""
    head = file.read(LENGTH.size)
    length = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else MAX_HEADER + 1
    start = LENGTH.size + length
    if length > MAX_HEADER or start > size:
        raise DamagedFile("the header of the file is damaged")
    try:
        header = json.loads(file.read(length))
        metadata = header.pop(METADATA, {})
        entries = {}
        for name, each in header.items():
            dtype, shape = DTYPES[each["dtype"]], tuple(each["shape"])
            begin, end = (start + offset for offset in each["data_offsets"])
            if not start <= begin <= end <= size or end - begin != math.prod(shape) * dtype.itemsize:
                raise DamagedFile(f"the place of {name!r} is damaged")
            entries[name] = dtype, shape, begin, end
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(f"the header of the file is damaged: {error}") from error
    return entries, metadata


def mapped(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read-only views of the tensors in a file of this machine, and the metadata. Pages are read on first use.

    Raises DamagedFile, FileNotFoundError.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        entries, metadata = read_entries(file, size)
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _views(memoryview(whole), entries), metadata


def read(file: IO[bytes], size: int) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors of an open file in new memory, and the metadata. Raises DamagedFile."""
    entries, metadata = read_entries(file, size)
    found = {}
    for name, (dtype, shape, begin, end) in entries.items():
        file.seek(begin)
        data = bytearray(end - begin)
        if file.readinto(data) != end - begin:  # type: ignore[attr-defined]
            raise DamagedFile(f"the file ends inside of {name!r}")
        found[name] = np.frombuffer(data, dtype).reshape(shape)
    return found, metadata


def _views(data: memoryview, entries: Mapping[str, Entry]) -> dict[str, np.ndarray]:
    return {
        name: np.frombuffer(data, dtype, math.prod(shape), begin).reshape(shape)
        for name, (dtype, shape, begin, _) in entries.items()
    }
