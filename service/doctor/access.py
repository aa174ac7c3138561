"""Access to the service: API keys, and the certificate of TLS."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime

from service.doctor.finding import Finding, ok, warning, wrong
from service.doctor.storage import DATABASE
from service.http.tls import BadCertificate, check_tls, expiry
from service.settings import Settings
from service.store.admin import AdminError, asked
from service.tenants.key_file import BadKeysFile, read_keys
from service.tenants.tenancy import is_loopback

__all__ = ["keys", "tls"]

SOON_S = 14 * 86_400.0
PATIENCE_S = 5.0
"""Time for the answer of a running service."""


def keys(settings: Settings) -> Iterator[Finding]:
    """The lines of the file of keys, and whether an address that others reach is closed."""
    in_file = 0
    if settings.api_keys_file is not None and os.access(settings.api_keys_file, os.R_OK):
        try:
            in_file = len(read_keys(settings.api_keys_file))
        except BadKeysFile as error:
            yield wrong("keys", f"BACKPASS_API_KEYS_FILE: {error}", "Correct the line: see docs/security.md.")
            return
    stored = _stored(settings)
    known = [f"{in_file} in the file"] * (settings.api_keys_file is not None)
    known += [] if stored is None else [f"{stored} in the store"]
    if in_file or stored or settings.api_keys_file is not None or settings.require_keys:
        if not in_file and stored == 0:
            yield warning("keys", "no key exists, so no request is accepted", "Make one with `backpass keys create`.")
        else:
            yield ok("keys", f"every request needs a key; keys: {', '.join(known) or 'those in the store'}")
    elif is_loopback(settings.host):
        unless = " unless one is in the store, which cannot be read now" if stored is None else ""
        yield ok("keys", f"no key is needed{unless}: only processes of this machine reach {settings.host}")
    elif settings.allow_anonymous:
        unless = " unless a key is in the store, which cannot be read now" if stored is None else ""
        text = f"BACKPASS_ALLOW_ANONYMOUS lets everyone in who reaches {settings.host}{unless}"
        do = "Create keys with `backpass keys create`, or see that only trusted processes reach the port."
        yield warning("keys", text, do)
    elif stored is None:
        yield ok("keys", f"{settings.host} needs a key in the store, which cannot be read now")
    else:
        do = "Make a key with `backpass keys create`, or name a file of keys in BACKPASS_API_KEYS_FILE."
        yield wrong("keys", f"no key exists, so the service does not listen on {settings.host}", do)


def _stored(settings: Settings) -> int | None:
    """The number of keys in the SQLite store, ended ones included; None if it is another store or cannot be read.

    A running service alone can read its store, so it is asked.
    """
    if settings.database_url:
        return None
    path = settings.data_dir / DATABASE
    if not path.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.5)) as db:
            return int(db.execute("SELECT count(*) FROM keys").fetchone()[0])
    except sqlite3.Error:
        with suppress(AdminError):
            return len(asked(settings.data_dir, "keys.list", {"tenant": None}, patience=PATIENCE_S))
        return None


def tls(settings: Settings) -> Iterator[Finding]:
    """Whether the certificate fits its key, and how long it is valid."""
    if settings.tls_cert is None or settings.tls_key is None or not os.access(settings.tls_key, os.R_OK):
        return
    try:
        check_tls(settings.tls_cert, settings.tls_key)
        until = expiry(settings.tls_cert, settings.tls_key)
    except BadCertificate as error:
        do = "Name a valid certificate chain and its key in BACKPASS_TLS_CERT and BACKPASS_TLS_KEY."
        yield wrong("tls", str(error), do)
        return
    day = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%d")
    text = f"the certificate {settings.tls_cert} is valid until {day}"
    if until < time.time() + SOON_S:
        yield warning("tls", text, "Replace the files, then send SIGHUP to the service.")
    else:
        yield ok("tls", text)
