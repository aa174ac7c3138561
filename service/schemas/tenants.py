"""Requests and answers about API keys, tenants, usage and the audit log."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from service.schemas.programs import Strict
from service.schemas.times import End, FormerEnd, former

__all__ = [
    "AuditPage",
    "CreateKey",
    "KeyPage",
    "KeyView",
    "Me",
    "NewKey",
    "Quota",
    "RotateKey",
    "RotatedKey",
    "SetLimits",
    "TenantPage",
    "TenantView",
    "UsagePage",
]

TenantName = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="Name of a tenant.", examples=["acme"])
]
Scope = Literal["read", "write", "admin"]


class CreateKey(Strict):
    """A key to make."""

    tenant: TenantName
    name: str = Field(
        "key",
        pattern=r"^[^\x00-\x1f\x7f]{1,128}$",
        description="Purpose of the key, for people.",
        examples=["ci"],
    )
    scopes: list[Scope] = Field(
        ["read", "write"],
        min_length=1,
        max_length=3,
        description="read: GET. write: all other methods. admin: keys, tenants, workers, metrics and the audit log.",
    )
    ttl_s: float | None = Field(
        None, ge=1, le=3.2e9, description="Seconds after which the key ends; by default it does not end."
    )
    expires_in_s: Annotated[float | None, Field(ge=1, le=3.2e9), former("ttl_s")] = None

    @model_validator(mode="after")
    def _one_name(self) -> Self:
        if self.ttl_s is not None and self.expires_in_s is not None:
            raise ValueError("expires_in_s is the earlier name of ttl_s: give one of them")
        return self


class RotateKey(Strict):
    """How a key is replaced."""

    overlap_s: float = Field(
        86_400.0, ge=0, le=3.2e9, description="Seconds for which the old key stays valid together with the new one."
    )


class KeyView(Strict):
    """A key without its text, which only its holder has."""

    id: str
    tenant: str
    name: str
    prefix: str = Field(description="The beginning of the key.")
    scopes: list[str]
    state: str = Field(description="valid, expired or revoked.")
    source: str = Field(description="store, or file for a key of the keys file.")
    created: float = Field(description="Seconds since 1970.")
    expires_at: End
    expires: FormerEnd
    revoked: float | None = Field(description="Seconds since 1970; null if it is not revoked.")
    last_used: float | None = Field(description="Seconds since 1970, to a minute; null if it was never used.")


class NewKey(KeyView):
    """A new key with its text, which no later answer repeats."""

    key: str = Field(description="The text of the key: send it as `Authorization: Bearer <key>`.")


class RotatedKey(NewKey):
    """A new key with its text, and the key that it replaces."""

    replaced: KeyView


class KeyPage(Strict):
    """One page of keys."""

    keys: list[KeyView]
    next_page_token: str | None = Field(None, description="`page_token` of the next page; null on the last one.")


class Quota(Strict):
    """A limit of a tenant, and how much of it is used."""

    limit: float | None = Field(description="The limit; null for none.")
    used: float | None = Field(description="The use; null for rates.")


class TenantView(Strict):
    """A tenant: the limits that an administrator set for it, and those that hold."""

    tenant: str
    own: dict[str, float] = Field(description="Limits that differ from the settings by name; 0 for no limit.")
    quotas: dict[str, Quota] = Field(description="Limits and their use by name.")


class TenantPage(Strict):
    """One page of the tenants that have keys or limits of their own."""

    tenants: list[TenantView]
    next_page_token: str | None = Field(None, description="`page_token` of the next page; null on the last one.")


class SetLimits(Strict):
    """Limits of a tenant."""

    limits: dict[str, float | None] = Field(
        description="Name of a quota -> its limit; 0 for no limit, null for that of the settings. Names that are left "
        "out keep their limit.",
        max_length=32,
    )


class KeyOfCaller(Strict):
    """The key of the request."""

    id: str
    name: str
    prefix: str
    expires_at: End
    expires: FormerEnd


class Me(Strict):
    """The caller: its tenant, its rights, its limits and its use."""

    tenant: str
    key: KeyOfCaller | None = Field(description="Null on a service without keys.")
    scopes: list[str]
    quotas: dict[str, Quota] = Field(description="Limits and their use by name.")
    today: dict[str, float] = Field(description="Use of this day (UTC): compute_seconds, steps, requests, bytes.")


class UsageRow(Strict):
    """The use of one tenant on one day."""

    day: str = Field(description="Such as 2026-11-22, in UTC.")
    tenant: str
    compute_seconds: float = Field(0.0, description="Time in which workers ran calls.")
    steps: int = Field(0, description="Optimizer steps.")
    requests: int = Field(0, description="Requests with an answer of the application.")
    bytes_in: int = Field(0, description="Bytes of request bodies.")
    bytes_out: int = Field(0, description="Bytes of answers.")


class UsagePage(Strict):
    """Use by day and tenant."""

    first: str = Field(alias="from", description="First day.")
    last: str = Field(alias="to", description="Last day.")
    usage: list[UsageRow]


class AuditEntry(Strict):
    """One call."""

    n: int = Field(description="Number of the entry; grows with time.")
    time: float = Field(description="Seconds since 1970.")
    tenant: str
    key: str | None = Field(description="Id of the key; null for a caller without a key and for the command line.")
    action: str = Field(
        description="Method and route; of the command line the command, such as `backpass keys create`."
    )
    target: str = Field(description="Path of the request, or of the thing that it created.")
    status: int
    request_id: str


class AuditPage(Strict):
    """One page of the audit log, the newest entry first."""

    entries: list[AuditEntry]
    next_page_token: str | None = Field(None, description="`page_token` of the next page; null on the last one.")
