"""Uploaded models: a protobuf, with files of external data where it names some, or a zip file with both.

Locations of external data come from the model, and names in a zip file from its author. Neither leads outside of the
folder or the zip file, and no more than a limit of bytes is read, whatever a header promises.
"""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from core.onnx import embedded

__all__ = ["BadModelFile", "read_model_file"]

PIECE = 2**20
MEMBERS = 10_000


class BadModelFile(ValueError):
    """The file cannot be read as a model. `str` is a sentence."""


def read_model_file(path: Path, limit: int, is_zip: bool | None = None) -> bytes:
    """The protobuf of the model with its external data inside.

    limit: of all bytes read together. is_zip: by default whether the name of the file ends with .zip.
    Raises BadModelFile, OSError, ProgramError.
    """
    zipped = path.suffix.lower() == ".zip" if is_zip is None else is_zip
    files: _Files
    if not zipped:
        files = _Folder(path.parent, limit)
        return embedded(files.read(path), files, limit)
    try:
        with zipfile.ZipFile(path) as opened:
            files = _Zip(opened, limit)
            return embedded(files.model(), files, limit)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise BadModelFile(f"the zip file cannot be read: {error}") from error


class _Files(Mapping[str, bytes]):
    """Files by relative path, each read once. A path that cannot be one is refused, a missing file is not there."""

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit
        self._read: dict[str, bytes] = {}

    def __getitem__(self, location: str) -> bytes:
        if location not in self._read:
            self._read[location] = self._content(_inside(location))
        return self._read[location]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)

    def _content(self, place: PurePosixPath) -> bytes:
        """Raises KeyError if there is no such file."""
        raise NotImplementedError

    def take(self, size: int) -> None:
        """Raises BadModelFile when more than the limit is read."""
        self._left -= size
        if self._left < 0:
            raise BadModelFile(f"the model has more than {self._limit} bytes")


class _Folder(_Files):
    """The files of the folder of a model."""

    def __init__(self, folder: Path, limit: int) -> None:
        super().__init__(limit)
        self._folder = folder.resolve()

    def _content(self, place: PurePosixPath) -> bytes:
        path = (self._folder / place).resolve()
        if not path.is_relative_to(self._folder):
            raise BadModelFile(f"the external data {str(place)!r} is a link out of the folder of the model")
        if not path.is_file():
            raise KeyError(str(place))
        return self.read(path)

    def read(self, path: Path) -> bytes:
        with path.open("rb") as file:
            content = file.read(self._left + 1)
        self.take(len(content))
        return content


class _Zip(_Files):
    """The members of a zip file with one model, which may be in a folder with its data."""

    def __init__(self, opened: zipfile.ZipFile, limit: int) -> None:
        super().__init__(limit)
        self._zip = opened
        members = [each for each in opened.infolist() if not each.is_dir()]
        if len(members) > MEMBERS:
            raise BadModelFile(f"the zip file has {len(members)} files, more than {MEMBERS}")
        self._members: dict[PurePosixPath, zipfile.ZipInfo] = {}
        for each in members:
            place = _inside(each.filename)
            if stat.S_ISLNK(each.external_attr >> 16):
                raise BadModelFile(f"the file {each.filename!r} in the zip file is a link")
            if place in self._members:
                raise BadModelFile(f"the zip file has the file {each.filename!r} twice")
            self._members[place] = each
        models = [place for place in self._members if place.suffix.lower() == ".onnx"]
        if len(models) != 1:
            raise BadModelFile(f"the zip file has {len(models)} files whose name ends with .onnx, and must have one")
        self._model = models[0]

    def model(self) -> bytes:
        return self._unpacked(self._members[self._model])

    def _content(self, place: PurePosixPath) -> bytes:
        return self._unpacked(self._members[self._model.parent / place])

    def _unpacked(self, member: zipfile.ZipInfo) -> bytes:
        """The content. Limits apply to the unpacked bytes, not to the size that the member announces."""
        found = bytearray()
        with self._zip.open(member) as file:
            while piece := file.read(PIECE):
                self.take(len(piece))
                found += piece
        return bytes(found)


def _inside(location: str) -> PurePosixPath:
    """The relative path. Raises BadModelFile for one that leads elsewhere."""
    place = PurePosixPath(location)
    if place.is_absolute() or ".." in place.parts or "\\" in location or "\0" in location or location in ("", "."):
        raise BadModelFile(f"the path {location!r} is not that of a file inside of the folder of the model")
    return place
