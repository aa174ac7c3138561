"""Reads and writes of the store, on each kind of database."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from service.store import patience, server
from service.store.errors import StorageError, StorageUnavailable
from service.store.store import Store, StoreClosed
from service.store.tables import tenants, usage
from tests.postgres import postgres


def add(name: str) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        connection.execute(insert(tenants), {"id": name, "limits": "{}", "created": 1.0, "changes": 0})

    return work


def names(connection: Connection) -> list[str]:
    return [row.id for row in connection.execute(select(tenants).order_by(tenants.c.id))]


def test_an_acknowledged_write_is_read_by_a_store_that_opens_later(make_store):
    first = make_store()
    asyncio.run(first.write(add("a")))
    first.close_now()

    assert asyncio.run(make_store().read(names)) == ["a"]


def test_a_write_that_fails_leaves_nothing_and_no_other_write_fails_with_it(store):
    """The writes arrive together, so that on SQLite they share a commit."""

    def failing(connection: Connection) -> None:
        add("half")(connection)
        raise ValueError("no")

    async def run() -> list[Any]:
        works = [add("a"), failing, add("b"), add("a"), add("c")]
        return await asyncio.gather(*(store.write(work) for work in works), return_exceptions=True)

    done = asyncio.run(run())

    assert [type(each) for each in done].count(type(None)) == 3
    assert isinstance(done[1], ValueError)
    assert sum(isinstance(each, IntegrityError) for each in (done[0], done[3])) == 1
    assert asyncio.run(store.read(names)) == ["a", "b", "c"]


def test_concurrent_changes_of_one_row_are_all_counted(store):
    day = {"tenant": "t", "day": "2026-11-22", "kind": "steps"}

    def count(connection: Connection) -> float:
        now = connection.execute(select(usage.c.amount)).scalar_one()
        connection.execute(update(usage).values(amount=now + 1))
        return now + 1

    async def run() -> list[float]:
        await store.write(lambda connection: connection.execute(insert(usage), {**day, "amount": 0.0}) and None)
        return await asyncio.gather(*(store.write(count) for _ in range(40)))

    assert sorted(asyncio.run(run())) == [float(n) for n in range(1, 41)]


def test_a_limit_that_a_write_checks_holds_among_concurrent_writes(store):
    def add_below_limit(name: str) -> Callable[[Connection], bool]:
        def work(connection: Connection) -> bool:
            if len(names(connection)) >= 5:
                return False
            add(name)(connection)
            return True

        return work

    async def run() -> list[bool]:
        return await asyncio.gather(*(store.write(add_below_limit(f"t{n:02}")) for n in range(20)))

    assert sum(asyncio.run(run())) == 5
    assert len(asyncio.run(store.read(names))) == 5


def test_a_read_cannot_write(store):
    with pytest.raises((StorageError, DBAPIError)):
        asyncio.run(store.read(add("a")))
    assert asyncio.run(store.read(names)) == []


def test_a_read_sees_one_state_while_others_write(store):
    begun, written = threading.Event(), threading.Event()

    def twice(connection: Connection) -> tuple[list[str], list[str]]:
        first = names(connection)
        begun.set()
        assert written.wait(60)
        return first, names(connection)

    async def run() -> tuple[list[str], list[str]]:
        reading = asyncio.ensure_future(store.read(twice))
        await asyncio.to_thread(begun.wait, 20)
        await store.write(add("a"))
        written.set()
        return await reading

    assert asyncio.run(run()) == ([], [])
    assert asyncio.run(store.read(names)) == ["a"]


def test_a_store_is_used_only_while_it_is_open(tmp_path):
    store = Store(tmp_path)
    for act in (lambda: asyncio.run(store.read(names)), lambda: asyncio.run(store.write(add("a")))):
        with pytest.raises(StoreClosed):
            act()
    store.open_now()
    store.open_now()
    asyncio.run(store.write(add("a")))
    store.close_now()
    store.close_now()
    with pytest.raises(StoreClosed):
        asyncio.run(store.read(names))


def test_every_write_is_answered_when_the_store_closes_meanwhile(store):
    async def run() -> list[Any]:
        writes = [asyncio.ensure_future(store.write(add(f"{n:03}"))) for n in range(300)]
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        writes += [asyncio.ensure_future(store.write(add(f"{n:03}"))) for n in range(300, 320)]
        done = await asyncio.wait_for(asyncio.gather(*writes, return_exceptions=True), 60)
        await closing
        return done

    done = asyncio.run(run())
    assert {type(each) for each in done} <= {type(None), StoreClosed, RuntimeError}
    store.open_now()
    assert len(asyncio.run(store.read(names))) == done.count(None)


def test_a_healthy_store_fails_no_check(store):
    assert asyncio.run(store.health()) == {"data_directory": None, "store": None}


# --- PostgreSQL --------------------------------------------------------------------------------------------------


def test_a_connection_that_the_server_ended_is_replaced(postgres_server, postgres_url):
    store = Store(None, postgres_url)
    store.open_now()
    asyncio.run(store.write(add("a")))

    postgres_server.hang_up()

    asyncio.run(store.write(add("b")))
    assert asyncio.run(store.read(names)) == ["a", "b"]
    store.close_now()


def test_a_database_that_takes_no_writes_now_is_read_and_refuses_them_in_words(postgres_server, postgres_url):
    store = Store(None, postgres_url)
    store.open_now()
    asyncio.run(store.write(add("a")))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET default_transaction_read_only = on")  # type: ignore[arg-type]
    postgres_server.hang_up()  # the setting is of later connections

    with pytest.raises(StorageUnavailable, match="the database takes no writes now") as refused:
        asyncio.run(store.write(add("b")))
    assert (refused.value.detail, refused.value.status) == ("the database takes no writes now", 503)
    assert asyncio.run(store.read(names)) == ["a"]
    store.close_now()


def test_a_connection_that_ends_within_a_write_fails_it_and_leaves_nothing(postgres_server, postgres_url):
    store = Store(None, postgres_url)
    store.open_now()

    def work(connection: Connection) -> None:
        add("half")(connection)
        postgres_server.hang_up()
        add("more")(connection)

    with pytest.raises(StorageUnavailable) as refused:
        asyncio.run(store.write(work))
    assert (refused.value.code, refused.value.status, refused.value.retryable) == ("storage-unavailable", 503, True)
    assert asyncio.run(store.read(names)) == []
    store.close_now()


def test_writes_fail_while_the_server_is_down_and_work_again_when_it_is_back():
    with postgres() as server:
        url = server.new_database()
        store = Store(None, url)
        store.open_now()
        asyncio.run(store.write(add("kept")))
        server.kill()

        for act in (lambda: store.write(add("lost")), lambda: store.read(names)):
            with pytest.raises(StorageUnavailable) as refused:
                asyncio.run(act())
            assert (refused.value.status, refused.value.retryable) == (503, True)
        assert asyncio.run(store.health())["store"] is not None
        with pytest.raises(StorageUnavailable):
            Store(None, url).open_now()

        server.start()
        asyncio.run(store.write(add("next")))
        assert asyncio.run(store.read(names)) == ["kept", "next"]
        assert not any(asyncio.run(store.health()).values())
        store.close_now()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(patience, "LONGEST_S", 1.0)  # a busy machine may delay each answer, too
    monkeypatch.setattr(patience, "LEAST_S", 0.2)


@pytest.mark.usefixtures("impatient")
def test_uses_of_a_server_that_is_silent_end_in_time_and_work_again_when_it_answers(postgres_server, postgres_url):
    """Also those that wait for a connection: there are more of them than connections."""
    store = Store(None, postgres_url)
    store.open_now()
    asyncio.run(store.write(add("kept")))

    async def use() -> list[Any]:
        acts = [store.read(names) for _ in range(12)] + [store.write(add(f"lost{i}")) for i in range(24)]
        return await asyncio.gather(*acts, return_exceptions=True)

    begin = time.monotonic()
    with postgres_server.silent():
        found = asyncio.run(use())
        took = time.monotonic() - begin
        health = asyncio.run(store.health())

    assert {type(each) for each in found} == {StorageUnavailable}
    assert {(each.status, each.retryable, each.detail) for each in found} == {
        (503, True, "the database does not answer")
    }
    assert took < 12.0
    assert health["store"] is not None
    asyncio.run(store.write(add("next")))
    assert asyncio.run(store.read(names)) == ["kept", "next"]
    store.close_now()


@pytest.mark.usefixtures("impatient")
def test_a_use_that_takes_long_is_not_given_up_while_the_server_answers(postgres_url):
    store = Store(None, postgres_url)
    store.open_now()

    def long(connection: Connection) -> None:
        for i in range(8):
            connection.execute(text("SELECT pg_sleep(0.15)"))
            add(str(i))(connection)

    asyncio.run(store.write(long))

    assert len(asyncio.run(store.read(names))) == 8
    store.close_now()


def test_a_use_of_the_store_ends_at_the_deadline_of_its_request(postgres_server, postgres_url, monkeypatch):
    monkeypatch.setattr(patience, "LEAST_S", 0.2)
    store = Store(None, postgres_url)
    store.open_now()

    async def use() -> float:
        begin = time.monotonic()
        patience.DEADLINE.set(begin + 0.3)
        with pytest.raises(StorageUnavailable):
            await store.write(add("late"))
        return time.monotonic() - begin

    with postgres_server.silent():
        assert asyncio.run(use()) < 5.0
    store.close_now()


def test_a_write_whose_process_is_stopped_does_not_block_others_for_ever(postgres_url, monkeypatch):
    monkeypatch.setattr(server, "IDLE_S", 1.0)
    stopped, other = Store(None, postgres_url), Store(None, postgres_url)
    for each in (stopped, other):
        each.open_now()
    asyncio.run(other.write(add("a")))
    changed, goes_on = threading.Event(), threading.Event()

    def change(connection: Connection) -> None:
        connection.execute(update(tenants).values(changes=tenants.c.changes + 1))

    def slow(connection: Connection) -> None:
        change(connection)
        changed.set()
        goes_on.wait(30.0)

    async def run() -> None:
        waiting = asyncio.create_task(stopped.write(slow))
        await asyncio.to_thread(changed.wait, 30.0)
        await other.write(change)
        goes_on.set()
        with pytest.raises(StorageUnavailable):
            await waiting

    asyncio.run(run())
    assert asyncio.run(other.read(lambda c: c.execute(select(tenants.c.changes)).scalar())) == 1
    for each in (stopped, other):
        each.close_now()


def test_services_that_start_together_create_the_tables_once(postgres_url):
    stores = [Store(None, postgres_url) for _ in range(4)]
    failed: list[BaseException] = []

    def start(each: Store) -> None:
        try:
            each.open_now()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=start, args=(each,)) for each in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in stores:
        each.close_now()

    assert failed == []


def test_programs_of_another_application_are_refused(postgres_url):
    store = Store(None, postgres_url)
    store.open_now()
    asyncio.run(store.write(lambda c: c.exec_driver_sql("DROP TABLE alembic_version") and None))
    store.close_now()

    with pytest.raises(StorageUnavailable, match="another application"):
        Store(None, postgres_url).open_now()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_of_another_encoding_is_refused_in_one_sentence(postgres_server, encoding):
    url = postgres_server.new_database(encoding)
    try:
        with pytest.raises(StorageUnavailable) as refused:
            Store(None, url).open_now()
    finally:
        postgres_server.drop(url)

    assert f"has the encoding {encoding}; expected UTF8" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_stored_text_is_utf_8_whatever_encoding_the_environment_names(postgres_url, monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    store = Store(None, postgres_url)
    store.open_now()
    name = "\N{HIRAGANA LETTER A}" * 64

    asyncio.run(store.write(add(name)))

    assert asyncio.run(store.read(names)) == [name]
    store.close_now()


@pytest.mark.parametrize("url", ["mysql://h/x", "nonsense", "postgresql://127.0.0.1:1/x"])
def test_a_database_that_cannot_be_reached_is_one_sentence(url):
    with pytest.raises(StorageUnavailable) as refused:
        Store(None, url).open_now()
    assert "\n" not in str(refused.value)
    assert "127.0.0.1" not in refused.value.detail
