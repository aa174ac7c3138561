"""Stored data: the directory and its disk, the database, the objects, and secrets in files."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

from service.doctor.finding import Finding, ok, warning, wrong
from service.objects import Objects, marker
from service.settings import MIB, Settings
from service.store import sqlite_file
from service.store.errors import StoreDamaged
from service.store.file_directory import directory_id
from service.store.migrate import revisions

__all__ = ["data_directory", "database", "disk", "machine_code", "objects", "secrets", "sync_time"]

DATABASE, LOCK = "backpass.sqlite", "lock"
OWN = (DATABASE, LOCK, "objects", "spool", "code")
"""Beginnings of the names of files and folders that the service uses in its directory."""

REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "gluster", "lustre")
SYNCS, SLOW_SYNC_S, UNUSABLE_SYNC_S = 5, 0.05, 1.0
ROOMY = 4


def data_directory(settings: Settings) -> Iterator[Finding]:
    """Existence, permissions, owner, and whether a file can be written."""
    path = settings.data_dir.absolute()
    if not path.exists():
        yield _new("data directory", path)
        return
    if not path.is_dir():
        yield wrong("data directory", f"{path} is not a directory", "Set BACKPASS_DATA_DIR to a directory.")
        return
    about = path.stat()
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"doctor")
            file.flush()
            skew = time.time() - os.fstat(file.fileno()).st_mtime
    except OSError as error:
        do = f"Let user {os.geteuid()} write to it, and check that its disk is mounted for writing."
        yield wrong("data directory", f"{path} cannot be written: {error.strerror}", _remedy(error, do))
        return
    own = [each for each in path.iterdir() if each.name.startswith(OWN)]  # not lost+found, which belongs to root
    foreign = [each for each in own if not os.access(each, os.R_OK | os.W_OK)]
    if foreign:
        text = f"user {os.geteuid()} may not use {foreign[0]}, which belongs to user {foreign[0].stat().st_uid}"
        yield wrong("data directory", text, f"chown -R {os.geteuid()} {path}")
    elif about.st_mode & stat.S_IWOTH:
        yield wrong("data directory", f"every user may write to {path}", f"chmod o-rwx {path}")
    elif about.st_mode & (stat.S_IROTH | stat.S_IXOTH):
        yield warning("data directory", f"every user may read {path}", f"chmod o-rwx {path}")
    else:
        owner = _owner(path)
        yield ok("data directory", f"{path} can be written" + (f"; the owner is{owner}" if owner else ""))
    if abs(skew) > 5:
        text = f"its disk dates files {abs(skew):.0f} s {'behind' if skew > 0 else 'ahead of'} this machine"
        yield warning("data directory", text, "Synchronise the clocks of the file server and of this machine.")
    kind = file_system(path)
    if kind.startswith(REMOTE):
        do = "Use a local disk, or PostgreSQL by BACKPASS_DATABASE_URL: SQLite needs locks that work."
        if settings.database_url:
            do = "Check that a file that was synced survives a failure of the file server."
        yield warning("data directory", f"{path} is on a network file system ({kind})", do)


def _new(check: str, path: Path) -> Finding:
    """The finding about a directory that is not there: whether the service can make it."""
    if path.is_symlink():
        do = "Name a directory, or make the one that the link leads to."
        return wrong(check, f"{path} is a link that leads to nothing", do)
    above = next(each for each in path.parents if each.exists())
    kind = file_system(above)
    if kind in ("proc", "sysfs") or not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        do = f"Let user {os.geteuid()} write to {above}, or name another directory."
        return wrong(check, f"{path} cannot be created in {above}", do)
    return ok(check, f"{path} does not exist yet; the service creates it")


def _owner(path: Path) -> str:
    """The process that uses the directory, as " process 12"; empty if there is none."""
    try:
        with open(path / LOCK, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return f" process {file.read(20).decode(errors='replace').strip() or '(unknown)'}"
            return ""
    except OSError:
        return ""


def file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The kind of the file system that `path` is on; empty if unknown."""
    best, kind = -1, ""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, place, name, *_ = line.split(" ")
        if path.is_relative_to(place) and len(place) > best:
            best, kind = len(place), name
    return kind


def disk(settings: Settings) -> Iterator[Finding]:
    """Free space and free inodes, against the floor of readiness."""
    about = os.statvfs(_existing(settings.data_dir))
    free, floor = about.f_bavail * about.f_frsize, settings.disk_floor
    text = f"{free // MIB} MiB are free, the floor is {floor // MIB} MiB"
    if free < floor:
        yield wrong("disk", text, "Free space, or lower BACKPASS_DISK_FLOOR: the service is not ready below it.")
    elif free < ROOMY * floor:
        yield warning("disk", text, "Free space: below the floor the service is not ready.")
    else:
        yield ok("disk", text)
    if about.f_files and about.f_favail < 10_000:
        yield warning("disk", f"only {about.f_favail} files can be created", "Delete files, or use another disk.")


def sync_time(settings: Settings) -> Iterator[Finding]:
    """The time of one fsync of a small file: every durable step waits for one."""
    times = []
    try:
        with tempfile.TemporaryFile(dir=_existing(settings.data_dir)) as file:
            for _ in range(SYNCS):
                file.write(os.urandom(4096))
                file.flush()
                started = time.perf_counter()
                os.fsync(file.fileno())
                times.append(time.perf_counter() - started)
    except OSError:  # the finding about the data directory says so
        return
    took = median(times)
    text = f"an fsync takes {took * 1e3:.2f} ms"
    if took > UNUSABLE_SYNC_S:
        yield wrong("fsync", text, "Use another disk: every acknowledged change waits this long.")
    elif took > SLOW_SYNC_S:
        yield warning("fsync", text, "Use a faster disk, or sessions with durability checkpoint or none.")
    else:
        yield ok("fsync", text)


def database(settings: Settings) -> Iterator[Finding]:
    """Whether the database opens, is whole, can be written, and has the version of this program."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError

    if not settings.database_url:
        yield from _sqlite(settings.data_dir / DATABASE, _owner(settings.data_dir))
        return
    try:
        engine = create_engine(settings.database_url)
        with engine.connect() as connection:
            version = str(connection.exec_driver_sql("SHOW server_version").scalar())
            read_only = connection.exec_driver_sql("SHOW transaction_read_only").scalar() == "on"
            exists = connection.exec_driver_sql("SELECT to_regclass('alembic_version')").scalar() is not None
            query = "SELECT version_num FROM alembic_version"
            revision = connection.exec_driver_sql(query).scalar() if exists else None
        engine.dispose()
    except (SQLAlchemyError, ImportError) as error:
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        yield wrong("database", f"it cannot be reached: {cause}", "Check BACKPASS_DATABASE_URL and the server.")
        return
    if read_only:
        do = "Name the primary server: a standby takes no writes."
        yield wrong("database", f"PostgreSQL {version} takes no writes", do)
    else:
        yield _version(f"PostgreSQL {version}", None if revision is None else str(revision))


def _sqlite(path: Path, owner: str) -> Iterator[Finding]:
    """owner: the process of the data directory, which may hold the file for itself."""
    restore = "Restore it from a backup: see docs/operations.md."
    try:
        if not owner:
            sqlite_file.check(path)
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=2.0)) as db:
            tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            row = (
                db.execute("SELECT version_num FROM alembic_version").fetchone()
                if "alembic_version" in tables
                else None
            )
            db.isolation_level = None
            db.execute("BEGIN IMMEDIATE")
            db.execute("ROLLBACK")
    except FileNotFoundError:
        yield ok("database", f"{path.name} does not exist yet; the service creates it")
        return
    except (StoreDamaged, OSError) as error:
        yield wrong("database", str(error).partition(";")[0], restore)
        return
    except sqlite3.Error as error:
        if owner and getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            yield ok("database", f"{path.name} is held by{owner}; /healthz/ready tells whether it can be written")
            return
        do = (
            restore
            if sqlite_file.is_damage(error)
            else "Check the permissions of the file, and which process holds it."
        )
        yield wrong("database", f"{path.name} cannot be used: {error}", do)
        return
    yield _version(f"SQLite {sqlite3.sqlite_version}, {path.name} is whole", None if row is None else row[0])


def _version(text: str, revision: str | None) -> Finding:
    """The finding about the version of the tables."""
    known = revisions()
    head = known[-1]
    if revision is None:
        return ok("database", f"{text}; its tables are created at start")
    if revision == head:
        return ok("database", f"{text}; version {revision}")
    if revision in known:
        do = "Make a backup, then start the service: it migrates the tables."
        return warning("database", f"{text}; version {revision}, this program has {head}", do)
    do = "Start the version of Backpass that wrote it, or a later one."
    return wrong("database", f"{text}; version {revision}, which this program (version {head}) does not know", do)


def objects(settings: Settings) -> Iterator[Finding]:
    """Whether checkpoints and datasets can be written and read."""
    url, key = settings.objects, f"doctor/{os.getpid()}"
    shown = url.rpartition("@")[2]
    try:
        store = Objects(url)
        if store.root is not None:
            yield _files(settings, store.root)
            return
        store.write(key, [b"doctor"])
        same = store.read(key) == b"doctor"
        store.delete(key)
    except Exception as error:  # each kind of store has its own errors
        text = f"{shown} cannot be written: {type(error).__name__}: {str(error)[:300]}"
        do = "Check BACKPASS_OBJECTS_URL, its credentials, and the permissions."
        yield wrong("objects", text, _remedy(error, do))
        return
    yield (
        ok("objects", f"{shown} can be written")
        if same
        else wrong("objects", f"{shown} does not return what was written", "Use a store that reads its own writes.")
    )


def _files(settings: Settings, root: Path) -> Finding:
    """The finding about a directory of files: whether it is that of the database, and can be written."""
    id, known = marker.id_of(str(root)), _known_directory(settings)
    if id is None and known is not None:
        do = "Mount or restore the directory. The service waits for it, and makes no other one in its place."
        if known:
            do += f" To use another directory with these files, write {known} to its file {marker.MARKER}."
        return wrong("objects", f"{root} is not the directory of files: it has no file {marker.MARKER}", do)
    if id and known and id != known:
        text = f"{root} is the directory of another store: its file {marker.MARKER} has {id}, expected {known}"
        return wrong("objects", text, "Mount the directory of this store, or correct BACKPASS_OBJECTS_URL.")
    if not root.exists():
        if settings.objects_url or root.is_symlink():
            return _new("objects", root.absolute())
        return ok("objects", f"{root} does not exist yet; the service creates it")
    try:
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(b"doctor")
            file.flush()
    except OSError as error:
        do = f"Let user {os.geteuid()} write to it, and check that its disk is mounted for writing."
        return wrong("objects", f"{root} cannot be written: {error.strerror}", _remedy(error, do))
    return ok("objects", f"{root} can be written")


def _known_directory(settings: Settings) -> str | None:
    """The id of the directory of files that the database has, empty while a service holds the database; None if the
    database has none, or cannot be read."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError

    if not settings.database_url and _owner(settings.data_dir):
        return ""
    url = settings.database_url or f"sqlite:///file:{(settings.data_dir / DATABASE).absolute()}?mode=ro&uri=true"
    try:
        engine = create_engine(url)
        with engine.connect() as connection:
            id = directory_id(connection)
        engine.dispose()
    except (SQLAlchemyError, ImportError):  # the finding about the database says so
        return None
    return id


def machine_code(settings: Settings) -> Iterator[Finding]:
    """Whether compiled code can be stored for the next start, if it has a directory of its own."""
    path = settings.cache_dir
    if path is None or not settings.cache_bytes or settings.compile == "never":
        return
    path = path.absolute()
    if not path.exists() and _new("machine code", path).state == "ok":
        yield ok("machine code", f"{path} does not exist yet; the service creates it")
    elif path.is_dir() and os.access(path, os.W_OK | os.X_OK):
        yield ok("machine code", f"{path} can be written")
    else:
        do = f"Let user {os.geteuid()} write to the directory of BACKPASS_CACHE_DIR."
        yield warning("machine code", f"{path} cannot be written, so each start compiles again", do)


def secrets(settings: Settings) -> Iterator[Finding]:
    """Permissions of the files of keys."""
    files = [
        (name, value) for name, value in settings if isinstance(value, Path) and ("key" in name or "secret" in name)
    ]
    for name, path in files:
        variable = f"BACKPASS_{name.upper()}"
        try:
            mode = path.stat().st_mode
            with path.open("rb"):
                pass
        except OSError as error:
            yield wrong("secrets", f"{variable}: {path} cannot be read: {error.strerror}", "Let this user read it.")
            continue
        if mode & (stat.S_IRWXG | stat.S_IRWXO) and not path.is_relative_to("/run/secrets"):
            yield warning("secrets", f"{variable}: others may read {path}", f"chmod 600 {path}")
        else:
            yield ok("secrets", f"{variable}: {path} can be read by its owner alone")


def _remedy(error: Exception, otherwise: str) -> str:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "Free space, or raise the quota of the disk." if full else otherwise


def _existing(path: Path) -> Path:
    """The directory, or the nearest one above that exists."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.is_dir())
