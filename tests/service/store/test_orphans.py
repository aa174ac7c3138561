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


def test_a_file_is_deleted_when_nothing_has_named_it_for_an_hour(tmp_path, monkeypatch):
    objects = Objects(str(tmp_path))
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


@pytest.mark.parametrize("url", ["directory", "memory"])
def test_files_of_answers_are_kept_for_a_day(url, tmp_path):
    objects = Objects(str(tmp_path / "objects") if url == "directory" else f"memory://{tmp_path.name}")
    objects.write("answers/one", [b"x"])

    assert asyncio.run(recorded.kept({"answers/one", "answers/none"}, objects)) == {"answers/one", "answers/none"}
    assert 0.0 <= objects.age("answers/one") < 60.0


def test_files_of_answers_older_than_a_day_have_no_row(tmp_path):
    objects = Objects(str(tmp_path))
    objects.write("answers/one", [b"x"])
    path, before = objects.local_path("answers/one"), time.time() - 25 * 3600
    assert path is not None
    os.utime(path, (before, before))

    assert asyncio.run(recorded.kept({"answers/one"}, objects)) == set()
