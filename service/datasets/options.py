"""How to read an uploaded file: its format, the types of its columns, and the treatment of missing values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["COLUMNS", "TEXT", "Floats", "Format", "Limits", "Missing", "Options"]

Format = Literal["safetensors", "npz", "csv", "parquet", "jsonl"]
Floats = Literal["float32", "float64"]
Missing = Literal["refuse", "nan", "drop"]

TEXT = "text"
"""The type of a column of texts, which is stored as int64 codes."""

COLUMNS = 10_000
"""Most columns of a dataset."""


@dataclass(frozen=True, slots=True)
class Options:
    """The reading of one file.

    types:     column -> a dtype, or `text`; the others are inferred.
    floats:    dtype of decimal numbers without a type of their own.
    missing:   `refuse` missing values, store them as `nan`, or `drop` their rows.
    delimiter: of a CSV file. header: whether its first line names the columns; else they are column_1, column_2, ...
    stack:     new column -> the columns that become its parts, in order; ``*`` in a name stands for any characters.
    """

    format: Format
    types: Mapping[str, str] = field(default_factory=dict)
    floats: Floats = "float32"
    missing: Missing = "refuse"
    delimiter: str = ","
    header: bool = True
    stack: Mapping[str, list[str]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one dataset. size: of its tensors, in bytes; rank: of a column, its rows included."""

    size: int
    rank: int = 8
    columns: int = COLUMNS
