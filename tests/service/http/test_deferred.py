"""Operations and clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from service.http import deferred
from service.http.deferred import Deferred, Operations
from service.http.recorded import Recorded
from service.problems import HttpProblem
from service.settings import Settings
from service.store import operations as rows
from service.store.errors import StorageUnavailable
from service.store.operations import StoredOperation
from service.store.store import Store
from tests.service.prepared import prepared


def test_an_operation_whose_client_leaves_while_it_is_stored_begins_all_the_same():
    """Its row may be there already: without its task it would be running for ever."""
    begun: list[str] = []

    async def scene() -> None:
        entered, gate = asyncio.Event(), asyncio.Event()

        class Beginning:
            async def begin(self, request: str, ending: asyncio.Task[Any], stop: asyncio.Event) -> str:
                entered.set()
                await gate.wait()
                begun.append(request)
                ending.cancel()
                return "opn_a"

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await asyncio.sleep(60)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            raise AssertionError("the client has left")

        headers = [(b"prefer", b"respond-async"), (b"content-length", b"2")]
        scope = {"type": "http", "method": "POST", "path": "/v1/gradients", "headers": headers, "state": {}}
        call = asyncio.create_task(Deferred(app, Beginning())(scope, receive, send))  # type: ignore[arg-type]
        async with asyncio.timeout(60):
            await entered.wait()
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        gate.set()
        await asyncio.sleep(0.01)

    asyncio.run(scene())

    assert begun == ["POST /v1/gradients"]


class Failing:
    """A store whose writes fail for some time."""

    is_sqlite = True

    def __init__(self, store: Store) -> None:
        self._store, self.fails = store, False

    async def read(self, work: Any) -> Any:
        return await self._store.read(work)

    async def write(self, work: Any) -> Any:
        found = await self._store.write(work) if not self.fails or work.__name__ == "adding" else None
        if self.fails:
            raise StorageUnavailable("the store does not answer")
        return found


@pytest.fixture
def house(tmp_path, monkeypatch):
    monkeypatch.setattr(deferred, "AGAIN_S", 0.01)
    store = Store(tmp_path)
    store.open_now()
    failing = Failing(store)
    yield failing, Operations(Settings(), failing, prepared(str(tmp_path / "objects")), "api_1")  # type: ignore[arg-type]
    store.close_now()


def test_the_result_of_an_operation_that_ends_while_the_store_is_away_is_stored_later(house):
    store, operations = house

    async def scene() -> Any:
        ends = asyncio.Event()

        async def call() -> Recorded:
            await ends.wait()
            return Recorded(200, {}, [b"result"])

        id = await operations.begin("POST /v1/gradients", asyncio.create_task(call()), asyncio.Event())
        store.fails = True
        ends.set()
        await asyncio.sleep(0.05)
        assert (await store.read(lambda db: rows.get(db, "local", id))).state == rows.RUNNING
        store.fails = False
        async with asyncio.timeout(60):
            await operations.drain()
        return await store.read(lambda db: rows.get(db, "local", id))

    found = asyncio.run(scene())

    assert (found.state, found.status) == ("succeeded", 200)


def test_an_operation_that_ends_before_its_deletion_keeps_its_answer_from_a_client_that_knows_it_running(house):
    """Between the check of If-Match and the deletion, its answer would be lost unseen."""
    store, operations = house

    async def scene() -> tuple[list[str], Any]:
        ends, seen = asyncio.Event(), []

        async def call() -> Recorded:
            await ends.wait()
            return Recorded(200, {}, [b"result"])

        def check(found: StoredOperation) -> None:
            seen.append(found.state)
            if found.state != rows.RUNNING:
                raise HttpProblem("precondition-failed", "it has changed")

        write = store.write

        async def late(work: Any) -> Any:
            """The call ends before the first write of the deletion."""
            store.write = write
            ends.set()
            await operations.drain()
            return await write(work)

        id = await operations.begin("POST /v1/sessions/ses_a/steps", asyncio.create_task(call()), asyncio.Event())
        store.write = late
        with pytest.raises(HttpProblem):
            await operations.delete(id, check)
        return seen, await store.read(lambda db: rows.get(db, "local", id))

    seen, found = asyncio.run(scene())

    assert seen[-1] == found.state == "succeeded"
    assert found.answer


@pytest.mark.parametrize("request_line", ["POST /v1/gradients", "POST /v1/sessions/ses_a/steps"])
def test_a_deleted_operation_stops_its_call_and_leaves_nothing(house, request_line):
    store, operations = house

    async def scene() -> tuple[bool, bool, Any]:
        stop = asyncio.Event()

        async def call() -> Recorded:
            await stop.wait()
            return Recorded(200, {}, [b"result"])

        ending = asyncio.create_task(call())
        id = await operations.begin(request_line, ending, stop)
        deleted = await operations.delete(id, lambda found: None)
        again = await operations.delete(id, lambda found: None)
        async with asyncio.timeout(60):
            await operations.drain()
        assert ending.done()
        return deleted, again, await store.read(lambda db: rows.page(db, "local", "", 9))

    assert asyncio.run(scene()) == (True, False, [])


def test_an_operation_that_was_refused_though_it_is_stored_does_not_run_for_ever(house):
    store, operations = house

    async def scene() -> tuple[Any, Any]:
        async def call() -> Recorded:
            return Recorded(200, {}, [])

        ending = asyncio.create_task(call())
        store.fails = True
        with pytest.raises(StorageUnavailable):
            await operations.begin("POST /v1/gradients", ending, asyncio.Event())
        running = await store.read(lambda db: rows.running(db, "local"))
        store.fails = False
        await operations.sweep()
        return running, await store.read(lambda db: rows.running(db, "local"))

    assert asyncio.run(scene()) == (1, 0)
