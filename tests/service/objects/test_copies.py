"""Files of a remote store as files of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.objects import Objects
from service.objects import copies as of_copies
from service.objects.copies import copies, delete_copies, delete_unfinished, local_file, place_of
from tests.service.prepared import prepared


@pytest.fixture
def remote(tmp_path: Path) -> Objects:
    return prepared(f"memory://{tmp_path.name}")


def test_a_file_of_a_remote_store_is_copied_once(tmp_path, remote):
    remote.write("datasets/abc", [b"content"])
    path = local_file(remote, "datasets/abc", tmp_path)
    remote.delete("datasets/abc")

    assert path == place_of(remote, "datasets/abc", tmp_path)
    assert local_file(remote, "datasets/abc", tmp_path).read_bytes() == b"content"
    assert copies(tmp_path) == {"abc"}


def test_a_file_of_a_directory_is_not_copied(tmp_path):
    objects = prepared(str(tmp_path / "objects"))
    objects.write("datasets/abc", [b"content"])

    assert local_file(objects, "datasets/abc", tmp_path) == tmp_path / "objects/datasets/abc"
    assert copies(tmp_path) == set()


def test_an_interrupted_copy_leaves_no_file(tmp_path, remote, monkeypatch):
    monkeypatch.setattr(of_copies, "PIECE", 2)
    remote.write("datasets/abc", [b"content"])

    def stop() -> None:
        if any((tmp_path / "copies").iterdir()):
            raise TimeoutError

    with pytest.raises(TimeoutError):
        local_file(remote, "datasets/abc", tmp_path, stop)
    with pytest.raises(FileNotFoundError):
        local_file(remote, "datasets/missing", tmp_path)

    assert [*(tmp_path / "copies").iterdir()] == []


def test_unfinished_copies_of_killed_processes_are_deleted_and_complete_ones_stay(tmp_path, remote):
    remote.write("datasets/abc", [b"content"])
    path = local_file(remote, "datasets/abc", tmp_path)
    path.with_name("def.123.partial").write_bytes(b"con")
    assert copies(tmp_path) == {"abc"}
    delete_unfinished(tmp_path)
    assert [*(tmp_path / "copies").iterdir()] == [path]
    delete_copies(tmp_path, ["abc", "missing"])

    assert copies(tmp_path) == set()
    delete_unfinished(tmp_path / "other")
