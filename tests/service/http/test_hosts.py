"""Host headers that name this service."""

from __future__ import annotations

import pytest

from service.http.hosts import host_check
from service.settings import Settings

NAMED = ("localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:9", "[::1]:8080", "localhost.:80")
FOREIGN = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "evil.example:8080", "[::2]")


@pytest.mark.parametrize("host", NAMED)
def test_loopback_names_are_known_with_any_port(host: str):
    assert host_check(Settings())(host.encode())


@pytest.mark.parametrize("host", [*FOREIGN, "10.0.0.7", "::2"])
def test_other_names_and_addresses_are_unknown(host: str):
    assert not host_check(Settings())(host.encode())


def test_the_address_to_listen_on_is_known():
    assert host_check(Settings(host="10.0.0.7"))(b"10.0.0.7:8080")


@pytest.mark.parametrize("host", ["10.0.0.7:8080", "[fd00::7]:8080", "192.168.1.2"])
def test_a_service_on_every_address_knows_addresses_but_no_names(host: str):
    check = host_check(Settings(host="0.0.0.0"))
    assert check(host.encode())
    assert not check(b"evil.example")


def test_the_setting_adds_names_and_patterns():
    check = host_check(Settings(allowed_hosts="api.example.org, *.example.com"))
    assert check(b"api.example.org:443")
    assert check(b"a.b.example.com")
    assert not check(b"example.org")
    assert not check(b"evilexample.com")
    assert host_check(Settings(allowed_hosts="*"))(b"evil.example")
