"""Wrong addresses, keys and certificates are errors at once, with the cure and without the secret."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from backpass_client import BackpassError, Service, Tape, Unreachable


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "localhost", "", "ftp://host", "http://", "/v1", "http://[::1", None]
)
def test_the_client_refuses_an_invalid_address_before_a_request(url):
    with pytest.raises(BackpassError, match=r"no address of a service.*expected an address such as http://"):
        Service(url)


@pytest.mark.parametrize("url", ["ftp://me:secret@host", "http://me:secret@[::1", "http://me:secret@host/v1"])
def test_the_password_of_a_wrong_address_is_not_shown(url):
    with pytest.raises(BackpassError) as caught:
        Service(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://host/v1", "http://host/below/v1/"])
def test_an_address_with_the_path_of_the_routes_is_refused(url):
    with pytest.raises(BackpassError, match="give the address without /v1"):
        Service(url)


@pytest.mark.parametrize("url", ["http://host", "https://host:8443/", "http://host/below/a/path", "http://[::1]:8080"])
def test_addresses_of_services_are_taken(url):
    with Service(url, verify=None) as service:
        assert service.url == url


@pytest.mark.parametrize("key", ["bp_secr\u00e4t", "bp_sec\nret", "bp_sec ret", "bp_secret\x00"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(key):
    with pytest.raises(BackpassError, match="the API key has a character") as caught:
        Service("http://host", api_key=key)
    assert "bp_sec" not in str(caught.value)


@pytest.mark.parametrize(("given", "sent"), [("bp_key\n", "Bearer bp_key"), ("  ", None), ("", None)])
def test_a_key_is_sent_without_the_space_around_it(given, sent):
    with Service("http://host", api_key=given) as service:
        assert service._http.headers.get("authorization") == sent


def test_a_tape_checks_its_address_too():
    with pytest.raises(BackpassError, match="no address of a service"), Tape("127.0.0.1:8080"):
        pass


def test_attempts_and_files_of_certificates_are_checked(tmp_path: Path):
    (tmp_path / "none.pem").write_text("no certificate")
    with pytest.raises(BackpassError, match="attempts=0"):
        Service("http://host", attempts=0)
    for name in ("none.pem", "missing.pem"):
        with pytest.raises(BackpassError, match="no certificates can be read from this file"):
            Service("https://host", verify=str(tmp_path / name))


TLS = {
    "CERTIFICATE_VERIFY_FAILED": "verify=",
    "WRONG_VERSION_NUMBER": "http instead of https",
}


@pytest.mark.parametrize("reason", TLS)
def test_a_failure_of_tls_is_not_repeated_and_has_advice(reason):
    seen = []

    def fail(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        cause = ssl.SSLError(1, f"[SSL: {reason}]")
        raise httpx.ConnectError(f"[SSL: {reason}]") from cause

    with Service("https://host") as service:
        service._http = httpx.Client(base_url=service.url, transport=httpx.MockTransport(fail))
        with pytest.raises(Unreachable, match=TLS[reason]):
            service.call("GET", "/v1")
    assert len(seen) == 1
