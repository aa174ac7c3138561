"""The data directory: its one owner, and whether it is still the directory that this process opened.

The owner holds a `flock` on the file `lock` in it. The kernel releases the lock when the process ends, however it ends,
so a lock file without an owner means nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from service.objects import DirectoryAway
from service.store.errors import DirectoryInUse, StorageError, StorageFull, StorageUnavailable

__all__ = ["DataDirectory", "as_owner", "give_to_owner", "refusal"]

LOCK = "lock"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TRIAL_BYTES = 16 * 2**20
"""Space whose lack explains a failed write: more than one program takes with default limits."""

Identity = tuple[int, int]


class DataDirectory:
    """A directory that this process owns from `claim` to `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._descriptor: int | None = None
        self._files: dict[str, tuple[str, Identity]] = {}  # name -> path, identity

    def claim(self) -> None:
        """Become the owner of the directory that is there now. If it is missing, create it for this user alone.

        Raises DirectoryInUse, StorageError.
        """
        if self._descriptor is not None and self._same(LOCK):
            return
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise refusal(error, self.path) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            text = f"process {owner} already uses the data directory {self.path}; set another BACKPASS_DATA_DIR"
            raise DirectoryInUse("another service owns the data directory", text) from None
        except OSError as error:
            os.close(descriptor)
            raise refusal(error, self.path) from error
        with contextlib.suppress(OSError):  # on a full disk: the number serves messages alone
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self.release()
        self._descriptor = descriptor
        self.watch(LOCK)

    def _same(self, name: str) -> bool:
        try:
            about = os.stat(self.path / name)
        except OSError:
            return False
        return name in self._files and (about.st_dev, about.st_ino) == self._files[name][1]

    def watch(self, name: str) -> None:
        """From now on `loss` notices when the file `name` is another one."""
        path = str(self.path / name)
        about = os.stat(path)
        self._files[name] = path, (about.st_dev, about.st_ino)

    def loss(self) -> str | None:
        """The reason why the directory is not the one that was claimed; None if it is."""
        for name, (path, identity) in self._files.items():
            try:
                about = os.stat(path)
            except FileNotFoundError:
                return f"it has no file {name}" if self.path.is_dir() else "the directory is gone"
            except OSError as error:
                return os.strerror(error.errno or 0)
            if (about.st_dev, about.st_ino) != identity:
                return f"its file {name} was replaced"
        return None

    def trial(self, size: int) -> OSError | None:
        """The error of reserving TRIAL_BYTES behind position `size` of a new file; None if that succeeds."""
        try:
            with tempfile.TemporaryFile(dir=self.path) as file:
                os.posix_fallocate(file.fileno(), size, TRIAL_BYTES)
        except OSError as error:
            return error
        return None

    def release(self) -> None:
        """Give up the ownership. Safe to repeat."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def refusal(error: OSError, path: Path | str) -> StorageError:
    """The refusal of a request because of an error of the file system."""
    if isinstance(error, DirectoryAway):
        return StorageUnavailable(error.text, f"{error.text}: {error.filename}")
    cause = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in FULL:
        detail = "no space is left in the data directory"
        return StorageFull(detail, f"{detail} {path}: {cause}")
    detail = "the data directory cannot be used"
    place = error.filename if isinstance(error.filename, str) else path
    return StorageUnavailable(f"{detail}: {cause}", f"{detail}: {place}: {cause}{_whose(error)}")


def _whose(error: OSError) -> str:
    """The owner of the file that this process may not use, as a part of a sentence: usually another user made it."""
    if error.errno == errno.EACCES and isinstance(error.filename, str):
        with contextlib.suppress(OSError):
            return f" (it belongs to user {os.stat(error.filename).st_uid}, this process to user {os.geteuid()})"
    return ""


@contextlib.contextmanager
def as_owner(path: Path) -> Iterator[None]:
    """Act as the user that the directory belongs to, if this process is that of root, which may act as any.

    Otherwise the files that a command of root makes would lock out the service.
    """
    try:
        about = path.stat()
    except OSError:
        about = None
    if about is None or os.geteuid() != 0 or about.st_uid == 0:
        yield
        return
    group = os.getegid()
    os.setegid(about.st_gid)
    os.seteuid(about.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)


def give_to_owner(path: Path, directory: Path) -> None:
    """Give all files below `path` to the owner of `path`, or of `directory` if that is root. Only root can do it, and
    nobody else needs to."""
    if os.geteuid() != 0 or not path.exists():
        return
    about = next((each for each in (path.stat(), directory.stat()) if each.st_uid != 0), None)
    if about is None:
        return
    for folder, _, files in os.walk(path):
        for name in (folder, *(os.path.join(folder, file) for file in files)):
            os.chown(name, about.st_uid, about.st_gid, follow_symlinks=False)
