"""Tenants that an administrator suspends, and lets go on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from service.cli.main import main
from service.engine import Barred
from service.tenants import states, table
from service.tenants.key_ring import KeyRing
from service.tenants.states import SUSPENDED, WrongState
from tests.service.conftest import serve
from tests.service.openapi import DOCUMENT
from tests.service.routes.test_gradients import asked
from tests.service.tenants.conftest import EVERY, Keyed, make_keys, store
from tests.service.wire import endless, opened, problem, regression, tensors

__all__ = ["store"]

SKETCH = regression()
STEP = {"feeds": tensors({name: SKETCH.values[name] for name in ("x", "y")})}
ASYNC = {"Prefer": "respond-async"}
WITHIN_S = 4.0
"""The time in which a process of the service follows, as for a revoked key."""


def eventually(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true result of `what`."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def keys_of(keyed: Keyed, tenant: str) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """(a client of the administrator, a client of `tenant`, which is active again when the block ends)."""
    with keyed.client("admin") as admin:
        made = admin.post("/v1/keys", json={"tenant": tenant}).json()
        try:
            with keyed.client(made["key"]) as own:
                yield admin, own
        finally:
            assert admin.post(f"/v1/tenants/{tenant}/resume").json()["state"] == "active"
            admin.delete(f"/v1/keys/{made['id']}")


def suspend(admin: httpx.Client, tenant: str, reason: str = "unpaid invoice") -> dict[str, Any]:
    answer = admin.post(f"/v1/tenants/{tenant}/suspend", json={"reason": reason})
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- the store ----------------------------------------------------------------------------------------------------


def test_a_ring_follows_the_suspension_of_a_tenant_and_its_end(store):
    asyncio.run(
        store.write(lambda db: table.create_key(db, tenant="acme", name="x", scopes=EVERY, now=1, expires=None))
    )
    ring = KeyRing(store)
    asyncio.run(ring.refresh())

    asyncio.run(store.write(lambda db: states.suspend(db, "acme", "first", 10.0)))
    asyncio.run(store.write(lambda db: states.suspend(db, "acme", "second", 20.0)))
    asyncio.run(ring.refresh())

    assert ring.states == {"acme": states.TenantState(SUSPENDED, "second", 10.0)}
    asyncio.run(store.write(lambda db: states.resume(db, "acme", 30.0)))
    asyncio.run(store.write(lambda db: states.resume(db, "acme", 40.0)))
    asyncio.run(ring.refresh())
    assert ring.states == {}


@pytest.mark.parametrize("reason", ["", " ", "two\nlines", "x" * 201])
def test_a_reason_is_a_short_line(store, reason):
    with pytest.raises(ValueError, match="a reason has"):
        asyncio.run(store.write(lambda db: states.suspend(db, "acme", reason, 1.0)))


def test_the_only_tenant_of_a_service_without_keys_is_not_suspended(store):
    with pytest.raises(WrongState, match="without keys"):
        asyncio.run(store.write(lambda db: states.suspend(db, "local", "x", 1.0)))
    asyncio.run(store.write(lambda db: table.create_key(db, tenant="ops", name="x", scopes=EVERY, now=1, expires=None)))

    asyncio.run(store.write(lambda db: states.suspend(db, "local", "x", 1.0)))


def test_new_limits_leave_a_tenant_suspended(store):
    asyncio.run(store.write(lambda db: states.suspend(db, "acme", "x", 1.0)))
    asyncio.run(store.write(lambda db: table.set_limits(db, "acme", 2.0, lambda own: own | {"jobs": 3})))

    assert asyncio.run(store.read(states.states))["acme"].state == SUSPENDED
    assert asyncio.run(store.read(table.every_tenant)) == {"acme": {"jobs": 3}}


# --- a running service --------------------------------------------------------------------------------------------


def test_every_call_of_a_suspended_tenant_is_refused_with_the_reason(keyed):
    with keys_of(keyed, "late") as (admin, own):
        assert own.get("/v1/me").status_code == 200
        shown = suspend(admin, "late")
        assert (shown["state"], shown["reason"]) == ("suspended", "unpaid invoice")
        assert shown["since"] == pytest.approx(time.time(), abs=30)

        for method, path in (
            ("GET", "/v1/me"),
            ("GET", "/v1/sessions"),
            ("POST", "/v1/gradients"),
            ("GET", "/v1/none"),
        ):
            refused = problem(own.request(method, path), 403, "tenant-suspended")
            assert (refused["reason"], refused["retryable"]) == ("unpaid invoice", False)
            assert refused["detail"] == "the tenant late is suspended: unpaid invoice"
        assert own.get("/healthz/live").status_code == own.get("/v2").status_code == 200
        with keyed.client("one") as other:
            assert other.get("/v1/me").status_code == 200
        again = suspend(admin, "late", "fraud")
        assert (again["reason"], again["since"]) == ("fraud", shown["since"])
        assert "fraud" in problem(own.get("/v1/me"), 403, "tenant-suspended")["detail"]
        listed = {each["tenant"]: each["state"] for each in admin.get("/v1/tenants?page_size=200").json()["tenants"]}
        assert (listed["late"], listed["acme"]) == ("suspended", "active")

        resumed = admin.post("/v1/tenants/late/resume").json()
        assert (resumed["state"], resumed["reason"], resumed["since"]) == ("active", None, None)
        assert own.get("/v1/me").status_code == 200
        actions = eventually(lambda: _actions(admin, "/v1/tenants/late"))
        assert actions[:3] == [
            "POST /v1/tenants/{tenant}/resume",
            "POST /v1/tenants/{tenant}/suspend",
            "POST /v1/tenants/{tenant}/suspend",
        ]


def _actions(admin: httpx.Client, beginning: str) -> list[str]:
    found = admin.get("/v1/audit?page_size=200").json()["entries"]
    chosen = [each["action"] for each in found if each["target"].startswith(beginning) and "POST" in each["action"]]
    return chosen if len(chosen) >= 3 else []


def test_every_route_with_keys_documents_the_refusal_of_suspended_tenants():
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            if operation["security"]:
                said = operation["responses"]["403"]
                said = DOCUMENT["components"]["responses"][said["$ref"].rpartition("/")[2]] if "$ref" in said else said
                assert "`tenant-suspended`" in said["description"], f"{method} {path}"


def test_wrong_suspensions_are_refused(keyed):
    with keyed.client("admin") as admin:
        own = problem(admin.post("/v1/tenants/ops/suspend", json={"reason": "x"}), 409, "invalid-state")
        assert "ops is the tenant of the caller" in own["detail"]
        problem(admin.post("/v1/tenants/ops/resume"), 409, "invalid-state")
        for body in ({}, {"reason": ""}, {"reason": " "}, {"reason": "a\nb"}, {"reason": "x" * 201}, {"reason": 3}):
            (error, *_) = problem(admin.post("/v1/tenants/late/suspend", json=body), 422, "invalid-request")["errors"]
            assert error["pointer"] == "/reason"
        problem(admin.post("/v1/tenants/UPPER/suspend", json={"reason": "x"}), 422, "invalid-request")
        assert admin.get("/v1/tenants/late").json()["state"] == "active"
    with keyed.client("one") as one:
        problem(one.post("/v1/tenants/other/suspend", json={"reason": "x"}), 403, "forbidden")


def test_a_service_without_keys_says_why_its_tenant_cannot_be_suspended(client):
    answer = client.post("/v1/tenants/local/suspend", json={"reason": "x"})
    assert "the tenant of the caller" in problem(answer, 409, "invalid-state")["detail"]
    assert client.get("/v1/sessions").status_code == 200


def test_a_stream_of_events_ends_when_its_tenant_is_suspended(keyed):
    accept = {"accept": "text/event-stream"}
    with (
        keys_of(keyed, "watching") as (admin, own),
        opened(own, SKETCH) as path,
        own.stream("GET", f"{path}/events", headers=accept, timeout=20) as stream,
    ):
        assert stream.status_code == 200
        suspend(admin, "watching")
        began = time.monotonic()
        for _ in stream.iter_lines():
            pass
        assert time.monotonic() - began < WITHIN_S + 1.0
        admin.post("/v1/tenants/watching/resume")


def test_a_job_waits_while_its_tenant_is_suspended_and_ends_as_without(keyed):
    table = {"columns": tensors({name: SKETCH.values[name] for name in ("x", "y")})}
    with keys_of(keyed, "training") as (admin, own):
        dataset = own.post("/v1/datasets", json=table).json()["id"]
        job = {"program": SKETCH.document, "loss": "loss", "dataset_id": dataset, "steps": 2**40}
        path = own.post("/v1/jobs", json=job).headers["location"]
        eventually(lambda: own.get(path).json()["step"] > 0)

        suspend(admin, "training")
        time.sleep(WITHIN_S)
        waits = time.time()
        time.sleep(2.0)
        resumed = time.time()
        admin.post("/v1/tenants/training/resume")
        events = own.get(f"{path}/events?limit=500").json()["events"]
        assert not [each for each in events if waits < each["data"]["time"] < resumed]
        said = [each["data"]["detail"] for each in events if each["kind"] == "warning"]
        assert said == ["the tenant is suspended; the job goes on when that is lifted"]

        later = eventually(lambda: (found := own.get(path).json())["state"] == "running" and found)
        eventually(lambda: own.get(path).json()["step"] > later["step"])
        own.post(f"{path}/cancel")
        eventually(lambda: own.delete(path).status_code == 204)


def test_a_call_that_waits_for_a_worker_does_not_run_when_its_tenant_is_suspended(tmp_path):
    keyed = make_keys(tmp_path)
    with contextlib.ExitStack() as stack:
        keyed.served = stack.enter_context(serve(tmp_path, workers=1, loop_trips=10**9, op_executions=10**12))
        admin, busy, own = (stack.enter_context(keyed.client(name)) for name in ("admin", "one", "two"))
        path = stack.enter_context(opened(own, SKETCH))
        blocked = busy.post("/v1/gradients", json=asked(endless(), deadline_s=6.0), headers=ASYNC)
        assert blocked.status_code == 202, blocked.text
        eventually(lambda: admin.get("/v1/workers").json()["workers"][0]["state"] == "busy")
        operation = own.post(f"{path}/steps", json={**STEP, "seq": 1}, headers=ASYNC)
        assert operation.status_code == 202, operation.text

        suspend(admin, "other")
        eventually(lambda: busy.get(blocked.headers["location"]).json()["state"] != "running")
        eventually(lambda: admin.get("/v1/workers").json()["workers"][0]["state"] == "idle")
        admin.post("/v1/tenants/other/resume")

        where = operation.headers["location"]
        ended = eventually(lambda: (found := own.get(where).json())["state"] != "running" and found)
        assert ended["state"] == "failed"
        assert problem(own.get(ended["result"]), 403, "tenant-suspended")["reason"] == "unpaid invoice"
        assert own.get(path).json()["step"] == 0
        assert own.post(f"{path}/steps", json={**STEP, "seq": 1}).json()["step"] == 1


def test_the_lease_of_a_stored_session_does_not_end_during_a_suspension(keyed):
    with keys_of(keyed, "leasing") as (admin, own):
        settings = {"program": SKETCH.document, "loss": "loss", "lease_s": 3.0}
        kept = own.post("/v1/sessions", json=settings).headers["location"]
        assert own.post(f"{kept}/steps", json=STEP).json()["step"] == 1

        suspend(admin, "leasing")
        time.sleep(13.0)  # the lease, and two sweeps
        admin.post("/v1/tenants/leasing/resume")

        assert own.get(kept).json()["step"] == 1
        eventually(lambda: own.get("/v1/sessions").json()["sessions"] == [], 30.0)  # without a suspension it ends


def test_the_command_suspends_and_resumes_a_tenant(keyed, capsys):
    where = ["keys", "--data-dir", str(keyed.served.data_dir), "tenants"]
    with keys_of(keyed, "commanded") as (admin, own):
        assert main([*where, "suspend", "commanded", "--reason", "unpaid"]) == 0
        assert capsys.readouterr().out == "commanded is suspended: unpaid\n"
        problem(own.get("/v1/me"), 403, "tenant-suspended")
        assert main([*where, "list"]) == 0
        assert any(line.split()[:2] == ["commanded", "suspended"] for line in capsys.readouterr().out.splitlines())
        assert main([*where, "resume", "commanded"]) == 0
        assert capsys.readouterr().out == "commanded is active\n"
        assert own.get("/v1/me").status_code == 200
        assert main([*where, "suspend", "commanded", "--reason", "a\nb"]) != 0
        assert "a reason has 1 to 200 characters" in capsys.readouterr().err
        found = admin.get("/v1/audit?tenant=commanded").json()["entries"]
        assert [each["action"] for each in found if each["key"] is None] == [
            "backpass keys tenants resume",
            "backpass keys tenants suspend",
        ]


def test_the_error_of_a_barred_call_has_the_reason():
    from service.problems import from_exception

    found = from_exception(Barred("the tenant acme is suspended: x", "x"))

    assert (found.code, found.status, found.extensions["reason"]) == ("tenant-suspended", 403, "x")
