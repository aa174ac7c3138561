"""Keys: their text and digest, their rows, rotation and revocation, and the file of keys."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import time

import pytest
from sqlalchemy import text

from service.caller import LOCAL, Caller
from service.cli.main import main
from service.store.store import Store
from service.tenants import actions, audit, table
from service.tenants.key import SCOPES, new_key, new_secret
from service.tenants.key_file import BadKeysFile, KeyFile, read_keys
from service.tenants.key_ring import KeyRing

EVERY = frozenset(SCOPES)


def run(awaitable):
    return asyncio.run(awaitable)


def create(store: Store, **more) -> dict:
    given = {"tenant": "acme", "name": "ci", "scopes": ["read", "write"], "expires_in": None}
    return run(actions.create(store, {**given, **more}))


def test_a_key_has_256_random_bits_and_only_its_sha256_is_stored(store):
    made = create(store)
    assert made["key"].startswith("bp_")
    assert len(made["key"]) == 3 + -(-256 // 5)
    assert len({new_secret() for _ in range(1000)}) == 1000
    row = run(store.read(lambda db: dict(db.execute(text("SELECT * FROM keys")).one()._mapping)))
    assert row["hash"] == hashlib.sha256(made["key"].encode()).hexdigest()
    assert made["key"] not in str(row)
    assert row["prefix"] == made["key"][:9] == made["prefix"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"tenant": ""}, {"tenant": "Upper"}, {"tenant": "a" * 65}, {"tenant": "-a"}, {"tenant": "a\n"}, {"name": ""},
        {"name": "a\nb"}, {"scopes": []}, {"scopes": ["root"]}, {"expires_in": 0}, {"expires_in": True},
        {"expires_in": float("nan")},
    ],
)  # fmt: skip
def test_a_key_with_wrong_members_is_refused(store, wrong):
    with pytest.raises(ValueError, match=r".+"):
        create(store, **wrong)
    assert run(store.read(table.every_key)) == []


def test_a_ring_finds_live_keys_and_follows_changes_by_other_processes(store, make_store):
    """Two rings on one database: the other one is another process."""
    ring = KeyRing(store)
    ring.load_now()
    assert not ring.is_needed
    made = create(store)
    assert ring.find(made["key"].encode()) is None
    run(ring.refresh())
    assert ring.is_needed
    found = ring.find(made["key"].encode())
    assert (found.id, found.tenant, found.scopes) == (made["id"], "acme", {"read", "write"})
    assert ring.find(made["key"].encode()[:-1]) is None
    run(actions.revoke(store, {"id": made["id"]}))
    run(ring.refresh())
    assert not ring.find(made["key"].encode()).is_live(time.time())
    assert ring.is_needed  # the end of the last key does not open the service


def test_the_first_key_ends_the_calls_of_those_who_have_none(store):
    ring = KeyRing(store)
    ring.load_now()
    assert ring.allows(LOCAL)
    made = create(store)
    run(ring.refresh())
    assert not ring.allows(LOCAL)
    assert ring.allows(Caller("acme", made["id"], frozenset({"read"})))
    assert not ring.allows(Caller("acme", "key_of_nobody", frozenset({"read"})))


def test_a_refresh_without_changes_reads_no_keys(store, monkeypatch):
    ring = KeyRing(store)
    create(store)
    run(ring.refresh())
    monkeypatch.setattr(table, "every_key", None)
    run(ring.refresh())
    assert len(ring) == 1


def test_rotation_keeps_both_keys_valid_for_the_overlap(store):
    old = create(store, expires_in=1000)
    new = run(actions.rotate(store, {"id": old["id"], "overlap": 50}))
    assert new["key"] != old["key"]
    assert {name: new[name] for name in ("tenant", "name", "scopes")} == {
        name: old[name] for name in ("tenant", "name", "scopes")
    }
    assert new["expires"] - new["created"] == pytest.approx(1000)
    assert new["replaced"]["id"] == old["id"]
    keys = {key.id: key for key in run(store.read(table.every_key))}
    now = time.time()
    assert keys[old["id"]].is_live(now + 40)
    assert not keys[old["id"]].is_live(now + 60)
    assert keys[new["id"]].is_live(now + 60)


def test_rotation_never_prolongs_a_key(store):
    old = create(store, expires_in=10)
    run(actions.rotate(store, {"id": old["id"], "overlap": 5000}))
    assert run(store.read(lambda db: table.find_key(db, old["id"]))).expires == pytest.approx(old["expires"])


def test_a_revoked_key_cannot_be_rotated_and_stays_revoked(store):
    made = create(store)
    first = run(actions.revoke(store, {"id": made["id"]}))["revoked"]
    with pytest.raises(ValueError, match="revoked"):
        run(actions.rotate(store, {"id": made["id"], "overlap": 10}))
    assert run(actions.revoke(store, {"id": made["id"]}))["revoked"] == first


def test_the_last_use_is_written_once_a_minute_and_at_the_end(store):
    ring = KeyRing(store)
    made = create(store)
    run(ring.refresh())
    key = ring.find(made["key"].encode())

    def stored():
        return run(store.read(lambda db: table.find_key(db, made["id"]))).used

    key.used = 1000.0
    run(ring._write_used(60.0))
    assert stored() == 1000.0
    key.used = 1050.0
    run(ring._write_used(60.0))
    assert stored() == 1000.0
    run(ring.flush())
    assert stored() == 1050.0
    before = run(store.read(table.changes))
    key.used = 1300.0
    run(ring.flush())
    assert run(store.read(table.changes)) == before  # uses are no changes: no process reads all keys for them


def test_own_limits_of_a_tenant_are_set_changed_and_removed(store):
    ring = KeyRing(store)
    run(actions.set_limits(store, {"tenant": "acme", "limits": {"jobs": 3, "burst": 7}}))
    run(ring.refresh())
    assert ring.limits == {"acme": {"jobs": 3, "burst": 7}}
    run(actions.set_limits(store, {"tenant": "acme", "limits": {"jobs": None}}))
    run(ring.refresh())
    assert ring.limits == {"acme": {"burst": 7}}
    for wrong in ({"nothing": 1}, {"jobs": -1}, {"jobs": True}, {"jobs": float("inf")}, {"jobs": "3"}):
        with pytest.raises(ValueError, match=r"jobs|nothing"):
            run(actions.set_limits(store, {"tenant": "acme", "limits": wrong}))


def test_the_command_shows_the_limits_that_it_has_set(tmp_path, capsys):
    assert main(["keys", "--data-dir", str(tmp_path), "tenants", "set", "acme", "jobs=4", "burst=7"]) == 0

    assert capsys.readouterr().out == "TENANT  OWN LIMITS\nacme    jobs=4 burst=7\n"


# --- the file of keys -------------------------------------------------------------------------------------------------

GOOD = "acme:read,write:0123456789abcdef0123456789abcdef"


def test_the_file_of_keys_has_a_key_on_each_line(tmp_path):
    file = tmp_path / "keys"
    secret, made = new_key("ops", "x", EVERY, time.time(), None)
    file.write_text(f"# comment\n\n{GOOD}\n  ops:admin:{secret}  \n")
    first, second = read_keys(file)
    assert (first.tenant, first.scopes, first.source) == ("acme", {"read", "write"}, "file")
    assert second.digest == made.digest
    assert read_keys(file)[0].id == first.id  # so that the audit log names it across restarts


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("acme", "tenant:scopes:key"), ("acme:read", "tenant:scopes:key"), ("ACME:read:" + "a" * 40, "tenant"),
        ("acme:all:" + "a" * 40, "scopes"), ("acme::" + "a" * 40, "scopes"), ("acme:read:short", "32"),
        ("acme:read:" + "ä" * 40, "key"), (GOOD, "earlier line"),
    ],
)  # fmt: skip
def test_a_wrong_line_of_the_file_is_named_without_its_secret(tmp_path, line, reason):
    file = tmp_path / "keys"
    file.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(BadKeysFile, match=f"line 2: .*{reason}") as found:
        read_keys(file)
    assert line.rpartition(":")[2] not in str(found.value) or line in ("acme", "acme:read")


def test_a_file_that_changes_is_read_again_and_a_broken_one_keeps_the_keys(tmp_path, store, caplog):
    path = tmp_path / "keys"
    path.write_text(GOOD)
    ring = KeyRing(store, KeyFile(path))
    ring.load_now()
    secret = GOOD.rpartition(":")[2].encode()
    assert ring.find(secret).tenant == "acme"
    path.write_text("nonsense\n")
    with pytest.raises(BadKeysFile), caplog.at_level(logging.ERROR):
        run(ring.refresh())
    assert ring.find(secret) is not None
    other = tmp_path / "next"
    other.write_text(GOOD.replace("0123", "4567"))
    os.replace(other, path)
    run(ring.refresh())
    assert ring.find(secret) is None
    assert len(ring) == 1


def test_a_service_with_an_empty_file_of_keys_stays_closed(tmp_path, store):
    path = tmp_path / "keys"
    path.write_text("# none yet\n")
    ring = KeyRing(store, KeyFile(path))
    ring.load_now()
    assert ring.is_needed


def test_changes_by_the_command_line_are_in_the_audit_log(tmp_path, capsys):
    def keys(*words: str) -> str:
        assert main(["keys", "--data-dir", str(tmp_path), *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    made = keys("create", "--tenant", "acme")
    keys("list")
    new = keys("rotate", made["id"])
    keys("revoke", new["id"])
    keys("tenants", "set", "acme", "jobs=4")
    store = Store(tmp_path)
    store.open_now()
    rows = run(store.read(lambda db: audit.page(db, None, 10, None)))
    store.close_now()

    found = [(row.tenant, row.key, row.action, row.target) for row in reversed(rows)]
    assert found == [
        ("acme", None, "backpass keys create", f"/v1/keys/{made['id']}"),
        ("acme", None, "backpass keys rotate", f"/v1/keys/{new['id']}"),
        ("acme", None, "backpass keys revoke", f"/v1/keys/{new['id']}"),
        ("acme", None, "backpass keys tenants set", "/v1/tenants/acme"),
    ]


def test_the_directory_of_the_service_may_follow_the_action(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("BACKPASS_DATA_DIR", str(tmp_path / "other"))

    assert main(["keys", "create", "--tenant", "acme", "--data-dir", str(tmp_path), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert main(["keys", "--data-dir", str(tmp_path), "list"]) == 0

    assert made["id"] in capsys.readouterr().out
