"""Lists with the newest entry first, whose pages hold together while entries come and go."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass

import pytest
from sqlalchemy import Connection, delete, insert, select, text

from service.store.newest import Place, token_pattern
from service.store.store import Store
from service.store.tables import uploads

ID = r"upl_[a-z2-7]{26}"
LISTS = ["programs", "sessions", "checkpoints", "operations", "datasets", "uploads", "jobs"]


@dataclass(frozen=True)
class Entry:
    created: float
    id: str


def entry(created: float, number: int) -> Entry:
    return Entry(created, "upl_" + "".join(random.Random(number).choices("abcdefghijklmnopqrstuvwxyz234567", k=26)))


def add(connection: Connection, *entries: Entry) -> None:
    more = {"tenant": "a", "about": "{}", "size": 0, "offset": 0, "expires": 0.0}
    connection.execute(insert(uploads), [{"id": each.id, "created": each.created, **more} for each in entries])


def page(store: Store, token: str, size: int) -> list[Entry]:
    def work(connection: Connection) -> list[Entry]:
        query = select(uploads.c.created, uploads.c.id).where(uploads.c.tenant == "a")
        return [Entry(*row) for row in connection.execute(Place.of(token).query(query, uploads).limit(size))]

    return asyncio.run(store.read(work))


def pages(store: Store, size: int, token: str = "", between=lambda: None) -> list[Entry]:
    found: list[Entry] = []
    while part := page(store, token, size):
        found += part
        token = Place.of(token).token(part[-1])
        assert re.fullmatch(token_pattern(ID), token)
        assert Place.of(token).sorted(found) == []
        between()
    return found


def test_pages_have_each_entry_once_and_the_newest_first(store):
    times = [1767225600.0, 1767225600.123456, 1767225600.1234567, 1e9 + 0.1, 1.0]
    entries = [entry(times[n % 5], n) for n in range(23)]  # several of the same time
    asyncio.run(store.write(lambda c: add(c, *entries)))
    expected = sorted(entries, key=lambda each: (each.created, each.id), reverse=True)

    for size in (1, 2, 7, 23, 50):
        assert pages(store, size) == expected
    assert Place.of("").sorted(entries) == expected


def test_what_comes_and_goes_between_pages_moves_nothing_else(store):
    entries = [entry(1000.0 + n, n) for n in range(20)]
    asyncio.run(store.write(lambda c: add(c, *entries)))
    rng, added, gone = random.Random(3), [], set()

    def between() -> None:
        added.append(entry(2000.0 + len(added), 100 + len(added)))
        old = rng.choice(entries)
        gone.add(old)
        asyncio.run(store.write(lambda c: add(c, added[-1])))
        asyncio.run(store.write(lambda c: c.execute(delete(uploads).where(uploads.c.id == old.id)) and None))

    found = pages(store, 3, between=between)

    assert len(set(found)) == len(found)
    assert set(entries) - gone <= set(found) <= set(entries)


def test_a_token_of_an_earlier_version_goes_on_in_the_order_of_ids(store):
    entries = sorted((entry(1000.0 - n, n) for n in range(9)), key=lambda each: each.id)
    asyncio.run(store.write(lambda c: add(c, *entries)))

    assert pages(store, 2, token=entries[3].id) == entries[4:]


@pytest.mark.parametrize("name", LISTS)
def test_a_page_is_read_from_an_index(tmp_path, name):
    store = Store(tmp_path)
    store.open_now()
    try:
        table = next(each for each in uploads.metadata.sorted_tables if each.name == name)
        token = f"1.0~{'x' * 30}"
        query = Place.of(token).query(select(table.c.id).where(table.c.tenant == "a"), table).limit(3)
        sql = str(query.compile(compile_kwargs={"literal_binds": True}))
        plan = asyncio.run(store.read(lambda c: [row[3] for row in c.execute(text(f"EXPLAIN QUERY PLAN {sql}"))]))
    finally:
        store.close_now()

    assert f"ix_{name}_tenant_created_id" in plan[0]
    assert not any("TEMP B-TREE" in step for step in plan), plan
