"""The stored form of a dataset: one safetensors file, and facts about it."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from service.datasets.dataset import Column
from service.datasets.read import Read
from service.datasets.statistics import statistics_of
from service.objects.tensor_file import chunks

__all__ = ["ABOUT", "RESULT", "write_dataset"]

RESULT = "dataset.safetensors"
ABOUT = "about.json"


def write_dataset(read: Read, folder: Path) -> dict[str, Any]:
    """Write the columns to the file RESULT in `folder`, synced, and facts about them to ABOUT.

    The facts: rows, columns, size and sha256 of the file. Equal tables give equal files. Raises OSError.
    """
    columns = [
        Column(
            name,
            array.dtype.name,
            array.shape[1:],
            tuple(words) if (words := read.vocabularies.get(name)) is not None else None,
            statistics_of(array),
        )
        for name, array in read.columns.items()
    ]
    described = {"columns": list(read.columns), "vocabularies": read.vocabularies}
    digest, size = hashlib.sha256(), 0
    with (folder / RESULT).open("wb") as file:
        for chunk in chunks(read.columns, {"backpass": json.dumps(described)}):
            digest.update(chunk)
            size += file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    about = {
        "rows": len(next(iter(read.columns.values()))),
        "columns": [asdict(column) for column in columns],
        "size": size,
        "sha256": digest.hexdigest(),
    }
    (folder / ABOUT).write_text(json.dumps(about))
    return about
