"""Immutable files by key, in a directory or in a store that fsspec knows, such as ``s3://bucket/prefix``.

A file appears whole or not at all. In a directory: it is written under a temporary name, synced, renamed, and the
directory is synced. In a remote store: one upload, which the store completes at its end.

A directory that is away, such as one that is not mounted, has no marker (`service.objects.marker`). Nothing is written
there, and no file of it counts as missing: every method raises DirectoryAway. So does the use of a bucket that is not
there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import fsspec

from service.ids import new_id
from service.objects import hold, marker
from service.objects.errors import DamagedFile, DirectoryAway, UnusableStore

__all__ = ["Objects", "Written"]

KEY = re.compile(r"[a-z0-9_]+(?:/[a-z0-9_.-]+)*")
TEMPORARY = ".partial"
ABANDONED_S = 3600.0  # age of a partial file that no process writes any more
TRIES = 10  # to create a file whose folder others delete
PIECE = 4 * 2**20
NOT_LINKED = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)
"""Errors of file systems on which a file cannot be linked into the directory."""

HIDDEN = (*hold.HIDDEN, marker.MARKER)
FULL = (errno.ENOSPC, errno.EDQUOT)
S3 = ("s3", "s3a")

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written. size: in bytes; sha256: of its content, in hexadecimal."""

    size: int
    sha256: str


class Objects:
    """The files below one URL. Every method blocks: call it in a thread or in a worker. Raises OSError.

    A directory must have been prepared, by this process or by another one.
    """

    def __init__(self, url: str) -> None:
        """url: a directory, or a URL of fsspec. Raises UnusableStore."""
        self.url = url
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False)  # others write too
        except ImportError as error:
            kind = url.partition("://")[0]
            cure = "pip install 'backpass[s3]'" if kind in S3 else str(error)
            raise UnusableStore(f"a store of {kind}:// needs a package that is not installed: {cure}") from error
        except ValueError as error:
            raise UnusableStore(f"a store of {url} cannot be opened: {error}") from error
        self._is_local = "file" in (self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,))
        self._lacks_marker = False
        protocol = url.partition("://")[0]
        self._bucket = self._root.strip("/").partition("/")[0] if protocol in S3 else None

    @property
    def root(self) -> Path | None:
        """The directory; None for a remote store."""
        return Path(self._root) if self._is_local else None

    def prepare(self) -> str | None:
        """Make the directory, for this user alone, and its marker, if they are not there; the id of the directory.

        None for a remote store, which is not asked, and for a disk that is too full: a later use tries again.
        Raises UnusableStore if it is no directory that this process can write.
        """
        root = self.root
        if root is None:
            return None
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
                raise UnusableStore(f"user {os.geteuid()} may not read and write {root}")
            return marker.make(self._root)
        except FileExistsError:
            raise UnusableStore(f"{root} is not a directory") from None
        except OSError as error:
            if error.errno not in FULL:
                raise UnusableStore(f"{root} cannot be made: {error.strerror}") from error
            self._lacks_marker = True
            return None

    def id(self) -> str | None:
        """The id of the directory, which may be empty on a full disk; None without a marker, and for a remote store.

        Raises OSError.
        """
        return marker.id_of(self._root) if self._is_local else None

    def require(self) -> None:
        """Raises DirectoryAway for a directory without a marker. A remote store is not asked."""
        if not self._is_local or marker.is_there(self._root):
            return
        with contextlib.suppress(UnusableStore):
            if self._lacks_marker and self.prepare() is not None:
                return
        raise DirectoryAway(self._root)

    @contextlib.contextmanager
    def finding(self) -> Iterator[None]:
        """Raise DirectoryAway in place of FileNotFoundError while the directory or the bucket is away."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            self._require_place()
            raise

    def _require_place(self) -> None:
        """As `require`, for a file that was not found: also raises DirectoryAway for a bucket that is not there."""
        self.require()
        if self._bucket is not None and not self._fs.exists(self._bucket):
            raise DirectoryAway(self.url)

    def _path(self, key: str) -> str:
        if KEY.fullmatch(key) is None or ".." in key:
            raise ValueError(f"{key!r} is not a key of a stored file")
        return f"{self._root.rstrip('/')}/{key}"

    def local_path(self, key: str) -> Path | None:
        """The path of the file, to map it into memory in a block of `finding`; None in a remote store."""
        return Path(self._path(key)) if self._is_local else None

    def write(
        self, key: str, chunks: Iterable[Buffer], before_publish: Callable[[Written], None] | None = None
    ) -> Written:
        """Write the file `key` from its parts in order.

        before_publish: called when the content is complete and synced, before the file appears; if it raises, no file
        appears.
        """
        path = self._path(key)
        with self._writing():
            digest, size = hashlib.sha256(), 0
            temporary = f"{path}.{new_id('')}{TEMPORARY}" if self._is_local else path
            file: Any = self._new_file(temporary) if self._is_local else self._fs.open(path, "wb")
            try:
                for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk) if isinstance(chunk, bytes | bytearray) else chunk.nbytes
                    file.write(chunk)
                written = Written(size, digest.hexdigest())
                if self._is_local:
                    file.flush()
                    os.fsync(file.fileno())
                if before_publish is not None:
                    before_publish(written)
                if self._is_local:
                    os.rename(temporary, path)
            except BaseException:
                if self._is_local:
                    with contextlib.suppress(OSError):  # on a full disk, a close that writes fails again
                        file.close()
                    with contextlib.suppress(OSError):
                        os.unlink(temporary)
                else:
                    getattr(file, "discard", file.close)()
                raise
            file.close()  # completes the upload to a remote store
            if self._is_local:
                _sync_name(path)
            return written

    def adopt(self, key: str, path: Path) -> None:
        """Make the file at `path`, which is complete and synced, the file `key`. It also stays where it is.

        In a directory of the same file system nothing is copied.
        """
        if self._is_local:
            target = self._path(key)
            temporary = f"{target}.{new_id('')}{TEMPORARY}"
            with self._writing():
                try:
                    self._in_folder(temporary, lambda: os.link(path, temporary))
                except OSError as error:
                    if error.errno not in NOT_LINKED:
                        raise
                else:
                    os.rename(temporary, target)
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(temporary)  # it stays where both names are of the same file
                    _sync_name(target)
                    return
        with path.open("rb") as file:
            self.write(key, iter(lambda: file.read(PIECE), b""))

    def exists(self, key: str) -> bool:
        """Whether there is a file `key`."""
        if self._fs.exists(self._path(key)):
            return True
        self._require_place()
        return False

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        self.require()
        with self.finding():
            yield

    def _new_file(self, path: str) -> IO[bytes]:
        """A new file, with the folders above it."""
        return self._in_folder(path, lambda: open(path, "xb"))

    def _in_folder(self, path: str, make: Callable[[], T]) -> T:
        """Call `make`, which makes the file `path`. Another thread may delete a folder that is empty meanwhile."""
        for left in reversed(range(TRIES)):
            try:
                _make_folders(os.path.dirname(path), self._root)
                return make()
            except FileNotFoundError:
                if not left:
                    raise
        raise AssertionError("the loop returns or raises")

    def open(self, key: str) -> IO[bytes]:
        """The file, open for reading and seeking. Raises FileNotFoundError."""
        path = self._path(key)
        with self.finding():
            return open(path, "rb") if self._is_local else self._fs.open(path, "rb")

    def read(self, key: str) -> bytes:
        """The whole content. Raises FileNotFoundError."""
        with self.open(key) as file:
            return file.read()

    def size(self, key: str) -> int:
        """Bytes of the file. Raises FileNotFoundError."""
        with self.finding():
            return int(self._fs.size(self._path(key)))

    def age(self, key: str) -> float:
        """Seconds since the file was written; 0 if there is none, or if the store does not tell."""
        try:
            written = self._fs.modified(self._path(key)).timestamp()
        except (FileNotFoundError, NotImplementedError):
            return 0.0
        return float(max(0.0, time.time() - written))

    def delete(self, key: str) -> None:
        """Delete the file; does nothing if there is none. While deletions are held, it stays until their end."""
        path = self._path(key)
        self.require()
        with contextlib.suppress(FileNotFoundError):
            if self._is_local:
                hold.delete(self._root, key)
            else:
                self._fs.rm_file(path)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """No file of a directory is deleted until the block ends, by any process. No effect on a remote store."""
        if not self._is_local:
            yield
            return
        self.require()
        with hold.held(self._root):
            yield

    def check(self, key: str, written: Written) -> None:
        """Read the whole file. Raises DamagedFile unless it has this size and digest; FileNotFoundError."""
        digest, size = hashlib.sha256(), 0
        with self.open(key) as file:
            while piece := file.read(PIECE):
                digest.update(piece)
                size += len(piece)
        if (size, digest.hexdigest()) != (written.size, written.sha256):
            raise DamagedFile(
                f"the stored file {key} is damaged: it has {size} bytes with the SHA-256 {digest.hexdigest()}, "
                f"expected {written.size} bytes with {written.sha256}"
            )

    def keys(self, prefix: str = "") -> Iterator[str]:
        """The keys of all complete files below the folder `prefix`."""
        root = self._path(prefix) if prefix else self._root.rstrip("/")
        self.require()
        for path in self._fs.find(root):
            key = path[len(self._root.rstrip("/")) + 1 :]
            if not path.endswith(TEMPORARY) and key not in HIDDEN:
                yield key

    def sweep(self, *, shared: bool = False) -> None:
        """Delete the temporary files of writers that died, and the files whose deletion a dead backup postponed.

        shared: other services use the directory, so that a recent temporary file may have a writer. Otherwise call it
        before anything writes.
        """
        if not self._is_local or not marker.is_there(self._root):
            return
        hold.delete_postponed(self._root)
        latest = time.time() - ABANDONED_S
        for folder, _, names in os.walk(self._root):
            for name in names:
                path = os.path.join(folder, name)
                if name.endswith(TEMPORARY):
                    with contextlib.suppress(OSError):
                        if not shared or os.stat(path).st_mtime < latest:
                            os.unlink(path)


def _make_folders(path: str, root: str) -> None:
    """Create the folder and those above it, below `root`; their names are durable.

    Raises FileNotFoundError if there is no `root`.
    """
    if os.path.isdir(path):
        return
    if len(path) <= len(root.rstrip("/")):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    above = os.path.dirname(path)
    _make_folders(above, root)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
        _sync_directory(above)


def _sync_name(path: str) -> None:
    """Make the name of a new file durable. Its directory is not there only if somebody has deleted the file since."""
    with contextlib.suppress(FileNotFoundError):
        _sync_directory(os.path.dirname(path))


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
