"""Registered programs, on each kind of database."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import update

from service.store.errors import StorageUnavailable
from service.store.newest import Place
from service.store.program_text import ProgramText
from service.store.programs import ProgramStore, TooManyPrograms
from service.store.tables import programs

SIGNATURE = b'{"feeds":[]}'


def text(number: int, size: int = 10) -> ProgramText:
    return ProgramText.of({"blocks": [{"ops": [], "n": number, "text": "x" * size}]})


def put(store: ProgramStore, tenant: str, number: int) -> tuple[str, bool]:
    stored, is_new = asyncio.run(store.put(tenant, text(number), SIGNATURE))
    return stored.id, is_new


def ids(store: ProgramStore, tenant: str, after: str = "", size: int = 50) -> tuple[list[str], bool]:
    page, more = asyncio.run(store.page(tenant, after, size))
    return [each.id for each in page], more


def get(store: ProgramStore, tenant: str, id: str) -> Any:
    found = asyncio.run(store.get(tenant, id))
    return None if found is None else json.loads(found.text)


def test_a_program_is_stored_once_for_each_tenant(store):
    stored = ProgramStore(store, 10)

    first, again, other = put(stored, "a", 1), put(stored, "a", 1), put(stored, "b", 1)

    assert (first[1], again[1], other[1]) == (True, False, True)
    assert first[0] == again[0] == other[0] == text(1).id


def test_a_tenant_sees_and_deletes_only_its_own_programs(store):
    stored = ProgramStore(store, 10)
    mine, shared = put(stored, "a", 1)[0], put(stored, "a", 2)[0]
    put(stored, "b", 2)

    assert get(stored, "a", mine) is not None
    assert get(stored, "b", mine) is None
    assert asyncio.run(stored.delete("b", mine)) is False
    assert asyncio.run(stored.delete("b", shared)) is True
    assert get(stored, "b", shared) is None
    assert get(stored, "a", shared) == json.loads(text(2).text)
    assert ids(stored, "a")[0] == [shared, mine]
    assert ids(stored, "b")[0] == []


def test_the_limit_of_programs_is_that_of_each_tenant(store):
    stored = ProgramStore(store, 2)
    for tenant in ("a", "b"):
        put(stored, tenant, 1)
        put(stored, tenant, 2)
        with pytest.raises(TooManyPrograms):
            put(stored, tenant, 3)
        assert put(stored, tenant, 2)[1] is False  # it is there already
        assert asyncio.run(stored.delete(tenant, text(1).id))
        assert put(stored, tenant, 3)[1] is True


def test_pages_list_every_program_once_and_the_newest_first(store):
    stored = ProgramStore(store, 100)
    made = [put(stored, "a", number)[0] for number in range(7)]

    found, more, token = [], [], ""
    for _ in range(3):
        page, has_more = asyncio.run(stored.page("a", token, 3))
        found, more = [*found, *page], [*more, has_more]
        token = Place.of(token).token(page[-1])

    assert [each.id for each in found] == made[::-1]
    assert more == [True, True, False]


def test_a_page_ends_early_where_its_signatures_are_large(store):
    stored = ProgramStore(store, 100)
    for number in range(4):
        asyncio.run(stored.put("a", text(number), b"[" + b" " * 600_000 + b"]"))

    assert [len(ids(stored, "a")[0]), ids(stored, "a")[1]] == [2, True]


def test_a_program_that_another_service_deleted_is_not_answered_from_memory(make_store, request):
    if "sqlite" in request.node.name:
        pytest.skip("one service owns a SQLite file")
    one, other = ProgramStore(make_store(), 10), ProgramStore(make_store(), 10)
    id = put(one, "a", 1)[0]
    assert get(one, "a", id) is not None

    asyncio.run(other.delete("a", id))

    assert get(one, "a", id) is None


def test_a_program_whose_bytes_changed_is_never_answered(store):
    stored = ProgramStore(store, 10)
    id = put(stored, "a", 1)[0]
    asyncio.run(store.write(lambda c: c.execute(update(programs).values(document=b'{"blocks":[]}')) and None))

    with pytest.raises(StorageUnavailable, match="damaged"):
        get(stored, "a", id)
