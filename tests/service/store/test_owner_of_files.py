"""Commands that root runs for a service of another user leave that user all files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from service.cli.main import main

OTHER = 10001

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def directory_of_other(path: Path) -> Path:
    path.mkdir(mode=0o700)
    os.chown(path, OTHER, OTHER)
    return path


def owners(path: Path) -> set[int]:
    found = {each.stat().st_uid for each in path.rglob("*")}
    assert found
    return found


def test_a_key_that_root_makes_locks_nobody_out(capsys):
    with tempfile.TemporaryDirectory() as folder:  # the folders of pytest are closed for the other user
        os.chmod(folder, 0o755)
        data = directory_of_other(Path(folder) / "data")

        assert main(["keys", "create", "--data-dir", str(data)]) == 0

        assert owners(data) == {OTHER}
    assert capsys.readouterr().out.startswith("bp_")
    assert os.geteuid() == 0


def test_a_restored_store_without_files_is_for_its_owner_alone(tmp_path: Path, capsys):
    assert main(["keys", "create", "--data-dir", str(tmp_path / "old")]) == 0
    assert main(["backup", str(tmp_path / "backup"), "--data-dir", str(tmp_path / "old")]) == 0
    data = directory_of_other(tmp_path / "data")

    assert main(["restore", str(tmp_path / "backup"), "--data-dir", str(data)]) == 0

    assert owners(data) == {OTHER}
    for made in (tmp_path / "backup", data):
        assert {each.stat().st_mode & 0o077 for each in made.rglob("*") if each.is_file()} == {0}


def test_a_backup_that_root_restores_belongs_to_the_owner_of_the_directories(tmp_path: Path, capsys, monkeypatch):
    assert main(["keys", "create", "--data-dir", str(tmp_path / "old")]) == 0
    assert main(["backup", str(tmp_path / "backup"), "--data-dir", str(tmp_path / "old")]) == 0
    data = directory_of_other(tmp_path / "data")
    monkeypatch.setenv("BACKPASS_OBJECTS_URL", str(tmp_path / "objects"))
    (tmp_path / "objects").mkdir()

    assert main(["restore", str(tmp_path / "backup"), "--data-dir", str(data)]) == 0

    assert owners(data) == {OTHER}
    assert (tmp_path / "objects").stat().st_uid == OTHER
