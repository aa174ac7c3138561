"""The API processes that use one store."""

from __future__ import annotations

import asyncio
import time

from sqlalchemy import update

from service.ids import new_id
from service.store.presence import DEAD_S, Presence
from service.store.tables import instances


def ids(presence: Presence) -> list[str]:
    return [each.id for each in asyncio.run(presence.alive())]


def made(store, address="h:1"):
    presence = Presence(store, new_id("api_"), address)
    asyncio.run(presence.start())
    return presence


def set_back(store, id, seconds):
    """As if the process had renewed its row this long ago."""
    later = update(instances).where(instances.c.id == id).values(heartbeat=instances.c.heartbeat - seconds)
    asyncio.run(store.write(lambda c: c.execute(later) and None))


def test_a_process_is_present_from_start_to_stop(store):
    presence = made(store)

    found = asyncio.run(presence.alive())[0]
    assert (found.id, found.address) == (presence.id, "h:1")
    assert abs(found.started - time.time()) < 60
    asyncio.run(presence.stop())
    assert ids(presence) == []


def test_a_process_without_renewal_counts_as_ended_until_it_renews(store):
    presence = made(store)
    set_back(store, presence.id, DEAD_S + 1)
    assert ids(presence) == ([presence.id] if store.is_sqlite else [])  # one process owns a SQLite file

    asyncio.run(presence.renew())

    assert ids(presence) == [presence.id]


def test_a_removed_process_that_goes_on_is_added_again(store):
    presence = made(store)
    asyncio.run(presence.stop())

    asyncio.run(presence.renew())

    assert ids(presence) == [presence.id]


def test_processes_see_each_other_on_postgresql_and_follow_each_other_on_sqlite(store):
    first = made(store)
    second = made(store, "h:2")

    assert ids(first) == ids(second) == ([second.id] if store.is_sqlite else [first.id, second.id])


def test_rows_of_processes_that_ended_long_ago_are_removed_at_a_start(store):
    old = made(store)
    set_back(store, old.id, 100 * DEAD_S)
    made(store)

    found = asyncio.run(store.read(lambda c: [row.id for row in c.execute(instances.select())]))
    assert old.id not in found
