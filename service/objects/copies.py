"""Files of the object store as files of this machine, to map them: a file of a remote store is copied first.

The copies are in a directory of this process and its workers. Each of them makes those that it lacks: another process,
on another machine, may have stored the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from service.ids import new_id
from service.objects.objects import Objects

__all__ = ["copies", "delete_copies", "delete_unfinished", "local_file", "place_of"]

COPIES = "copies"
PIECE = 4 * 2**20
TEMPORARY = ".partial"


def place_of(objects: Objects, key: str, directory: Path) -> Path:
    """The place of the file `key` on this machine; that of its copy, which may not be there, for a remote store.

    directory: of stored data of this process.
    """
    local = objects.local_path(key)
    return directory / COPIES / key.rpartition("/")[2] if local is None else local


def local_file(objects: Objects, key: str, directory: Path, poll: Callable[[], object] = lambda: None) -> Path:
    """The file `key` on this machine; a copy is made unless it is there.

    poll: called between the pieces of a copy; it may raise.
    Raises FileNotFoundError if there is no such file, OSError.
    """
    path = place_of(objects, key, directory)
    if path == objects.local_path(key):
        with objects.finding():
            path.stat()
        return path
    if path.exists():
        return path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{new_id('')}{TEMPORARY}")
    try:
        with objects.open(key) as source, temporary.open("wb") as target:
            while piece := source.read(PIECE):
                poll()
                target.write(piece)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def copies(directory: Path) -> set[str]:
    """The names of the copies that are complete."""
    return {name for name in _names(directory) if not name.endswith(TEMPORARY)}


def delete_copies(directory: Path, names: Iterable[str]) -> None:
    """Delete these copies; does nothing for those that are not there. Raises OSError."""
    for name in names:
        (directory / COPIES / name).unlink(missing_ok=True)


def delete_unfinished(directory: Path) -> None:
    """Delete the copies that killed processes left unfinished. Call it before anything is copied. Raises OSError."""
    delete_copies(directory, [name for name in _names(directory) if name.endswith(TEMPORARY)])


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory / COPIES)
    except FileNotFoundError:
        return []
