"""TLS of `backpass serve`: the certificate is checked before the start, and read again after SIGHUP."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

__all__ = ["BadCertificate", "check_tls", "reload_tls"]

log = logging.getLogger("backpass.server")


class BadCertificate(Exception):
    """The files of the certificate cannot be used. The message names the settings."""


def check_tls(cert: Path | None, key: Path | None) -> None:
    """Raises BadCertificate for files that a server cannot use together. Both None: no TLS."""
    if cert is None and key is None:
        return
    if cert is None or key is None:
        raise BadCertificate("BACKPASS_TLS_CERT and BACKPASS_TLS_KEY must be set together")
    for path in (cert, key):
        try:
            path.open("rb").close()
        except OSError as error:
            raise BadCertificate(f"{path} cannot be read: {error.strerror}") from error
    _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key)


def reload_tls(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    """Read the files again: new connections get the new certificate. With wrong files the old one stays."""
    try:
        check_tls(cert, key)
        _load(context, cert, key)
    except BadCertificate as error:
        log.error("the certificate stays the old one: %s", error)
    else:
        log.info("the certificate was read again")


def _load(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise BadCertificate(f"{cert} and {key} are no certificate with its key: {error}") from error


def _no_password() -> str:
    raise ValueError("the key is encrypted")  # instead of asking on the terminal
