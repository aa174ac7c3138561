"""A copy of everything that is stored, made while the service runs, and the way back.

A backup is a directory:

    manifest.json      what it contains: size and SHA-256 of every file; written last
    backpass.sqlite    the database, or `database.dump` of PostgreSQL's pg_dump
    objects/           the stored files, by key

The database is copied in one state; deletions of stored files wait until the copy is complete, so every file that the
database names is there. `check_backup` reads all of it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from service import __version__
from service.ids import new_id
from service.objects import DamagedFile, Objects, Written
from service.objects.errors import UnusableStore
from service.settings import Settings
from service.store.admin import AdminError, act
from service.store.directory import DataDirectory, give_to_owner
from service.store.errors import StorageError, StorageUnavailable
from service.store.file_directory import adopt_directory, take_directory
from service.store.postgres_tools import dump, load
from service.store.sqlite_file import FILE, SNAPSHOT, check, connect, copy_database, sync_directory
from service.store.store import Store

__all__ = ["BackupError", "Manifest", "back_up", "check_backup", "restore", "snapshot"]

MANIFEST, DUMP, OBJECTS = "manifest.json", "database.dump", "objects"
FORMAT = 1
PIECE = 4 * 2**20
REFERENCES = {"checkpoints": "key", "datasets": "key", "program_values": "key", "sessions": "checkpoint"}
"""Tables whose rows name stored files, with the column of the key; `sha256` is the digest."""

HARMLESS = {"admin", "code", "lock", "lost+found"}
"""Names that a directory without a store may have: of a service that ended, and of a file system."""

Tell = Callable[[str], None]


class BackupError(Exception):
    """The backup or the restore failed. `str` is a sentence for operators."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup. database, objects: path -> size and digest."""

    version: str
    created: float
    database: dict[str, Written]
    objects: dict[str, Written]


# Backup


def back_up(settings: Settings, to: Path, tell: Tell) -> Manifest:
    """Write a backup into the new or empty directory `to`. tell: receives lines about the progress.

    A running service goes on; its process copies the database. Raises BackupError.
    """
    to = to.absolute()
    if not settings.database_url and not (settings.data_dir / FILE).exists():
        raise BackupError(f"{settings.data_dir} has no store; set BACKPASS_DATA_DIR or --data-dir")
    objects = _opened(settings)
    with _failures(f"the backup {to} is not complete"):
        _claim_empty(to)
        if objects.root is not None and objects.id() is None and not settings.database_url:  # of an earlier version
            act(settings, "files.take", lambda store, _: take_directory(store, objects), {})
        with objects.held():
            database = _copied_database(settings, to, tell)
            copied = _copied_objects(objects, to / OBJECTS, tell)
        manifest = Manifest(__version__, time.time(), database, copied)
        _require_references(to, manifest)
        text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1)
        _write(to / MANIFEST, [text.encode()])
    size = sum(each.size for each in [*database.values(), *copied.values()])
    tell(f"complete: {1 + len(copied)} files, {_megabytes(size)}, in {to}")
    return manifest


async def snapshot(store: Store, arguments: dict[str, Any]) -> str:
    """The action of the process that owns the data directory: copy the database beside itself; the path."""
    return await store.read(lambda connection: _snapshot(connection.connection.driver_connection))


def _snapshot(source: Any) -> str:
    file = Path(source.execute("PRAGMA database_list").fetchone()[2])
    copy = file.with_name(f"{SNAPSHOT}{new_id('')}.sqlite")
    try:
        copy_database(source, copy)
    except (OSError, sqlite3.Error) as error:
        copy.unlink(missing_ok=True)
        detail = "the database cannot be copied"
        raise StorageUnavailable(detail, f"{detail} to {copy}, beside itself: {error}") from error
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return str(copy)


def _copied_database(settings: Settings, to: Path, tell: Tell) -> dict[str, Written]:
    if settings.database_url:
        dump(settings.database_url, to / DUMP)
        written = {DUMP: _digest(to / DUMP)}
    else:
        copy = Path(act(settings, "store.snapshot", snapshot, {}))
        try:
            written = {FILE: _copy(copy, to / FILE)}
        finally:
            copy.unlink()
    tell(f"database: {_megabytes(sum(each.size for each in written.values()))}")
    return written


def _copied_objects(objects: Objects, to: Path, tell: Tell) -> dict[str, Written]:
    keys = sorted(objects.keys())
    copied: dict[str, Written] = {}
    size, told = 0, time.monotonic()
    for key in keys:
        try:
            with objects.open(key) as file:
                copied[key] = _write(to / key, iter(lambda f=file: f.read(PIECE), b""))  # type: ignore[misc]
        except FileNotFoundError:
            continue  # deleted in a remote store, which holds no deletions; missing if the database names it
        size += copied[key].size
        if time.monotonic() - told > 1:
            told = time.monotonic()
            tell(f"files: {len(copied)} of {len(keys)}, {_megabytes(size)}")
    tell(f"files: {len(copied)}, {_megabytes(size)}")
    return copied


# Check


def check_backup(where: Path, tell: Tell) -> Manifest:
    """Read all of a backup. Raises BackupError for a backup that is incomplete or damaged."""
    where = where.absolute()
    with _failures(f"the backup {where} cannot be read"):
        manifest = _manifest(where)
        expected = {**manifest.database, **{f"{OBJECTS}/{key}": each for key, each in manifest.objects.items()}}
        for name, written in expected.items():
            try:
                found = _digest(where / name)
            except FileNotFoundError:
                raise BackupError(f"the backup {where} is damaged: {name} is missing") from None
            if found != written:
                text = f"{name} has {found.size} bytes with the SHA-256 {found.sha256}, expected {written.size} bytes"
                raise BackupError(f"the backup {where} is damaged: {text} with {written.sha256}")
        if FILE in manifest.database:
            check(where / FILE)
        _require_references(where, manifest)
    tell(f"checked: {len(expected)} files of version {manifest.version}")
    return manifest


def _manifest(where: Path) -> Manifest:
    """Raises BackupError."""
    try:
        given = json.loads((where / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise BackupError(f"{where} is no complete backup: it has no {MANIFEST}, which is written last") from None
    except ValueError as error:
        raise BackupError(f"the backup {where} is damaged: {MANIFEST} is not JSON: {error}") from error
    try:
        if given["format"] != FORMAT:
            raise BackupError(f"the backup {where} has format {given['format']}; this version reads format {FORMAT}")
        database, objects = (
            {str(name): Written(int(each["size"]), str(each["sha256"])) for name, each in given[part].items()}
            for part in ("database", "objects")
        )
        if set(database) not in ({FILE}, {DUMP}) or any(".." in key or key.startswith("/") for key in objects):
            raise ValueError("unknown names of files")
        return Manifest(str(given["version"]), float(given["created"]), database, objects)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BackupError(f"the backup {where} is damaged: {MANIFEST} is not a manifest: {error}") from error


def _require_references(where: Path, manifest: Manifest) -> None:
    """Every file that the database names is in the backup. Raises BackupError."""
    if FILE not in manifest.database:
        return
    with closing(connect(where / FILE, immutable=True)) as database:
        for table, column in REFERENCES.items():
            for key, sha256 in database.execute(f"SELECT {column}, sha256 FROM {table} WHERE {column} IS NOT NULL"):
                if key not in manifest.objects:
                    raise BackupError(f"the backup {where} is incomplete: the table {table} names {key}; run it again")
                if manifest.objects[key].sha256 != sha256:
                    raise BackupError(f"the stored file {key} is damaged: the table {table} has another digest of it")


# Restore


def restore(settings: Settings, where: Path, tell: Tell) -> Manifest:
    """Bring a backup into an empty data directory, and open it once to check it and migrate its tables.

    The database appears last, so that no service starts on half of it. Raises BackupError.
    """
    manifest = check_backup(where, tell)
    if DUMP in manifest.database and not settings.database_url:
        raise BackupError("the backup is of a PostgreSQL database: set BACKPASS_DATABASE_URL to an empty one")
    if FILE in manifest.database and settings.database_url:
        raise BackupError("the backup is of a SQLite database: unset BACKPASS_DATABASE_URL")
    directory = DataDirectory(settings.data_dir)
    objects = _opened(settings)
    with _failures(f"{directory.path} is not restored; empty it before the next try"):
        _require_empty(directory.path, where.absolute())
        directory.claim()
        try:
            objects.prepare()
            if next(iter(objects.keys()), None) is not None:
                raise BackupError(f"{settings.objects} has stored files; restore into an empty one")
            for done, (key, written) in enumerate(manifest.objects.items(), 1):
                _restore_object(objects, where, key, written)
                if done % 1000 == 0:
                    tell(f"files: {done} of {len(manifest.objects)}")
            tell(f"files: {len(manifest.objects)}")
            if settings.database_url:
                load(settings.database_url, where / DUMP)
            else:
                new = directory.path / f"{FILE}.new"
                _copy(where / FILE, new)
                os.rename(new, directory.path / FILE)
                sync_directory(directory.path)
        finally:
            directory.release()
        store = Store(settings.data_dir, settings.database_url)
        store.open_now()
        try:
            asyncio.run(adopt_directory(store, objects))
        finally:
            store.close_now()
        give_to_owner(directory.path, directory.path)
        if "://" not in settings.objects:
            give_to_owner(Path(settings.objects), directory.path)
    tell(f"restored: {directory.path}")
    return manifest


def _restore_object(objects: Objects, where: Path, key: str, written: Written) -> None:
    with (where / OBJECTS / key).open("rb") as file:
        found = objects.write(key, iter(lambda: file.read(PIECE), b""))
    if found != written:
        raise BackupError(f"the backup {where} changed: {key} has the SHA-256 {found.sha256}")


# Files


def _opened(settings: Settings) -> Objects:
    """The stored files of the service. Raises BackupError."""
    try:
        return Objects(settings.objects)
    except UnusableStore as error:
        raise BackupError(f"BACKPASS_OBJECTS_URL: {error}") from error


@contextlib.contextmanager
def _failures(told: str) -> Iterator[None]:
    """Other failures as BackupError. told: the consequence, before the cause."""
    try:
        yield
    except (OSError, sqlite3.Error, AdminError, StorageError, DamagedFile, ValueError) as error:
        raise BackupError(f"{told}: {error}") from error


def _claim_empty(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    _require_empty(path)


def _require_empty(path: Path, but: Path | None = None) -> None:
    """but: a place that may be below `path`, such as that of the backup in a container with one volume."""
    path, but = path.resolve(), but and but.resolve()
    inside = {but.relative_to(path).parts[0]} if but and path in but.parents else set()
    if path.is_dir() and (names := sorted({each.name for each in path.iterdir()} - HARMLESS - inside)):
        raise BackupError(f"{path} is not empty: it has {', '.join(names[:3])}; name a new or empty directory")


def _copy(source: Path, to: Path) -> Written:
    with source.open("rb") as file:
        return _write(to, iter(lambda: file.read(PIECE), b""))


def _write(path: Path, pieces: Any) -> Written:
    """Write a new file for this user alone, synced with its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)
    return Written(size, digest.hexdigest())


def _digest(path: Path) -> Written:
    with path.open("rb") as file:
        return Written(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
