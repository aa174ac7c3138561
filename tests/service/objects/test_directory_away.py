"""A directory of files that is away: nothing is missing, and nothing is written below its mount point."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from service.objects import DirectoryAway, Objects
from service.objects.copies import local_file
from service.objects.marker import MARKER
from tests.service.prepared import prepared

USES: dict[str, Callable[[Objects, Path], Any]] = {
    "open": lambda objects, other: objects.open("a/b"),
    "read": lambda objects, other: objects.read("a/b"),
    "size": lambda objects, other: objects.size("a/b"),
    "exists": lambda objects, other: objects.exists("a/b"),
    "keys": lambda objects, other: list(objects.keys()),
    "keys of a folder": lambda objects, other: list(objects.keys("a")),
    "write": lambda objects, other: objects.write("c/d", [b"x"]),
    "adopt": lambda objects, other: objects.adopt("c/d", other),
    "delete": lambda objects, other: objects.delete("a/b"),
    "held": lambda objects, other: objects.held().__enter__(),
    "path": lambda objects, other: local_file(objects, "a/b", other.parent),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("left", ["nothing", "an empty directory", "a file"])
def test_a_use_of_an_absent_directory_raises_directory_away_and_writes_nothing(tmp_path, use, left):
    root, other = tmp_path / "objects", tmp_path / "other"
    objects = prepared(str(root))
    objects.write("a/b", [b"content"])
    other.write_bytes(b"x")
    root.rename(tmp_path / "away")
    if left == "an empty directory":
        root.mkdir()
    elif left == "a file":
        root.write_bytes(b"")

    with pytest.raises(DirectoryAway):
        use(objects, other)
    objects.sweep()

    assert not root.is_dir() or list(root.iterdir()) == []
    if left == "an empty directory":
        root.rmdir()
    elif left == "a file":
        root.unlink()
    (tmp_path / "away").rename(root)
    assert objects.read("a/b") == b"content"
    use(objects, other)


def test_a_file_that_is_missing_in_its_directory_is_missing(tmp_path):
    objects = prepared(str(tmp_path))

    with pytest.raises(FileNotFoundError):
        objects.read("a")
    with pytest.raises(FileNotFoundError):
        local_file(objects, "a", tmp_path)
    assert not objects.exists("a")
    objects.delete("a")


def test_a_directory_that_goes_away_during_a_write_is_away(tmp_path):
    root = tmp_path / "objects"
    objects = prepared(str(root))

    def parts():
        yield b"one"
        root.rename(tmp_path / "away")

    with pytest.raises(DirectoryAway):
        objects.write("a", parts())

    assert not root.exists()


def test_processes_that_prepare_a_directory_at_once_get_one_id(tmp_path):
    root, ids, ready = str(tmp_path / "objects"), [], threading.Barrier(8)

    def work() -> None:
        ready.wait()
        ids.append(Objects(root).prepare())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(ids) == 8
    assert len(set(ids)) == 1
    assert ids[0] == Objects(root).id() == Objects(root).prepare()


def test_the_marker_is_no_stored_file(tmp_path):
    objects = prepared(str(tmp_path))
    objects.write("a", [b"x"])

    assert list(objects.keys()) == ["a"]


def test_a_remote_store_has_no_marker(tmp_path):
    objects = Objects(f"memory://{tmp_path.name}")

    assert objects.prepare() is None
    objects.require()
    objects.write("a", [b"x"])
    assert list(objects.keys()) == ["a"]


def test_a_directory_on_a_full_disk_gets_its_marker_when_there_is_room(tmp_path, monkeypatch):
    real = os.open

    def full(path, flags, *more, **options):
        if str(path).endswith(MARKER) and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags, *more, **options)

    objects = Objects(str(tmp_path / "objects"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        assert objects.prepare() is None
        with pytest.raises(DirectoryAway):
            objects.write("a", [b"x"])

    objects.write("a", [b"x"])
    assert objects.id()


class Buckets(MemoryFileSystem):
    """A store with buckets, as S3 is: a bucket exists without files, and a file needs its bucket."""

    protocol = "s3"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    buckets: set[str] = set()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("s3://").strip("/")

    def exists(self, path: str, **more: Any) -> bool:
        bucket, _, key = path.removeprefix("s3://").strip("/").partition("/")
        return bucket in self.buckets and (not key or super().exists(path, **more))

    def _open(self, path: str, *args: Any, **more: Any) -> Any:
        if path.strip("/").partition("/")[0] not in self.buckets:
            raise FileNotFoundError(path)
        return super()._open(path, *args, **more)


@pytest.mark.parametrize("prefix", ["", "/prefix"])
def test_a_bucket_that_vanishes_is_away_and_its_files_are_not_missing(monkeypatch, prefix):
    monkeypatch.setitem(_registry, "s3", Buckets)
    Buckets.buckets.add("files")
    objects = Objects(f"s3://files{prefix}")
    objects.write("a", [b"x"])
    with pytest.raises(FileNotFoundError):
        objects.read("b")
    assert objects.exists("a") and not objects.exists("b")

    Buckets.buckets.clear()

    for use in (
        lambda: objects.read("a"),
        lambda: objects.size("c"),
        lambda: objects.exists("a"),
        lambda: objects.write("d", [b"x"]),
    ):
        with pytest.raises(DirectoryAway):
            use()
    Buckets.buckets.add("files")
    assert objects.read("a") == b"x"
