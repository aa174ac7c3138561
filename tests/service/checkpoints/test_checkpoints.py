"""Rows and files of checkpoints: tenants, the sweep, failures of the disk, ranges. On SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.checkpoints import Checkpoints
from service.checkpoints.checkpoints import new_key
from service.http.file_answer import range_of
from service.ids import REPEATABLE, Repeatable, new_id
from service.problems import HttpProblem
from service.store import checkpoints as rows
from service.store.checkpoints import StoredCheckpoint
from service.store.errors import StorageFull
from service.store.newest import Place
from tests.service.prepared import prepared
from tests.service.store.conftest import make_store, store

__all__ = ["make_store", "store"]

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture
def kept(store, tmp_path: Path) -> Checkpoints:
    return Checkpoints(store, prepared(str(tmp_path / "objects")))


def made(kept: Checkpoints, size: int = 10, **more: Any) -> StoredCheckpoint:
    """A row that is not stored, and its stored file."""
    written = kept.objects.write(key := new_key(), [b"x" * size])
    about = {"labels": {"a": "b"}, "loss": "loss"}
    plain = StoredCheckpoint(
        new_id("ckp_"), "ses_1", "prg_1", "n", 3, key, size, written.sha256, about, time.time(), None
    )
    return replace(plain, **more)


def files(kept: Checkpoints) -> set[str]:
    return set(kept.objects.keys("checkpoints/client"))


def test_checkpoints_belong_to_one_tenant(kept):
    own, same_id = made(kept), made(kept)
    same_id = replace(same_id, id=own.id, name="other")
    run(kept.add("a", own))
    run(kept.add("b", same_id))

    assert (run(kept.get("a", own.id)), run(kept.get("b", own.id))) == (own, same_id)
    with pytest.raises(HttpProblem, match="no checkpoint"):
        run(kept.get("c", own.id))
    with pytest.raises(HttpProblem, match="no checkpoint"):
        run(kept.change("c", own.id, lambda found: found))
    run(kept.remove("c", own.id))
    run(kept.change("b", own.id, lambda found: replace(found, name="new")))
    assert run(kept.get("a", own.id)).name == "n"
    run(kept.remove("a", own.id))
    assert files(kept) == {same_id.key}
    assert (run(kept.bytes_of("a")), run(kept.bytes_of("b"))) == (0, 10)


def test_pages_are_ordered_and_of_one_session_or_all(kept):
    all_of_them = [made(kept, session=f"ses_{i % 2}") for i in range(7)]
    for each in all_of_them:
        run(kept.add("a", each))
    newest = sorted(all_of_them, key=lambda each: (each.created, each.id), reverse=True)
    ids = [each.id for each in newest]

    assert [each.id for each in run(kept.page("a", "", 3))] == ids[:3]
    assert [each.id for each in run(kept.page("a", Place.of("").token(newest[2]), 9))] == ids[3:]
    assert {each.id for each in run(kept.page("a", "", 9, "ses_1"))} == {
        e.id for e in all_of_them if e.session == "ses_1"
    }


def test_the_sweep_deletes_expired_checkpoints(kept):
    expired, alive = made(kept, expires=time.time() - 1), made(kept, expires=time.time() + 3600)
    run(kept.add("a", expired))
    run(kept.add("a", alive))
    with pytest.raises(HttpProblem):
        run(kept.get("a", expired.id))

    run(kept.sweep())

    assert files(kept) == {alive.key}
    assert run(kept.get("a", alive.id)) == alive
    assert run(kept.bytes_of("a")) == 10


def test_files_of_checkpoints_are_named_by_their_rows(kept):
    alive, orphan = made(kept), made(kept)
    run(kept.add("a", alive))

    assert run(kept.named({alive.key, orphan.key})) == {alive.key}


def test_a_file_whose_row_cannot_be_stored_is_deleted(kept, monkeypatch):
    def full(db: Any, tenant: str, checkpoint: StoredCheckpoint) -> None:
        raise StorageFull("no space is left for stored data")

    monkeypatch.setattr(rows, "add", full)
    with pytest.raises(StorageFull):
        run(kept.add("a", made(kept)))

    assert files(kept) == set()


def test_a_file_whose_row_is_stored_though_the_store_failed_stays(kept, monkeypatch):
    checkpoint, write = made(kept), kept.store.write

    async def lost(work):
        await write(work)
        raise StorageFull("the answer is lost")

    monkeypatch.setattr(kept.store, "write", lost)
    with pytest.raises(StorageFull):
        run(kept.add("a", checkpoint))

    assert files(kept) == {checkpoint.key} and run(kept.get("a", checkpoint.id)) == checkpoint


def test_a_request_that_is_executed_twice_has_one_checkpoint_with_its_own_file(kept):
    first = made(kept)
    run(kept.add("a", first))
    second = made(kept, id=first.id)
    assert second.key != first.key

    assert run(kept.add("a", second)) == first
    assert files(kept) == {first.key}


def test_files_of_two_executions_of_one_request_differ():
    keys = set()
    for _ in range(2):
        token = REPEATABLE.set(Repeatable(b"request"))
        keys.add(new_key())
        REPEATABLE.reset(token)
    assert len(keys) == 2


def test_missing_and_cut_files_are_told(kept):
    one = made(kept)
    assert kept.open(one).read() == b"x" * 10
    with pytest.raises(HttpProblem, match="10 bytes in place of 11"):
        kept.open(replace(one, size=11))
    kept.objects.delete(one.key)
    with pytest.raises(HttpProblem, match="missing"):
        kept.open(one)


@given(st.integers(1, 50), st.text("0123456789-, =xbytes", max_size=12), st.booleans())
def test_every_range_is_a_part_of_the_file_or_refused(size, text, has_unit):
    try:
        found = range_of({"range": f"bytes={text}" if has_unit else text}, size, '"a"')
    except HttpProblem as problem:
        assert (problem.status, problem.headers["Content-Range"]) == (416, f"bytes */{size}")
    else:
        assert found is None or 0 <= found[0] < found[1] <= size
