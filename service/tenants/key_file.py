"""The file of API keys, for deployments that keep secrets in files: one key on a line, as ``tenant:scopes:key``.

::

    # comment
    acme:read,write:bp_...
    ops:read,write,admin:bp_...

Scopes are separated by commas. A key is 32 to 256 characters of a bearer token, such as those that
``backpass keys create --line`` prints. Its id is derived from its digest, so the audit log can name it.
"""

from __future__ import annotations

import os
from base64 import b32encode
from pathlib import Path

from service.tenants.key import SCOPES, SECRET, TENANT, TENANT_RULE, Key, digest_of, prefix_of

__all__ = ["BadKeysFile", "KeyFile", "read_keys"]

MOST_BYTES = 2**20


class BadKeysFile(Exception):
    """The file cannot be read or has a wrong line. The message contains no secret."""


def read_keys(path: Path) -> list[Key]:
    """The keys of the file. Raises BadKeysFile, which names the first wrong line."""
    try:
        with path.open("rb") as file:
            content, changed = file.read(MOST_BYTES + 1), os.fstat(file.fileno()).st_mtime
    except OSError as error:
        raise BadKeysFile(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error
    if len(content) > MOST_BYTES:
        raise BadKeysFile(f"{path} is larger than {MOST_BYTES} bytes")
    found: dict[bytes, Key] = {}
    for number, line in enumerate(content.decode("utf-8-sig", "replace").splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                key = _key(line.strip(), changed)
                if key.digest in found:
                    raise ValueError("the key is on an earlier line already")
            except ValueError as error:
                raise BadKeysFile(f"{path}, line {number}: {error}") from None
            found[key.digest] = key
    return list(found.values())


def _key(line: str, changed: float) -> Key:
    parts = line.split(":", 2)
    if len(parts) != 3:
        raise ValueError("expected tenant:scopes:key")
    tenant, listed, secret = parts
    scopes = frozenset(listed.split(","))
    if not TENANT.fullmatch(tenant):
        raise ValueError(TENANT_RULE)
    if not scopes <= set(SCOPES):
        raise ValueError(f"the scopes are not one or more of {','.join(SCOPES)}, separated by commas")
    if not SECRET.fullmatch(secret):
        raise ValueError("the key is not 32 to 256 characters of A-Z a-z 0-9 . _ ~ + / = -")
    digest = digest_of(secret.encode())
    id = "key_" + b32encode(digest[:17]).decode().lower()[:26]
    return Key(id, tenant, "from the keys file", digest, prefix_of(secret), scopes, changed, source="file")


class KeyFile:
    """The keys of a file that may be replaced while the service runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self.keys: list[Key] = []

    def refresh(self) -> bool:
        """Read the file again if it has changed; whether it has. Raises BadKeysFile; the keys stay as they were."""
        try:
            about = self._path.stat()
        except OSError as error:
            raise BadKeysFile(f"{self._path} cannot be read: {os.strerror(error.errno or 0)}") from error
        seen = (about.st_ino, about.st_mtime_ns, about.st_size)
        if seen == self._seen:
            return False
        self.keys = read_keys(self._path)
        self._seen = seen
        return True
