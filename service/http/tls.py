"""TLS of `backpass serve`: the certificate is checked before the start, and read again after SIGHUP."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

__all__ = ["BadCertificate", "check_tls", "expiry", "reload_tls"]

log = logging.getLogger("backpass.server")


class BadCertificate(Exception):
    """The files of the certificate cannot be used. The message names the settings."""


def check_tls(cert: Path | None, key: Path | None) -> None:
    """Raises BadCertificate for files that a server cannot use together. Both None: no TLS."""
    if cert is None and key is None:
        return
    if cert is None or key is None:
        raise BadCertificate("BACKPASS_TLS_CERT and BACKPASS_TLS_KEY must be set together")
    for setting, path in (("BACKPASS_TLS_CERT", cert), ("BACKPASS_TLS_KEY", key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise BadCertificate(f"{setting}: {path} cannot be read: {error.strerror}") from error
    _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key)


def expiry(cert: Path, key: Path) -> float:
    """The time at which the first certificate of the file ends, in seconds since 1970. Raises BadCertificate.

    Only a client can read a certificate with the standard library: one in memory connects to a server in memory, and
    trusts the certificate itself.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(server, cert, key)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cert)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(3):  # messages go to and fro until both ends have all
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                raise BadCertificate(f"{cert}: {error.verify_message}") from error
    found = ends[0].getpeercert() or {}
    return ssl.cert_time_to_seconds(str(found["notAfter"]))


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
