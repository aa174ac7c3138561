"""The store of immutable files, in a directory and in a store of fsspec."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from service.objects import DamagedFile, Objects, Written
from service.objects.marker import MARKER
from service.objects.tensor_file import chunks, mapped, read
from tests.service.prepared import prepared


@pytest.fixture(params=["directory", "fsspec"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return prepared(str(tmp_path / "objects") if request.param == "directory" else f"memory://{tmp_path.name}")


def test_a_written_file_is_read_back_with_its_size_and_digest(objects):
    written = objects.write("checkpoints/a", [b"one", bytearray(b"two"), memoryview(b"three")])

    assert objects.read("checkpoints/a") == b"onetwothree"
    assert (written.size, written.sha256) == (11, hashlib.sha256(b"onetwothree").hexdigest())
    assert objects.size("checkpoints/a") == 11
    assert list(objects.keys()) == ["checkpoints/a"]


def test_deleting_a_file_twice_is_safe(objects):
    objects.write("a", [b"x"])

    objects.delete("a")
    objects.delete("a")

    with pytest.raises(FileNotFoundError):
        objects.read("a")


def test_a_file_that_is_deleted_while_it_is_stored_is_no_error(tmp_path, monkeypatch):
    objects, source, rename = prepared(str(tmp_path / "objects")), tmp_path / "source", os.rename
    source.write_bytes(b"x")

    def rename_and_delete(old, new):
        rename(old, new)
        objects.delete("values/a")

    objects.write("b", [b"y"])
    monkeypatch.setattr(os, "rename", rename_and_delete)
    objects.adopt("values/a", source)
    objects.write("values/a", [b"x"])

    assert list(objects.keys()) == ["b"]


def test_a_write_that_fails_leaves_no_file(tmp_path):
    objects = prepared(str(tmp_path))

    def parts():
        yield b"one"
        raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError):
        objects.write("a/b", parts())

    assert list(objects.keys()) == []
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [MARKER]


def test_partial_files_of_dead_writers_are_swept(tmp_path):
    objects = prepared(str(tmp_path))
    objects.write("a", [b"x"])
    (tmp_path / "b.abc.partial").write_bytes(b"torn")

    objects.sweep()

    assert {path.name for path in tmp_path.iterdir()} == {"a", MARKER}


@pytest.mark.parametrize("key", ["../a", "/a", "a/../b", "A", "", "a//b", "a\x00"])
def test_keys_cannot_leave_the_store(tmp_path, key):
    with pytest.raises(ValueError):
        prepared(str(tmp_path)).write(key, [b"x"])


def test_a_file_is_checked_against_its_size_and_digest(objects):
    written = objects.write("a", [b"content"])
    objects.check("a", written)

    for wrong in (Written(written.size + 1, written.sha256), Written(written.size, "0" * 64)):
        with pytest.raises(DamagedFile, match="the stored file a is damaged"):
            objects.check("a", wrong)
    with pytest.raises(FileNotFoundError):
        objects.check("b", written)


def test_a_recent_partial_file_of_a_shared_directory_is_kept(tmp_path):
    objects = prepared(str(tmp_path))
    for name, age in (("new", 60), ("old", 4000)):
        (tmp_path / f"{name}.partial").write_bytes(b"torn")
        os.utime(tmp_path / f"{name}.partial", (time.time() - age,) * 2)

    objects.sweep(shared=True)

    assert [path.name for path in tmp_path.glob("*.partial")] == ["new.partial"]


@pytest.mark.parametrize("failing", ["fsync", "rename"])
def test_a_failure_of_the_disk_is_an_error_and_leaves_no_file(tmp_path, monkeypatch, failing):
    objects = prepared(str(tmp_path))

    def refused(*_: object) -> None:
        raise OSError(errno.EIO, "refused")

    monkeypatch.setattr(os, failing, refused)
    with pytest.raises(OSError, match="refused"):
        objects.write("a", [b"x"])
    monkeypatch.undo()

    assert [path.name for path in tmp_path.iterdir()] == [MARKER]


def test_folders_go_with_their_last_file_while_others_write_into_them(tmp_path):
    objects = prepared(str(tmp_path))
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for _ in range(100):
                objects.write(f"a/b/{name}", [b"x"])
                objects.delete(f"a/b/{name}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(f"f{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []
    assert {path.name for path in tmp_path.iterdir()} <= {".hold", ".deleted", MARKER}


def test_deletions_wait_until_they_are_held_no_more(tmp_path):
    objects, other = prepared(str(tmp_path)), prepared(str(tmp_path))
    for key in ("a/old", "a/new", "b"):
        objects.write(key, [b"before"])

    with objects.held():
        other.delete("a/old")
        other.delete("a/new")
        other.delete("none")
        other.write("a/new", [b"after"])  # the deletion was that of the file before
        assert sorted(objects.keys()) == ["a/new", "a/old", "b"]

    assert sorted(objects.keys()) == ["a/new", "b"]
    assert objects.read("a/new") == b"after"
    objects.delete("a/new")
    assert list(objects.keys()) == ["b"]


def test_deletions_that_a_dead_backup_left_over_are_done_at_the_next_start(tmp_path):
    objects = prepared(str(tmp_path))
    objects.write("a", [b"x"])
    holding = objects.held()
    holding.__enter__()
    objects.delete("a")
    objects.sweep()
    assert list(objects.keys()) == ["a"]

    listed = (tmp_path / ".deleted").read_bytes()
    holding.__exit__(None, None, None)
    objects.write("a", [b"y"])
    (tmp_path / ".deleted").write_bytes(listed)  # of another file of this name
    objects.sweep()
    assert list(objects.keys()) == ["a"]
    about = os.stat(tmp_path / "a")
    (tmp_path / ".deleted").write_text(f"{about.st_ino}.{about.st_mtime_ns} a\n")
    objects.sweep()
    assert list(objects.keys()) == []


TENSORS = {
    "flag": np.array([True, False, True]),
    "half": np.arange(5).astype(ml_dtypes.bfloat16),
    "wide": np.arange(6.0).reshape(2, 3).T,
    "empty": np.zeros((0, 3), np.float32),
    "scalar": np.array(7, np.int64),
}


def test_tensors_are_mapped_and_read_bit_for_bit(tmp_path):
    objects = prepared(str(tmp_path))
    objects.write("t", chunks(TENSORS, {"about": "ä"}))

    path = objects.local_path("t")
    with objects.open("t") as file:
        copies = read(file, objects.size("t"))
    for found, metadata in (mapped(path), copies):
        assert metadata == {"about": "ä"}
        assert {name: (a.dtype, a.tolist()) for name, a in found.items()} == {
            name: (a.dtype, a.tolist()) for name, a in TENSORS.items()
        }


@pytest.mark.parametrize("keep", [0, 5, 8, 40, -1])
def test_a_cut_file_of_tensors_is_refused(tmp_path, keep):
    whole = b"".join(chunks(TENSORS, {}))
    (tmp_path / "t").write_bytes(whole[:keep])

    with pytest.raises(DamagedFile):
        mapped(tmp_path / "t")


def test_a_finished_file_is_adopted_as_often_as_wanted_and_stays_where_it_is(objects, tmp_path):
    path = tmp_path / "made"
    path.write_bytes(b"content")

    objects.adopt("a/b", path)
    objects.adopt("a/b", path)

    assert objects.read("a/b") == path.read_bytes() == b"content"
    assert list(objects.keys()) == ["a/b"]
    assert not list(tmp_path.rglob("*.partial"))
    assert objects.exists("a/b") and not objects.exists("a/c")
