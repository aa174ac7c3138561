"""API keys: their text, the digest that is stored of it, and what a key allows.

The text is ``bp_`` and 52 base32 characters with 256 random bits. The service stores its SHA-256; a slow hash would
protect guessable secrets only.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from base64 import b32encode
from dataclasses import dataclass, field

from service.ids import ONE_LINE, new_id

__all__ = [
    "SCOPES",
    "SECRET",
    "TENANT",
    "TENANT_RULE",
    "Key",
    "digest_of",
    "new_key",
    "new_secret",
    "prefix_of",
]

SCOPES = ("read", "write", "admin")
"""read: GET and HEAD. write: all other methods. admin: keys, tenants, workers, metrics and the audit log."""

TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
"""The form of a tenant's name."""

TENANT_RULE = "a tenant's name has 1 to 64 characters of a-z, 0-9, '.', '_' and '-', a letter or digit first"

NAME_LENGTH = 128
"""The most characters of a key's name: printable text that tells people what the key is for."""

SECRET = re.compile(r"[A-Za-z0-9._~+/=-]{32,256}")
"""The form of a secret: the characters of a bearer token (RFC 6750), long enough for 128 random bits."""

SECRET_BYTES = 32
SHOWN = 9  # characters of the text that lists show, 30 of its 256 random bits


@dataclass(slots=True)
class Key:
    """One key. digest: SHA-256 of its text. Times are seconds since 1970, None for never.

    used:    time of the last request with it. written: the part of `used` that the store knows.
    source:  "store", or "file" for a key of the keys file.
    """

    id: str
    tenant: str
    name: str
    digest: bytes
    prefix: str
    scopes: frozenset[str]
    created: float
    expires: float | None = None
    revoked: float | None = None
    used: float | None = None
    written: float | None = None
    source: str = field(default="store")

    def is_live(self, now: float) -> bool:
        """Whether the key is neither revoked nor expired."""
        return self.revoked is None and (self.expires is None or now < self.expires)


def new_secret() -> str:
    """The text of a fresh key."""
    return "bp_" + b32encode(secrets.token_bytes(SECRET_BYTES)).decode().rstrip("=").lower()


def digest_of(secret: bytes) -> bytes:
    """The SHA-256 of a key's text, 32 bytes."""
    return hashlib.sha256(secret).digest()


def prefix_of(secret: str) -> str:
    """The beginning of a key's text, by which people recognise it."""
    return secret[:SHOWN]


def new_key(tenant: str, name: str, scopes: frozenset[str], now: float, expires: float | None) -> tuple[str, Key]:
    """(text of a fresh key, the key). The text is not stored anywhere.

    Raises ValueError with a sentence about the first argument that is wrong.
    """
    if not TENANT.fullmatch(tenant):
        raise ValueError(TENANT_RULE)
    if not 1 <= len(name) <= NAME_LENGTH or not ONE_LINE.fullmatch(name):
        raise ValueError("a key's name has 1 to 128 printable characters")
    if not scopes or not scopes <= set(SCOPES):
        raise ValueError(f"scopes are one or more of {', '.join(SCOPES)}")
    if expires is not None and expires <= now:
        raise ValueError("the key would have expired already")
    secret = new_secret()
    return secret, Key(
        new_id("key_"), tenant, name, digest_of(secret.encode()), prefix_of(secret), scopes, now, expires
    )
