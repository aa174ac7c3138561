"""The conversion of an uploaded file into the stored form, in a process of its own. See `service.datasets.ingest`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.datasets.csv_file import read_csv
from service.datasets.json_lines import read_json_lines
from service.datasets.mistakes import refused
from service.datasets.options import Limits, Options
from service.datasets.parquet_file import read_parquet
from service.datasets.read import Read
from service.datasets.stacking import stacked
from service.datasets.stored_form import write_dataset
from service.datasets.tensor_files import read_npz, read_safetensors
from service.objects import Objects

__all__ = ["assembled", "convert"]

READERS: dict[str, Callable[[Path, Options, Path, Limits], Read]] = {
    "safetensors": read_safetensors,
    "npz": read_npz,
    "csv": read_csv,
    "parquet": read_parquet,
    "jsonl": read_json_lines,
}


def convert(path: Path, options: Options, scratch: Path, limits: Limits) -> dict[str, Any]:
    """Write the dataset in the file `path` to the folder `scratch`; see `write_dataset`.

    Raises HttpProblem, OSError.
    """
    read = READERS[options.format](path, options, scratch, limits)
    return write_dataset(stacked(read, options, scratch, limits), scratch)


def assembled(objects: Objects, keys: list[str], sha256: str | None, scratch: Path) -> Path:
    """One file with the content of the stored files `keys`. Raises HttpProblem 422 if it has another digest.

    A single local file is used in its place.
    """
    local = objects.local_path(keys[0]) if len(keys) == 1 else None
    path = local or scratch / "upload"
    digest = hashlib.sha256()
    if local is not None and sha256 is None:
        return path
    with objects.finding(), path.open("rb" if local else "wb") as whole:
        for key in keys:
            with objects.open(key) as part:
                while data := part.read(4 * 2**20):
                    digest.update(data)
                    if local is None:
                        whole.write(data)
    if sha256 is not None and digest.hexdigest() != sha256:
        raise refused("the uploaded bytes do not have the declared SHA-256 digest")
    return path
