"""API keys: make, find, rotate and revoke them. Each call needs a key with the scope admin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from backpass_client.connection import Service, quoted
from backpass_client.hints import Hinted

__all__ = ["Key", "Keys"]


@dataclass(frozen=True, slots=True)
class Key(Hinted):
    """An API key.

    scopes: read (GET), write (all other methods), admin (keys, tenants, workers, metrics and the audit log).
    state:  valid, expired or revoked.
    text:   the key itself, of one that was just made; None of any other: the service does not know it.
    said:   the description, with prefix, created, expires_at, revoked and last_used.
    """

    _elsewhere: ClassVar[Mapping[str, str]] = {
        "revoke delete": "write service.keys.revoke(key)",
        "rotate renew": "write service.keys.rotate(key)",
        "key secret token value": "see text",
    }

    id: str
    tenant: str
    name: str
    scopes: list[str]
    state: str
    text: str | None = field(repr=False)
    said: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """The key in an answer of the service."""
        said = {name: value for name, value in answer.items() if name not in ("key", "replaced")}
        return cls(
            id=said["id"],
            tenant=said["tenant"],
            name=said["name"],
            scopes=said["scopes"],
            state=said["state"],
            text=answer.get("key"),
            said=said,
        )


class Keys:
    """The API keys of all tenants; `service.keys`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def create(
        self, tenant: str, name: str = "key", *, scopes: Sequence[str] = ("read", "write"), ttl: float | None = None
    ) -> Key:
        """A new key. Only this one has its `text`, which is stored nowhere and cannot be read again.

        name: its purpose, for people.
        ttl:  seconds after which the key ends; by default never.
        Raises Refused (invalid-state) on a service without keys: `backpass keys create` makes the first one. After
        Unreachable the key may exist, and nobody has its text: find it by `list`, and revoke it.
        """
        asked = {"tenant": tenant, "name": name, "scopes": list(scopes), "ttl_s": ttl}
        return Key.of(self._service.call("POST", "/v1/keys", asked))

    def get(self, id: str) -> Key:
        """The key with this id. Raises Refused (not-found)."""
        return Key.of(self._service.call("GET", f"/v1/keys/{quoted(id)}"))

    def list(self, tenant: str | None = None) -> Iterator[Key]:
        """The keys of all tenants, or of one, page by page, with those that have ended."""
        return (Key.of(each) for each in self._service.entries("/v1/keys", "keys", tenant=tenant))

    def rotate(self, key: Key | str, *, overlap: float = 86_400.0) -> Key:
        """A new key, with its `text`, for the tenant, the name and the scopes of `key`.

        overlap: seconds for which the old one stays valid. Otherwise as `create`.
        """
        return Key.of(self._service.call("POST", f"{_path(key)}/rotate", {"overlap_s": overlap}))

    def revoke(self, key: Key | str) -> None:
        """Refuse the key from now on, in other processes of the service within seconds; safe to repeat."""
        self._service.call("DELETE", _path(key))


def _path(key: Key | str) -> str:
    return f"/v1/keys/{quoted(key if isinstance(key, str) else key.id)}"
