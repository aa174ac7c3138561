"""Datasets: tables that the service stores for training."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

from backpass_client.answers import json_of
from backpass_client.connection import Service, new_key, quoted
from backpass_client.errors import BackpassError, Refused, Unreachable
from backpass_client.hints import Hinted
from backpass_client.tensorfile import MEDIA_TYPE, pack

__all__ = ["Dataset", "Datasets"]

SMALL = 8 * 2**20  # larger files are sent in parts
PART = 16 * 2**20
TRIES = 8  # in a row without any progress
TYPES = {
    "safetensors": MEDIA_TYPE,
    "npz": "application/x-npz",
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
    "jsonl": "application/x-ndjson",
}
Found = list[dict[str, Any]]
SUFFIXES = {".ndjson": "jsonl", ".tsv": "csv", **{f".{name}": name for name in TYPES}}


@dataclass(frozen=True, slots=True)
class Dataset(Hinted):
    """A stored dataset.

    columns: name, dtype, shape, vocabulary and statistics of each; None in a listing.
    said:    the whole answer.
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "delete remove": "write service.datasets.delete(dataset)",
        "download save": "write service.datasets.download(dataset, path)",
        "preview head": "write service.datasets.preview(dataset)",
        "change rename": "write service.datasets.change(dataset, name=...)",
        "shape": "see rows and columns",
    }

    id: str
    name: str
    rows: int
    columns: list[dict[str, Any]] | None
    said: dict[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        types = [f", {each['name']}: {each['dtype']}{each['shape']}" for each in (self.columns or ())[:8]]
        return f"Dataset({self.id!r}, {self.name!r}, {self.rows} rows{''.join(types)})"


class Datasets:
    """The datasets of a service; `service.datasets`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def upload(
        self,
        source: str | os.PathLike[str] | Mapping[str, Any],
        *,
        name: str | None = None,
        format: str | None = None,
        progress: bool | None = None,
        resume: str | None = None,
        part_bytes: int = PART,
        **options: Any,
    ) -> Dataset:
        """Store a file, or arrays by name with the same first dimension. The same content is stored once.

        name:       for people; by default the name of the file.
        format:     safetensors, npz, csv, parquet or jsonl; by default as the file's suffix says.
        progress:   show a progress bar, if tqdm is installed; by default in a terminal.
        resume:     id of an upload that was interrupted, from the note of its error.
        part_bytes: of a file above 8 MiB. After a broken connection the upload continues at its last stored byte.
        options:    more members of the body of POST /v1/datasets: types, floats, missing, delimiter, header, stack,
                    labels, expires_at.
        Raises Refused with all mistakes of the file, with row and column; Unreachable.
        """
        if not isinstance(source, Mapping | str | os.PathLike):
            raise TypeError(
                f"a dataset comes from a file, or from arrays by name, not from a {type(source).__name__}: upload a "
                'dictionary such as {"x": x, "y": y}, or write a table to a file first (to_parquet, to_csv)'
            )
        path = None if isinstance(source, Mapping) else Path(source)
        if isinstance(source, Mapping):
            format, file = "safetensors", io.BytesIO(pack(source, {}))
            size = len(file.getbuffer())
        else:
            assert path is not None
            format = format or SUFFIXES.get(path.suffix.lower())
            if format not in TYPES:
                named = f"name it, format={next(iter(TYPES))!r} or another one of {', '.join(TYPES)}"
                raise BackpassError(f"the format of {path.name!r} is not known: {named}")
            if path.suffix.lower() == ".tsv":
                options.setdefault("delimiter", "\t")
            file, size = path.open("rb"), path.stat().st_size  # type: ignore[assignment]
        asked = {"name": name or (path.name if path is not None else "dataset"), **options}
        with file:
            query = _query(asked) if size <= SMALL and resume is None else None
            if query is not None:
                headers = {"content-type": TYPES[format]}
                sent = {"content": file.read(), "headers": headers, "params": query}
                found = json_of(self._service.send("POST", "/v1/datasets", repeat=True, **sent), "POST /v1/datasets")
            else:
                with _bar(progress, size, asked["name"]) as moved:
                    id = self._in_parts(file, size, resume, part_bytes, moved)
                body = {**asked, "upload": id, "format": format}
                found = self._service.call("POST", "/v1/datasets", body, repeat=True)
                self._service.call("DELETE", f"/v1/uploads/{id}")
        return _dataset(found)

    def _in_parts(self, file: IO[bytes], size: int, resume: str | None, part: int, moved: Callable[[int], Any]) -> str:
        """Send the file; the id of its upload. moved: told how many more bytes are stored."""
        if resume is None:
            digest = hashlib.sha256()
            while data := file.read(2**20):
                digest.update(data)
            asked = {"size": size, "sha256": digest.hexdigest()}
            key = new_key()
            id = self._service.call("POST", "/v1/uploads", asked, headers=key)["id"]
        else:
            id = resume
        path, offset, tries = f"/v1/uploads/{quoted(id)}", 0, 0
        offset = self._offset(path) if resume is not None else 0
        moved(offset)
        try:
            while offset < size:
                file.seek(offset)
                headers = {"content-type": "application/offset+octet-stream", "upload-offset": str(offset)}
                before = offset
                try:
                    answer = self._service.send("PATCH", path, repeat=False, content=file.read(part), headers=headers)
                    offset = int(answer.headers["upload-offset"])
                except (Refused, Unreachable) as error:
                    if isinstance(error, Refused) and not (error.retryable or "offset" in error.problem):
                        raise
                    offset = self._offset(path)
                    tries = 0 if offset > before else tries + 1
                    if tries >= TRIES:
                        raise
                moved(offset - before)
        except (BackpassError, KeyboardInterrupt) as error:
            error.add_note(f"the upload can be continued with resume={id!r}")
            raise
        return id

    def _offset(self, path: str) -> int:
        return int(self._service.send("HEAD", path).headers["upload-offset"])

    def list(self, labels: Mapping[str, str | None] | None = None) -> Iterator[Dataset]:
        """All datasets, page by page. `columns` is None: `get` has them.

        labels: that they have, such as ``{"team": "research"}``; None for any value.
        """
        return (_dataset(each) for each in self._service.entries("/v1/datasets", "datasets", labels=labels))

    def uploads(self) -> Iterator[dict[str, Any]]:
        """The uploads that have not ended, page by page: id, size, offset and expires_at of each. `upload` goes on with
        one by ``resume=id``."""
        return self._service.entries("/v1/uploads", "uploads")

    def get(self, id: str) -> Dataset:
        """The dataset with its columns. Raises Refused (not-found)."""
        return _dataset(self._service.call("GET", f"/v1/datasets/{quoted(id)}"))

    def preview(self, dataset: Dataset | str, rows: int = 10, first: int = 0, columns: Sequence[str] = ()) -> Found:
        """Some rows, each as column -> value; texts in place of their codes, None for NaN and infinity."""
        query = {"rows": rows, "first": first, "columns": [*columns]}
        return self._service.call("GET", f"{_path(dataset)}/preview", query=query)["rows"]

    def download(self, dataset: Dataset | str, path: str | os.PathLike[str]) -> None:
        """Write the stored safetensors file to `path`, which appears whole or not at all.

        After a broken connection it goes on where that broke. Raises BackpassError if its digest is wrong.
        """
        self._service.download(f"{_path(dataset)}/content", Path(path))

    def change(self, dataset: Dataset | str, **members: Any) -> Dataset:
        """Change name, labels or expires_at; None removes one. Returns the changed dataset."""
        return _dataset(self._service.call("PATCH", _path(dataset), members))

    def delete(self, dataset: Dataset | str) -> None:
        """Delete the dataset. Raises Refused (in-use) while a job uses it."""
        self._service.call("DELETE", _path(dataset))


def _path(dataset: Dataset | str) -> str:
    return f"/v1/datasets/{quoted(dataset if isinstance(dataset, str) else dataset.id)}"


def _dataset(said: dict[str, Any]) -> Dataset:
    return Dataset(said["id"], said["name"], said["rows"], said.get("columns"), said)


def _query(asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """The options as parameters of a query; None if these cannot say them."""
    query = dict(asked)
    stack, types = query.pop("stack", {}), query.pop("types", {})
    if "labels" in query or any(":" in name or any("," in part for part in parts) for name, parts in stack.items()):
        return None
    query |= {"stack": [f"{name}:{','.join(parts)}" for name, parts in stack.items()]} if stack else {}
    query |= {"types": [f"{name}:{type}" for name, type in types.items()]} if types else {}
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}


@contextmanager
def _bar(wanted: bool | None, size: int, name: str) -> Iterator[Callable[[int], Any]]:
    """A function that moves a progress bar by some bytes."""
    if wanted if wanted is not None else sys.stderr.isatty():
        try:
            from tqdm import tqdm
        except ImportError:
            pass
        else:
            with tqdm(total=size, unit="B", unit_scale=True, unit_divisor=1024, desc=name) as bar:
                yield bar.update
            return
    yield lambda moved: None
