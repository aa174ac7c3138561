"""The Python client with API keys."""

from __future__ import annotations

import inspect
import itertools
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice

import pytest

import backpass_client
from backpass_client import AuditEntry, Key, Refused, Service, Tenant, UsageRow, connection
from service.schemas.examples import REGRESSION, REGRESSION_FEEDS, REGRESSION_PARAMETERS
from tests.paths import ROOT
from tests.service.tenants.conftest import Keyed
from tests.service.tenants.test_access import limits

GRADIENTS = {
    "program": REGRESSION,
    "loss": "loss",
    "feeds": REGRESSION_FEEDS,
    "parameters": REGRESSION_PARAMETERS,
}


def test_the_client_sends_its_key_or_that_of_the_environment(keyed: Keyed, monkeypatch: pytest.MonkeyPatch):
    with Service(keyed.served.url, api_key=keyed.keys["one"] + "\n") as service:
        assert service.me()["tenant"] == "acme"
        assert keyed.keys["one"] not in repr(service)
    monkeypatch.setenv("BACKPASS_API_KEY", keyed.keys["two"])
    with Service(keyed.served.url) as service:
        assert service.me()["tenant"] == "other"
        assert service.ops()


def test_errors_about_keys_tell_what_to_do(keyed: Keyed, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("BACKPASS_API_KEY", raising=False)
    with Service(keyed.served.url) as service, pytest.raises(Refused, match=r"401 unauthenticated.*\n.*api_key="):
        service.me()
    reader = Service(keyed.served.url, api_key=keyed.keys["reader"])
    with reader as service, pytest.raises(Refused, match=r"403 forbidden: .*scope write"):
        service.call("POST", "/v1/programs", {})


def test_the_client_waits_as_long_as_a_rate_demands_but_not_until_tomorrow(keyed: Keyed):
    with Service(keyed.served.url, api_key=keyed.keys["limited"]) as service:
        with limits(keyed, "limited", requests_per_second=0.5, burst=1):
            service.me()
            started = time.monotonic()
            service.me()
            assert 0.9 < time.monotonic() - started < 60  # up to two seconds, less those between the two requests
        service.call("POST", "/v1/gradients", GRADIENTS)
        with limits(keyed, "limited", compute_seconds=1e-9):
            started = time.monotonic()
            with pytest.raises(Refused, match="quota-exceeded") as found:
                service.call("POST", "/v1/gradients", GRADIENTS, repeat=True)
            assert time.monotonic() - started < 60
            assert found.value.retry_after > 0


@pytest.fixture
def admin(keyed: Keyed) -> Iterator[Service]:
    with Service(keyed.served.url, api_key=keyed.keys["admin"]) as service:
        yield service


def test_a_key_is_made_used_rotated_and_revoked(keyed: Keyed, admin: Service):
    key = admin.keys.create("made", "ci", scopes=["read"], ttl=3600.0)
    assert (key.tenant, key.name, key.scopes, key.state) == ("made", "ci", ["read"], "valid")
    assert 3000 < key.said["expires_at"] - time.time() < 3700
    assert key.text and key.text not in repr(key) and "key" not in key.said
    with Service(keyed.served.url, api_key=key.text) as service:
        assert service.me()["key"]["id"] == key.id

        new = admin.keys.rotate(key, overlap=0.0)

        assert (new.tenant, new.name, new.scopes) == ("made", "ci", ["read"])
        with pytest.raises(Refused, match="401"):
            service.me()
    found = admin.keys.get(key.id)
    assert (found.id, found.text, found.state) == (key.id, None, "expired")
    admin.keys.revoke(new)
    admin.keys.revoke(new.id)
    with Service(keyed.served.url, api_key=new.text) as service, pytest.raises(Refused, match="401"):
        service.me()
    assert {each.id: each.state for each in admin.keys.list("made")} == {key.id: "expired", new.id: "revoked"}
    with pytest.raises(Refused, match="not-found"):
        admin.keys.get("key_" + "a" * 26)
    with pytest.raises(AttributeError, match=r"write service\.keys\.revoke\(key\)"):
        key.revoke()


def test_a_key_whose_answer_is_lost_is_not_made_twice(keyed: Keyed, admin: Service, monkeypatch: pytest.MonkeyPatch):
    send = admin._http.request

    def lost(method: str, path: str, **more: object) -> None:
        send(method, path, **more)
        raise connection.httpx.ReadError("the connection broke")

    monkeypatch.setattr(admin._http, "request", lost)
    with pytest.raises(connection.Unreachable):
        admin.keys.create("lost")
    monkeypatch.undo()
    assert len(list(admin.keys.list("lost"))) == 1


def test_limits_of_a_tenant_are_set_and_read(admin: Service):
    changed = admin.tenants.set_limits("measured", jobs=4, compute_seconds=0)
    assert isinstance(changed, Tenant)
    assert (changed.tenant, changed.own) == ("measured", {"jobs": 4, "compute_seconds": 0})
    assert changed.quotas["jobs"] == {"limit": 4, "used": 0}
    assert admin.tenants.set_limits("measured", compute_seconds=None).own == {"jobs": 4}
    assert admin.tenants.get("measured").own == {"jobs": 4}
    with pytest.raises(Refused, match="jobs"):
        admin.tenants.set_limits("measured", job=4)
    assert "measured" in [each.tenant for each in admin.tenants.list()]


def test_a_tenant_is_suspended_and_resumed(keyed: Keyed, admin: Service):
    made = admin.keys.create("paused")
    with Service(keyed.served.url, api_key=made.text) as own:
        suspended = admin.tenants.suspend("paused", "unpaid invoice")
        assert (suspended.state, suspended.reason) == ("suspended", "unpaid invoice")
        assert suspended.since is not None
        with pytest.raises(Refused, match="403 tenant-suspended: the tenant paused is suspended: unpaid invoice"):
            own.call("GET", "/v1/me")
        assert admin.tenants.get("paused") == suspended
        assert admin.tenants.resume("paused").state == "active"
        assert own.call("GET", "/v1/me")["tenant"] == "paused"
    with pytest.raises(Refused, match=r"409 invalid-state: ops is the tenant of the caller"):
        admin.tenants.suspend("ops", "x")


def test_the_example_of_the_page_about_administration_runs(keyed: Keyed, admin: Service, capsys):
    page = (ROOT / "docs/client/administration.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    try:
        given = {"bp": backpass_client, "itertools": itertools, "administrator": keyed.keys["admin"]}
        exec(code.replace("https://backpass.example.org", keyed.served.url), given)  # noqa: S102
        assert admin.tenants.get("acme").own == {"jobs": 4, "compute_seconds": 3600}
    finally:
        admin.tenants.set_limits("acme", jobs=None, compute_seconds=None)

    key, seconds, *entries = capsys.readouterr().out.splitlines()
    assert re.fullmatch("bp_[a-z2-7]{52}", key) and float(seconds) >= 0
    assert len(entries) <= 20


def test_the_audit_log_is_typed_lazy_and_complete(keyed: Keyed, admin: Service, monkeypatch: pytest.MonkeyPatch):
    made = [admin.keys.create("audited", f"key {i}") for i in range(5)]
    end = time.monotonic() + 60
    while made[-1].id not in {each.target.split("/")[-1] for each in islice(admin.audit(), 200)}:
        assert time.monotonic() < end
        time.sleep(0.1)
    monkeypatch.setattr(connection, "PAGE", 2)

    listing = admin.audit("ops")
    found = [
        each
        for each in listing
        if each.action == "POST /v1/keys" and each.target.split("/")[-1] in {key.id for key in made}
    ]

    assert inspect.isgenerator(listing) and all(isinstance(each, AuditEntry) for each in found)
    assert [each.target.split("/")[-1] for each in found] == [key.id for key in reversed(made)]
    assert {(each.tenant, each.key, each.status) for each in found} == {("ops", keyed.ids["admin"], 201)}


def test_the_usage_is_typed_and_of_the_own_tenant_without_the_scope_admin(keyed: Keyed, admin: Service):
    today = datetime.now(UTC).date()
    with Service(keyed.served.url, api_key=keyed.keys["one"]) as service:
        service.call("POST", "/v1/gradients", GRADIENTS, repeat=True)
        mine = service.usage(today, str(today))
        with pytest.raises(Refused, match="forbidden"):
            service.usage(tenant="other")
        with pytest.raises(Refused, match="forbidden"):
            next(service.audit())
        with pytest.raises(Refused, match="forbidden"):
            service.keys.create("acme")

    assert all(isinstance(each, UsageRow) for each in mine)
    assert [(each.tenant, each.day) for each in mine] == [("acme", str(today))]
    assert mine[0].requests >= 1 and mine[0].bytes_in > 0
    assert "acme" in {each.tenant for each in admin.usage()}


def test_administrators_read_workers_and_metrics(admin: Service):
    assert [each["device"] for each in admin.workers()] == ["cpu"]
    assert "# TYPE http_server_request_duration_seconds histogram" in admin.metrics()
    assert all(isinstance(each, Key) for each in admin.keys.list())
