"""The Python client with API keys."""

from __future__ import annotations

import time

import pytest

from backpass_client import Refused, Service
from service.schemas.examples import REGRESSION, REGRESSION_FEEDS, REGRESSION_PARAMETERS
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
        with limits(keyed, "limited", requests_per_second=2, burst=1):
            service.me()
            started = time.monotonic()
            service.me()
            assert 0.9 < time.monotonic() - started < 60
        service.call("POST", "/v1/gradients", GRADIENTS)
        with limits(keyed, "limited", compute_seconds=1e-9):
            started = time.monotonic()
            with pytest.raises(Refused, match="quota-exceeded") as found:
                service.call("POST", "/v1/gradients", GRADIENTS, repeat=True)
            assert time.monotonic() - started < 60
            assert found.value.retry_after > 0
