"""A dataset as data: its columns, its place, and its row in the database."""

from __future__ import annotations

import json
from base64 import b32encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["DATASET_ID", "Column", "Dataset", "column_of", "dataset_id", "key_of"]

DATASET_ID = r"^dst_[a-z2-7]{26}$"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: a tensor [rows, *shape]. dtype: a name such as ``float32``.

    vocabulary: the texts that the codes 0, 1, ... stand for; None of a column of numbers.
    statistics: nan (count), min, max, mean over all elements; the last three are None without finite elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    vocabulary: tuple[str, ...] | None = None
    statistics: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A stored dataset of one tenant.

    key: of its file in the object store. size: of the file, in bytes. sha256: of the file, in hexadecimal.
    created, expires: seconds since 1970; expires is None for a dataset that stays.
    """

    id: str
    name: str
    key: str
    rows: int
    columns: tuple[Column, ...]
    size: int
    sha256: str
    created: float
    expires: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    def row(self, tenant: str) -> dict[str, Any]:
        """The values of its row in the table `datasets`."""
        return {
            "id": self.id,
            "tenant": tenant,
            "name": self.name,
            "key": self.key,
            "sha256": self.sha256,
            "size": self.size,
            "rows": self.rows,
            "columns": json.dumps([asdict(column) for column in self.columns]),
            "about": json.dumps({"labels": dict(self.labels)}),
            "created": self.created,
            "expires": self.expires,
        }

    def has_ended(self, now: float) -> bool:
        """Whether its time is over at `now`, in seconds since 1970."""
        return self.expires is not None and self.expires <= now

    @staticmethod
    def of_row(row: Mapping[str, Any]) -> Dataset:
        """The dataset in a row of the table `datasets`."""
        return Dataset(
            row["id"],
            row["name"],
            row["key"],
            row["rows"],
            tuple(column_of(each) for each in json.loads(row["columns"])),
            row["size"],
            row["sha256"],
            row["created"],
            row["expires"],
            json.loads(row["about"])["labels"],
        )


def dataset_id(sha256: str) -> str:
    """The id of the dataset whose file has this digest: equal content has one id, in every tenant."""
    return "dst_" + b32encode(bytes.fromhex(sha256)).decode().lower()[:26]


def key_of(sha256: str) -> str:
    """The key of the file with this digest in the object store."""
    return f"datasets/{sha256}"


def column_of(stored: Mapping[str, Any]) -> Column:
    """A column from its JSON form."""
    vocabulary = stored["vocabulary"]
    return Column(
        stored["name"],
        stored["dtype"],
        tuple(stored["shape"]),
        None if vocabulary is None else tuple(vocabulary),
        stored["statistics"],
    )
