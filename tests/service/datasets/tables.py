"""Files of the formats that datasets have, and their conversion."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save

from service.datasets.convert import convert
from service.datasets.options import Limits, Options
from service.datasets.stored_form import ABOUT, RESULT
from service.objects.tensor_file import mapped
from service.problems import HttpProblem

__all__ = ["as_csv", "as_jsonl", "as_npz", "as_parquet", "as_safetensors", "converted", "mistakes"]

LIMITS = Limits(size=64 * 2**20)


def converted(
    tmp_path: Path, data: bytes, format: Any, limits: Limits = LIMITS, **options: Any
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(columns, facts) of the dataset that `data` becomes."""
    scratch = tmp_path / "scratch"
    scratch.mkdir(exist_ok=True)
    path = tmp_path / "upload"
    path.write_bytes(data)
    convert(path, Options(format, **options), scratch, limits)
    columns, _ = mapped(scratch / RESULT)
    return columns, json.loads((scratch / ABOUT).read_text())


def mistakes(tmp_path: Path, data: bytes, format: Any, limits: Limits = LIMITS, **options: Any) -> list[str]:
    """The details of all mistakes that the conversion reports."""
    with pytest.raises(HttpProblem) as refused:
        converted(tmp_path, data, format, limits, **options)
    assert refused.value.status in (400, 422)
    return [error.detail for error in refused.value.errors] or [refused.value.detail]


def as_csv(columns: dict[str, Any]) -> bytes:
    rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    return "\n".join(lines).encode() + b"\n"


def as_jsonl(columns: dict[str, Any]) -> bytes:
    rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
    return b"".join(json.dumps(dict(zip(columns, row, strict=True))).encode() + b"\n" for row in rows)


def as_parquet(columns: dict[str, Any], **options: Any) -> bytes:
    file = io.BytesIO()
    table = {}
    for name, column in columns.items():
        array = np.asarray(column)
        table[name] = pa.array(array if array.ndim == 1 else array.tolist(), _type(array))
    pq.write_table(pa.table(table), file, **options)
    return file.getvalue()


def _type(array: np.ndarray) -> pa.DataType:
    type = pa.string() if array.dtype.kind == "U" else pa.from_numpy_dtype(array.dtype)
    for _ in array.shape[1:]:
        type = pa.list_(type)
    return type


def as_npz(columns: dict[str, Any], compressed: bool = True) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **columns)
    return file.getvalue()


def as_safetensors(columns: dict[str, Any]) -> bytes:
    return save({name: np.asarray(column) for name, column in columns.items()})
