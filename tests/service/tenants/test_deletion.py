"""Tenants that an administrator deletes: nothing of them is left, and others do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import Connection, String, insert, select

from service.cli.main import main
from service.store import rows_of_tenant as rows
from service.store.store import Store
from service.store.tables import metadata
from service.tenants import erasing, states, table
from service.tenants.erasing import Erasing, Files
from service.tenants.key_ring import KeyRing
from service.tenants.states import DELETED, DELETING, WrongState
from tests.programs import Sketch
from tests.service.conftest import Served, serve
from tests.service.routes.test_gradients import asked
from tests.service.store.rows import row_of
from tests.service.tenants.conftest import EVERY, make_keys, make_store, store
from tests.service.tenants.test_suspension import ASYNC, SKETCH, STEP, eventually
from tests.service.wire import endless, problem, tensors

__all__ = ["make_store", "store"]

OF_SERVICE = {"facts", "instances"}
"""Tables that have nothing of a tenant."""


# --- the schema ---------------------------------------------------------------------------------------------------


def test_every_table_is_erased_or_stays_for_a_reason():
    """If this fails for a new table: its rows need a tenant, or a first column that names a row with one."""
    erased = {each.name for each in rows.ORDER}
    parts = {column.table.name for each in rows.ORDER for column in rows.parts_of(each)}

    assert erased | parts | rows.KEPT | OF_SERVICE == set(metadata.tables)
    assert parts == {"journal", "answers", "job_events", "job_metrics"}
    for name in rows.KEPT - {"tenants"}:
        assert "tenant" in metadata.tables[name].c


def fill(connection: Connection, tenant: str, count: int) -> None:
    """Write `count` rows of the tenant into each table, and as many rows of each session and job."""
    parents = {column.table.name: column.name for each in rows.ORDER for column in rows.parts_of(each)}
    for each in metadata.sorted_tables:
        if each.name in OF_SERVICE:
            continue
        if each.name == "tenants":
            connection.execute(insert(each), row_of(each) | {"id": tenant, "limits": "{}", "state": None})
            continue
        for n in range(count):
            row = row_of(each, n) | ({"tenant": tenant} if "tenant" in each.c else {})
            if each.name == "keys":
                row |= {"hash": f"{tenant} {n}".encode().hex(), "scopes": "[]", "revoked": None}
            key = [column for column in each.primary_key if column.name != "tenant"]
            row |= {column.name: f"{tenant} {n}" for column in key if isinstance(column.type, String)}
            if each.name in parents:
                other = next(column for column in key if column.name != parents[each.name])
                connection.execute(insert(each), [row | {other.name: m} for m in range(count)])
            else:
                row.pop("n", None)  # of the audit log, which counts by itself
                connection.execute(insert(each), row)


def counts(connection: Connection, tenant: str) -> Counter[str]:
    """Table -> the number of its rows that are of the tenant, or of a session or job of it."""
    found: Counter[str] = Counter()
    for each in metadata.sorted_tables:
        names = [c.name for c in each.c if c.name == "tenant" or (each.name == "tenants" and c.name == "id")]
        names = names or [next(iter(each.primary_key)).name]
        for row in connection.execute(select(each)).mappings():
            found[each.name] += str(row[names[0]]).split(" ")[0] == tenant
    return found


async def erase(erasing: Erasing, tenant: str) -> None:
    """Delete the tenant, and erase until that has ended."""
    await erasing.store.write(lambda db: states.delete(db, tenant, time.time()))
    for _ in range(3):
        await erasing.ring.refresh()
        await erasing.sweep()


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_no_table_keeps_a_row_of_an_erased_tenant_and_others_keep_theirs(store, monkeypatch, batch):
    monkeypatch.setattr(states, "QUIET_S", 0.0)
    monkeypatch.setattr(erasing, "BATCH", batch)
    monkeypatch.setattr(erasing, "BATCH_OF_PARTS", batch)
    for tenant in ("gone", "kept"):
        asyncio.run(store.write(lambda db, tenant=tenant: fill(db, tenant, 3)))
    before = {
        tenant: asyncio.run(store.read(lambda db, tenant=tenant: counts(db, tenant))) for tenant in ("gone", "kept")
    }
    assert before["gone"]["job_metrics"] == 9
    assert all(before["gone"][each.name] == 3 for each in rows.ORDER)

    asyncio.run(erase(Erasing(store, KeyRing(store)), "gone"))

    left = asyncio.run(store.read(lambda db: counts(db, "gone")))
    assert {name for name, count in left.items() if count} <= rows.KEPT
    assert {name: left[name] for name in rows.KEPT} == {name: before["gone"][name] for name in rows.KEPT}
    assert asyncio.run(store.read(lambda db: counts(db, "kept"))) == before["kept"]
    assert asyncio.run(store.read(states.states))["gone"].state == DELETED
    assert all(key.revoked for key in asyncio.run(store.read(table.every_key)) if key.tenant == "gone")


def test_an_erasure_that_ends_in_the_middle_goes_on_in_the_next_process(store, monkeypatch):
    """A file that cannot be deleted ends the sweep, as the end of the process would."""
    monkeypatch.setattr(states, "QUIET_S", 0.0)
    monkeypatch.setattr(erasing, "BATCH", 2)
    asyncio.run(store.write(lambda db: fill(db, "gone", 5)))
    deleted: list[str] = []

    async def delete(row: Any) -> None:
        if len(deleted) == 3:
            raise OSError("the disk is away")
        deleted.append(row.key)

    files = {"checkpoints": Files(("key",), delete)}
    with pytest.raises(OSError, match="away"):
        asyncio.run(erase(Erasing(store, KeyRing(store), files), "gone"))
    middle = asyncio.run(store.read(lambda db: counts(db, "gone")))
    assert (middle["checkpoints"], middle["programs"], middle["sessions"]) == (3, 5, 0)
    assert asyncio.run(store.read(states.states))["gone"].state == DELETING

    async def again(row: Any) -> None:
        deleted.append(row.key)

    asyncio.run(erase(Erasing(store, KeyRing(store), {"checkpoints": Files(("key",), again)}), "gone"))

    left = asyncio.run(store.read(lambda db: counts(db, "gone")))
    assert {name for name, count in left.items() if count} <= rows.KEPT
    assert len(set(deleted)) == 5  # a file may be deleted twice, but none is forgotten


def test_a_tenant_is_being_deleted_while_something_of_it_runs(store, monkeypatch):
    monkeypatch.setattr(states, "QUIET_S", 0.2)
    busy = {"gone"}
    running = Erasing(store, KeyRing(store), busy=lambda: busy)
    asyncio.run(erase(running, "gone"))
    time.sleep(0.4)
    asyncio.run(running.sweep())
    assert asyncio.run(store.read(states.states))["gone"].state == DELETING

    busy.clear()
    asyncio.run(running.sweep())
    assert asyncio.run(store.read(states.states))["gone"].state == DELETING  # another process may run something
    time.sleep(0.4)
    asyncio.run(running.sweep())

    assert asyncio.run(store.read(states.states))["gone"].state == DELETED


def test_the_name_of_a_deleted_tenant_can_be_used_when_all_is_erased(store, monkeypatch):
    monkeypatch.setattr(states, "QUIET_S", 0.0)
    create = lambda db: table.create_key(db, tenant="gone", name="x", scopes=EVERY, now=1, expires=None)
    limit = lambda db: table.set_limits(db, "gone", 2.0, lambda own: own | {"jobs": 3})
    asyncio.run(store.write(limit))
    asyncio.run(store.write(lambda db: states.delete(db, "gone", 1.0)))
    for change in (
        create,
        limit,
        lambda db: states.suspend(db, "gone", "x", 2.0),
        lambda db: states.resume(db, "gone", 2.0),
    ):
        with pytest.raises(WrongState, match="is being deleted"):
            asyncio.run(store.write(change))
    asyncio.run(erase(Erasing(store, KeyRing(store)), "gone"))
    assert asyncio.run(store.read(table.every_tenant))["gone"] == {}

    asyncio.run(store.write(create))

    assert asyncio.run(store.read(states.states)) == {}


def test_the_only_tenant_of_a_service_without_keys_is_not_deleted(store):
    with pytest.raises(WrongState, match="without keys"):
        asyncio.run(store.write(lambda db: states.delete(db, "local", 1.0)))


# --- a running service --------------------------------------------------------------------------------------------


def files(served: Served) -> set[str]:
    """The files of all tenants."""
    root = served.data_dir / "objects"
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")}


def wide() -> Sketch:
    """sum(x w) with weights whose gradient is too large for a row of the database."""
    s = Sketch()
    s.feed("x", np.ones((1, 1500)))
    s.param("w", np.ones((1500, 30)))
    s.op("matmul", "x", "w", out="p")
    s.total("p")
    return s


def furnish(client: httpx.Client) -> dict[str, str]:
    """Make one thing of each kind, with files where it may have some: kind -> its path."""
    sketch, made = wide(), {}
    step = {"feeds": tensors({"x": sketch.values["x"]}), "return_gradients": "all"}
    weights = tensors({"w": sketch.values["w"]})
    octets = {"content-type": "application/octet-stream", "upload-offset": "0"}
    columns = {"columns": tensors({"x": np.ones((20, 1500)), "y": np.ones((20, 1))})}

    def make(kind: str, path: str, **more: Any) -> httpx.Response:
        answer = client.post(path, **more)
        assert answer.status_code in (200, 201, 202), (kind, answer.text)
        made[kind] = answer.headers.get("location", path)
        return answer

    make("program", "/v1/programs", json={"program": sketch.document, "values": weights})
    start = {"program": sketch.document, "loss": "loss", "init": {"parameters": weights}}
    make("session", "/v1/sessions", json=start)
    session = made["session"]
    make("idempotency", f"{session}/steps", json=step, headers={"Idempotency-Key": '"large"'})
    eventually(lambda: make("operation", f"{session}/steps", json=step, headers=ASYNC).status_code == 202)
    eventually(lambda: client.get(made["operation"]).json()["state"] == "succeeded")
    make("checkpoint", f"{session}/checkpoints", json={"name": "kept"})
    make("tape", "/v1/tapes", json={})
    dataset = make("dataset", "/v1/datasets", json=columns).json()["id"]
    make("upload", "/v1/uploads", json={"size": 1000})
    assert client.patch(made["upload"], content=b"x,y\n1,2\n", headers=octets).status_code == 204
    job = {"program": SKETCH.document, "loss": "loss", "steps": 2**40, "save_every": {"steps": 100, "keep": 2}}
    columns = {"columns": tensors({name: SKETCH.values[name] for name in ("x", "y")})}
    job["dataset_id"] = make("small dataset", "/v1/datasets", json=columns).json()["id"]
    make("job", "/v1/jobs", json=job)
    eventually(lambda: client.get(made["job"]).json()["step"] > 200)
    assert dataset != job["dataset_id"]
    return made


def state_of(admin: httpx.Client, tenant: str) -> str:
    return admin.get(f"/v1/tenants/{tenant}").json()["state"]


def left_of(directory: Path, tenant: str) -> set[str]:
    """The tables with rows of the tenant. No service runs."""
    opened = Store(directory)
    opened.open_now()
    try:
        found = asyncio.run(opened.read(lambda db: counts(db, tenant)))
        for each in rows.ORDER:
            for column in rows.parts_of(each):
                alone = select(column).where(column.not_in(select(each.c.id)))
                assert not asyncio.run(opened.read(lambda db, alone=alone: db.execute(alone).all()))
    finally:
        opened.close_now()
    return {name for name, count in found.items() if count}


@pytest.mark.parametrize("killed_after", [None, 0.7, pytest.param(0.0, marks=pytest.mark.slow)])
def test_nothing_is_left_of_a_deleted_tenant_even_if_the_service_is_killed_meanwhile(tmp_path, killed_after):
    keyed, directory = make_keys(tmp_path / "data"), tmp_path / "data"
    with contextlib.ExitStack() as stack:
        keyed.served = stack.enter_context(serve(directory))
        admin, gone, kept = (stack.enter_context(keyed.client(name)) for name in ("admin", "one", "two"))
        things = furnish(kept)
        kept.post(f"{things['job']}/cancel")
        eventually(lambda: kept.get(things["job"]).json()["ended"] is not None)
        before = files(keyed.served)
        erased = furnish(gone)
        own = files(keyed.served) - before  # the other tenant has the same datasets and initial values
        assert {"checkpoints", "uploads"} <= {name.partition("/")[0] for name in own}

        answer = admin.delete("/v1/tenants/acme")
        assert (answer.status_code, answer.headers["location"]) == (202, "/v1/tenants/acme")
        assert answer.json()["state"] == "deleting"
        assert "revoked" in problem(gone.get("/v1/me"), 401, "unauthenticated")["detail"]
        problem(admin.post("/v1/keys", json={"tenant": "acme"}), 409, "invalid-state")
        problem(admin.put("/v1/tenants/acme", json={"limits": {"jobs": 1}}), 409, "invalid-state")
        problem(admin.post("/v1/tenants/acme/suspend", json={"reason": "x"}), 409, "invalid-state")
        assert admin.delete("/v1/tenants/acme").json()["state"] == "deleting"
        if killed_after is not None:
            time.sleep(killed_after)
            keyed.served.process.kill()
            keyed.served.process.wait()
            keyed.served = stack.enter_context(serve(directory))
            admin, kept = (stack.enter_context(keyed.client(name)) for name in ("admin", "two"))
        eventually(lambda: state_of(admin, "acme") == "deleted")

        assert files(keyed.served) == before
        quotas = admin.get("/v1/tenants/acme").json()["quotas"]
        assert not any(each["used"] for name, each in quotas.items() if name != "compute_seconds")
        assert "acme" not in [each["tenant"] for each in admin.get("/v1/tenants").json()["tenants"]]
        for kind, path in things.items():
            if kind not in ("idempotency", "tape"):
                assert kept.get(path).status_code == 200, kind
        new = admin.post("/v1/keys", json={"tenant": "acme"}).json()["key"]
        with keyed.client(new) as again:
            for kind in ("program", "session", "checkpoint", "dataset", "upload", "job", "operation", "tape"):
                assert again.get(erased[kind]).status_code in (404, 410), kind
            assert again.get("/v1/me").json()["today"]["requests"] > 0
        assert state_of(admin, "acme") == "active"
        if killed_after is None:  # a killed process may lose the entries of its last second, which are in its log
            assert "DELETE /v1/tenants/{tenant}" in audited(admin)
        assert admin.get(f"/v1/keys/{keyed.ids['one']}").json()["state"] == "revoked"
    assert left_of(directory, "acme") <= rows.KEPT


def audited(admin: httpx.Client) -> set[str]:
    """The actions in the whole audit log, which also has each reading of a tenant."""
    actions, token = set(), ""
    while token is not None:
        page = admin.get("/v1/audit", params={"page_size": 200, "page_token": token}).json()
        actions |= {each["action"] for each in page["entries"]}
        token = page["next_page_token"]
    return actions


@pytest.mark.slow  # a worker has twenty seconds to stop the call
def test_the_calls_of_a_deleted_tenant_end_and_what_they_store_is_erased(tmp_path):
    """A call that has begun goes on to its end, and so long the erasure is not complete."""
    keyed = make_keys(tmp_path)
    with contextlib.ExitStack() as stack:
        keyed.served = stack.enter_context(serve(tmp_path, loop_trips=10**9, op_executions=10**12))
        admin, gone = (stack.enter_context(keyed.client(name)) for name in ("admin", "one"))
        path = gone.post("/v1/sessions", json={"program": SKETCH.document, "loss": "loss"}).headers["location"]
        long = gone.post("/v1/gradients", json=asked(endless(), deadline_s=300.0), headers=ASYNC)
        assert long.status_code == 202, long.text
        eventually(lambda: admin.get("/v1/workers").json()["workers"][0]["state"] == "busy")
        waiting = gone.post(f"{path}/steps", json=STEP, headers=ASYNC)
        assert waiting.status_code == 202, waiting.text

        admin.delete("/v1/tenants/acme")

        eventually(lambda: admin.get("/v1/workers").json()["workers"][0]["state"] == "idle")  # long before its deadline
        eventually(lambda: state_of(admin, "acme") == "deleted")
    assert left_of(tmp_path, "acme") <= rows.KEPT


def test_wrong_deletions_are_refused(keyed, client):
    with keyed.client("admin") as admin, keyed.client("one") as one:
        detail = problem(admin.delete("/v1/tenants/ops"), 409, "invalid-state")["detail"]
        assert "ops is the tenant of the caller" in detail
        problem(one.delete("/v1/tenants/other"), 403, "forbidden")
        problem(admin.delete("/v1/tenants/UPPER"), 422, "invalid-request")
        assert admin.get("/v1/me").status_code == 200
    assert "the tenant of the caller" in problem(client.delete("/v1/tenants/local"), 409, "invalid-state")["detail"]


def test_the_command_deletes_a_tenant_when_told_so_twice(keyed, capsys):
    where = ["keys", "--data-dir", str(keyed.served.data_dir), "tenants"]
    with keyed.client("admin") as admin:
        made = admin.post("/v1/keys", json={"tenant": "short"}).json()
        with pytest.raises(SystemExit):
            main([*where, "delete", "short"])
        assert "--yes" in capsys.readouterr().err
        assert main([*where, "delete", "short", "--yes"]) == 0
        assert capsys.readouterr().out == "short is deleting\n"
        with keyed.client(made["key"]) as own:
            assert own.get("/v1/me").status_code == 401
        assert main([*where[:-1], "create", "--tenant", "short"]) != 0
        assert "its name can be used again when that is done" in capsys.readouterr().err
        eventually(lambda: state_of(admin, "short") == "deleted")
        found = admin.get("/v1/audit?tenant=short").json()["entries"]
        assert "backpass keys tenants delete" in [each["action"] for each in found]
