"""The middleware for Idempotency-Keys around a small application, with deaths at every moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from service.http.idempotency import Idempotency, Idempotent
from service.ids import new_id
from service.settings import Settings
from service.store import idempotency as rows
from service.store.errors import StorageUnavailable
from service.store.presence import Presence
from service.store.store import Store
from tests.service.prepared import prepared

Call = Callable[..., Awaitable[tuple[int, dict[str, str], Any]]]


class Application:
    """Creates things at POST /v1/jobs, shows them at GET /v1/jobs/{id}. `death`: raised before or after creation."""

    def __init__(self) -> None:
        self.things: dict[str, bytes] = {}
        self.runs = 0
        self.dies: str | None = None
        self.status = 201
        self.size = 0
        self.operation: dict[str, Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            if self.operation is not None:
                await JSONResponse(self.operation)(scope, receive, send)
                return
            found = self.things.get(scope["path"].rpartition("/")[2])
            answer = JSONResponse({"body": found.decode()} if found is not None else {}, 404 if found is None else 200)
            await answer(scope, receive, send)
            return
        body = (await receive())["body"]
        self.runs += 1
        await asyncio.sleep(0.01)
        if self.dies == "before":
            raise asyncio.CancelledError
        id = new_id("job_")
        if scope["path"] == "/v1/jobs" and self.status < 300:
            self.things[id] = body
        if self.dies == "after":
            raise asyncio.CancelledError
        headers = {"location": f"/v1/jobs/{id}"}
        await JSONResponse({"body": body.decode() + "x" * self.size}, self.status, headers)(scope, receive, send)


class House:
    """Services that follow each other on one store."""

    def __init__(self, path: Path, url: str = "") -> None:
        self.app = Application()
        self.path = path
        self.store = Store(path, url)

    async def call(
        self, body: str = "a", key: str = "k", path: str = "/v1/jobs", new: bool = False
    ) -> tuple[int, dict[str, str], Any]:
        await self.store.open()
        if new or not hasattr(self, "service"):
            self.service = Idempotent(
                self.app, Idempotency(Settings(), self.store, prepared(str(self.path / "o")), new_id("api_"))
            )
        messages: list[Any] = []
        headers = [(b"idempotency-key", key.encode()), (b"content-length", b"%d" % len(body))]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}

        async def receive() -> Any:
            return {"type": "http.request", "body": body.encode(), "more_body": False}

        async def send(message: Any) -> None:
            messages.append(message)

        await self.service(scope, receive, send)
        start = messages[0]
        text = b"".join(bytes(each.get("body", b"")) for each in messages[1:])
        return start["status"], {n.decode(): v.decode() for n, v in start["headers"]}, json.loads(text)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def house(tmp_path: Path, anyio_backend: str) -> Any:
    house = House(tmp_path)
    yield house
    await house.store.close()


@pytest.mark.anyio
@pytest.mark.parametrize("dies", ["before", "after"])
@pytest.mark.parametrize("new", [False, True], ids=["same process", "new process"])
async def test_a_request_that_died_creates_one_thing_when_it_is_repeated(house, dies, new):
    house.app.dies = dies
    with pytest.raises(asyncio.CancelledError):
        await house.call()
    house.app.dies = None

    status, headers, body = await house.call(new=new)
    again = await house.call(new=new)

    assert (status, body) == (201, {"body": "a"})
    assert list(house.app.things) == [headers["location"].rpartition("/")[2]]
    assert again[0] == 201 and again[2] == body and again[1]["idempotency-replayed"] == "true"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "operation, runs",
    [({"status": None}, 1), ({"status": 200}, 1), ({"status": 422}, 1), ({"status": 503}, 2), (None, 2)],
    ids=["running", "succeeded", "refused", "failed by chance", "not stored any more"],
)
@pytest.mark.parametrize("path", ["/v1/gradients", "/v1/sessions/ses_aaaaaaaaaaaaaaaaaaaaaaaaaa/steps"])
async def test_a_repeated_request_runs_again_if_its_operation_changed_nothing_and_has_no_result(
    house, path, operation, runs
):
    house.app.status = 202
    await house.call(path=path)
    house.app.operation = operation

    again = await house.call(path=path)

    runs = runs if path == "/v1/gradients" else 1
    assert house.app.runs == runs
    assert ("idempotency-replayed" in again[1]) == (runs == 1)


@pytest.mark.anyio
async def test_the_outcome_of_a_change_that_died_is_told_as_unknown(house):
    path = "/v1/sessions/ses_aaaaaaaaaaaaaaaaaaaaaaaaaa/steps"
    house.app.dies = "after"
    with pytest.raises(asyncio.CancelledError):
        await house.call(path=path)
    house.app.dies = None

    status, _, body = await house.call(path=path, new=True)

    assert (status, body["code"]) == (409, "outcome-unknown")
    assert house.app.runs == 1


@pytest.mark.anyio
async def test_a_request_of_a_living_process_is_in_flight_elsewhere_until_that_process_has_ended(
    tmp_path, postgres_url, anyio_backend
):
    house = House(tmp_path, postgres_url)
    house.app.dies = "after"
    with pytest.raises(asyncio.CancelledError):
        await house.call()
    first = Presence(house.store, house.service._keys.instance, "h:1")
    await first.start()
    house.app.dies = None

    status, headers, body = await house.call(new=True)
    await first.stop()
    later = await house.call()

    assert (status, body["code"], headers["retry-after"]) == (409, "idempotency-in-flight", "1")
    assert (later[0], house.app.runs, len(house.app.things)) == (201, 1, 1)
    await house.store.close()


@pytest.mark.anyio
@pytest.mark.parametrize("failing", ["begin", "drop"])
async def test_a_key_whose_request_ran_nothing_is_free_elsewhere_when_the_store_is_back(
    tmp_path, postgres_url, anyio_backend, failing
):
    """The store takes the key, but its answer is lost; or the request fails, and the store cannot forget the key."""
    house = House(tmp_path, postgres_url)
    await house.call(key="other")
    keys, write = house.service._keys, house.store.write
    await Presence(house.store, keys.instance, "h:1").start()
    house.app.status = 503

    async def lost(work: Any) -> Any:
        if failing in work.__code__.co_names:
            if failing == "begin":
                await write(work)
            raise StorageUnavailable("the store failed")
        return await write(work)

    house.store.write = lost
    assert (await house.call())[0] == 503
    if failing == "drop":
        with pytest.raises(StorageUnavailable):
            await keys.free()
    house.store.write = write
    await keys.free()
    house.app.status = 201

    assert (await house.call(new=True))[0] == 201
    await house.store.close()


@pytest.mark.anyio
async def test_a_key_whose_request_died_is_not_free_though_the_store_fails_when_it_is_sent_again(house):
    """What the request did is not known: it must not run again."""
    path = "/v1/sessions/ses_aaaaaaaaaaaaaaaaaaaaaaaaaa/steps"
    house.app.dies = "after"
    with pytest.raises(asyncio.CancelledError):
        await house.call(path=path)
    house.app.dies, write = None, house.store.write

    async def lost(work: Any) -> Any:
        await write(work)
        raise StorageUnavailable("the store failed")

    house.store.write = lost
    assert (await house.call(path=path))[0] == 503
    house.store.write = write
    await house.service._keys.free()

    assert (await house.call(path=path))[2]["code"] == "outcome-unknown"


@pytest.mark.anyio
async def test_a_process_never_replaces_the_answer_of_one_that_took_its_request_over(house):
    await house.call()
    key, silent = ("local", "k"), new_id("api_")

    stored = await house.store.write(lambda db: rows.finish(db, *key, silent, "digest", 500, b""))
    await house.store.write(lambda db: rows.drop(db, *key, silent))

    assert not stored
    assert (await house.call())[1]["idempotency-replayed"] == "true"


@pytest.mark.anyio
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_an_answer_that_a_retry_may_change_is_not_stored(house, status):
    house.app.status = status
    assert (await house.call())[0] == status
    house.app.status = 201

    assert (await house.call())[0] == 201
    assert house.app.runs == 2


@pytest.mark.anyio
async def test_equal_requests_at_a_time_run_once(house):
    await house.store.open()
    await house.call(key="first")

    answers = await asyncio.gather(*(house.call(key="many") for _ in range(50)))

    assert house.app.runs == 2
    assert {status for status, _, _ in answers} == {201}
    assert sum("idempotency-replayed" in headers for _, headers, _ in answers) == 49


@pytest.mark.anyio
async def test_a_long_answer_is_stored_in_a_file_and_repeated(house):
    house.app.size = 10**6
    first = await house.call()

    again = await house.call(new=True)

    assert again[2] == first[2]
    assert len(list(prepared(str(house.path / "o")).keys())) == 1


@pytest.mark.anyio
async def test_keys_of_one_tenant_do_not_meet_those_of_another(house):
    from service.caller import CALLER, Caller

    await house.call(body="a")
    token = CALLER.set(Caller("other", None, frozenset()))
    try:
        status, headers, body = await house.call(body="b")
    finally:
        CALLER.reset(token)

    assert (status, body) == (201, {"body": "b"})
    assert "idempotency-replayed" not in headers
    assert len(house.app.things) == 2
