"""Files that nothing names are deleted after an hour."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from service.http import recorded
from service.objects import Objects
from service.store import orphans
from service.store.orphans import Orphans
from tests.service.prepared import prepared


def test_a_file_is_deleted_when_nothing_has_named_it_for_an_hour(tmp_path, monkeypatch):
    objects = prepared(str(tmp_path))
    for key in ("a/named", "a/never", "a/late", "b/other"):
        objects.write(key, [b"x"])
    rows = {"a/named"}

    async def named(keys: set[str]) -> set[str]:
        return keys & rows

    swept = Orphans(objects, {"a": named})
    asyncio.run(swept.sweep())
    assert len([*objects.keys()]) == 4, "a file without a row may get one soon"
    rows.add("a/late")
    now = time.monotonic()
    monkeypatch.setattr(orphans.time, "monotonic", lambda: now + 3601)
    asyncio.run(swept.sweep())

    assert {*objects.keys()} == {"a/named", "a/late", "b/other"}


def test_a_file_that_an_earlier_process_left_is_deleted_by_its_own_age(tmp_path, monkeypatch):
    monkeypatch.setattr(orphans, "CONFIRM_S", 0.0)
    objects = prepared(str(tmp_path))
    for key in ("a/named", "a/left", "a/new"):
        objects.write(key, [b"x"])
    for key in ("a/named", "a/left"):
        _make_old(objects, key, 3601.0)

    async def named(keys: set[str]) -> set[str]:
        return keys & {"a/named"}

    asyncio.run(Orphans(objects, {"a": named}).sweep())

    assert {*objects.keys()} == {"a/named", "a/new"}


def test_an_old_file_stays_whose_row_appears_while_the_sweep_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(orphans, "CONFIRM_S", 0.0)
    objects = prepared(str(tmp_path))
    objects.write("a/late", [b"x"])
    _make_old(objects, "a/late", 3601.0)
    answers = iter([set(), {"a/late"}])

    async def named(keys: set[str]) -> set[str]:
        return next(answers)

    asyncio.run(Orphans(objects, {"a": named}).sweep())

    assert {*objects.keys()} == {"a/late"}


def _make_old(objects: Objects, key: str, seconds: float) -> None:
    path, then = objects.local_path(key), time.time() - seconds
    assert path is not None
    os.utime(path, (then, then))


@pytest.mark.parametrize("url", ["directory", "memory"])
def test_files_of_answers_are_kept_for_a_day(url, tmp_path):
    objects = prepared(str(tmp_path / "objects") if url == "directory" else f"memory://{tmp_path.name}")
    objects.write("answers/one", [b"x"])

    assert asyncio.run(recorded.kept({"answers/one", "answers/none"}, objects)) == {"answers/one", "answers/none"}
    assert 0.0 <= objects.age("answers/one") < 60.0


def test_files_of_answers_older_than_a_day_have_no_row(tmp_path):
    objects = prepared(str(tmp_path))
    objects.write("answers/one", [b"x"])
    _make_old(objects, "answers/one", 25 * 3600.0)

    assert asyncio.run(recorded.kept({"answers/one"}, objects)) == set()
