"""TLS by certificate files, with certificates signed by themselves."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time

import httpx
import pytest

from service.cli import healthcheck
from tests.certificates import certificate, needs_openssl
from tests.ports import free_port
from tests.service.forked import Forked

pytestmark = needs_openssl


def shown(port: int) -> bytes:
    """The certificate that the service presents now."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as secure:
        found = secure.getpeercert(binary_form=True)
        assert found is not None
        return found


def test_a_service_with_a_certificate_speaks_tls_and_takes_a_new_one_after_sighup(tmp_path, monkeypatch):
    certificate(tmp_path, "first")
    port = free_port()
    settings = {"DATA_DIR": tmp_path / "data", "PORT": port, "WORKERS": 1, "DEVICE": "cpu", "LOG_LEVEL": "warning"}
    settings |= {"TLS_CERT": tmp_path / "cert", "TLS_KEY": tmp_path / "key"}
    for name, value in settings.items():
        monkeypatch.setenv(f"BACKPASS_{name}", str(value))
    process = Forked(["serve"], os.environ)
    try:
        end = time.monotonic() + 60
        while healthcheck.main([]) != 0:  # reads the settings of the environment
            assert time.monotonic() < end
            time.sleep(0.1)
        trusting = ssl.create_default_context(cafile=str(tmp_path / "cert"))
        with httpx.Client(base_url=f"https://localhost:{port}", verify=trusting, timeout=60) as client:
            assert client.get("/v1").json()["name"] == "backpass"
            large = client.get("/openapi.json")
            assert large.status_code == 200
            assert len(large.content) > 10**5
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/v1", timeout=60)
        first = shown(port)
        (tmp_path / "cert").write_text("broken")
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert shown(port) == first
        certificate(tmp_path, "second")
        process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 60
        while shown(port) == first:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        process.terminate()
        assert process.wait(60) == 0
