"""Journals whose files are away or lost."""

from __future__ import annotations

import pytest

from service.problems import HttpProblem
from service.store.errors import StorageUnavailable
from tests.service.sessions.fake_service import Process
from tests.service.sessions.test_lost_workers import id, read, step  # noqa: F401

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("small_entries")]


async def kill_worker(process: Process, session: str) -> None:
    held = process.registry.held("local", session)
    assert held is not None
    process.pool.kill(held.worker)


async def test_a_session_waits_for_the_files_of_its_journal(process, id, tmp_path):  # noqa: F811
    await step(process, id)
    await kill_worker(process, id)
    (tmp_path / "objects").rename(tmp_path / "away")

    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="the directory of files is not in its place"):
            await read(process, id)

    (tmp_path / "away").rename(tmp_path / "objects")
    assert await step(process, id) == 2


async def test_a_session_whose_journal_lacks_a_file_is_lost(process, id, tmp_path):  # noqa: F811
    await step(process, id)
    await kill_worker(process, id)
    for file in (tmp_path / "objects" / "journal").rglob("*"):
        if file.is_file():
            file.unlink()

    with pytest.raises(HttpProblem, match="a file of its journal is missing") as lost:
        await read(process, id)

    assert lost.value.code == "gone"


async def test_a_session_ends_while_its_files_are_away(process, id, tmp_path):  # noqa: F811
    (tmp_path / "objects").rename(tmp_path / "away")

    await process.registry.close("local", id)

    (tmp_path / "away").rename(tmp_path / "objects")
    with pytest.raises(HttpProblem):
        await read(process, id)
