"""The container's health check."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.cli.healthcheck import _address, failure, main


@contextmanager
def answering(status: int, body: bytes) -> Iterator[int]:
    """The port of a server that gives every request the same answer."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_a_ready_service_passes() -> None:
    with answering(200, b"{}") as port:
        assert failure("127.0.0.1", port) is None


def test_an_unready_service_fails_with_the_reason() -> None:
    with answering(503, b'{"status": "starting"}') as port:
        assert failure("127.0.0.1", port) == f'127.0.0.1:{port} answers 503: {{"status": "starting"}}'


def test_the_reason_is_one_line_without_control_characters() -> None:
    with answering(502, b"<html>\nBad\x1b[31m") as port:
        found = failure("127.0.0.1", port)

    assert found is not None
    assert "\n" not in found
    assert "\x1b" not in found


def test_a_closed_port_fails() -> None:
    with answering(200, b"") as port:
        pass

    assert failure("127.0.0.1", port) is not None


def test_the_address_comes_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(200, b"{}") as port:
        monkeypatch.setenv("BACKPASS_HOST", "0.0.0.0")
        monkeypatch.setenv("BACKPASS_PORT", str(port))

        assert main([]) == 0


def test_an_address_argument_overrides_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKPASS_PORT", "1")
    with answering(200, b"{}") as port:
        assert main([f"127.0.0.1:{port}"]) == 0


def test_the_port_for_metrics_is_asked_first_because_it_never_speaks_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKPASS_TLS_CERT", "/run/secrets/cert.pem")
    monkeypatch.setenv("BACKPASS_PORT", "1")
    monkeypatch.setenv("BACKPASS_METRICS_HOST", "0.0.0.0")
    with answering(200, b"{}") as port:
        monkeypatch.setenv("BACKPASS_METRICS_PORT", str(port))

        assert main([]) == 0


def test_a_service_with_tls_is_asked_over_tls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("BACKPASS_TLS_CERT", "cert.pem")
    with answering(200, b"{}") as port:  # without TLS
        assert main([f"127.0.0.1:{port}"]) == 1

    assert "does not answer" in capsys.readouterr().err


ADDRESSES: dict[str, tuple[dict[str, str], tuple[str, int, bool]]] = {
    "nothing": ({}, ("127.0.0.1", 8080, False)),
    "empty variables": (
        {"BACKPASS_PORT": "", "BACKPASS_METRICS_PORT": "", "BACKPASS_HOST": "", "BACKPASS_TLS_CERT": ""},
        ("127.0.0.1", 8080, False),
    ),
    "every address": ({"BACKPASS_HOST": "0.0.0.0"}, ("127.0.0.1", 8080, False)),
    "every address of IPv6": ({"BACKPASS_HOST": "::"}, ("::1", 8080, False)),
    "small letters": ({"backpass_port": "9000"}, ("127.0.0.1", 9000, False)),
    "TLS": ({"BACKPASS_TLS_CERT": "/cert"}, ("127.0.0.1", 8080, True)),
    "metrics": (
        {"BACKPASS_TLS_CERT": "/cert", "BACKPASS_METRICS_PORT": "9090", "BACKPASS_METRICS_HOST": "::"},
        ("::1", 9090, False),
    ),
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_the_check_asks_where_the_service_listens(name: str, tmp_path: Path) -> None:
    environment, expected = ADDRESSES[name]

    assert _address("", environment, tmp_path) == expected


def test_the_check_reads_files_of_secrets_as_the_service_does(tmp_path: Path) -> None:
    (tmp_path / "backpass_tls_cert").write_text("/cert\n")
    (tmp_path / "backpass_port").write_text("9000\n")

    assert _address("", {"BACKPASS_PORT": "9001"}, tmp_path) == ("127.0.0.1", 9001, True)
