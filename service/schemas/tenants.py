"""Requests and answers about API keys, tenants, usage and the audit log."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from service.schemas.members import LINE, Created, NextPage
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
    "Suspend",
    "TenantPage",
    "TenantView",
    "UsagePage",
]

TenantName = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="Name of a tenant.", examples=["acme"])
]
Scope = Literal["read", "write", "admin"]
SCOPES: Any = Field(
    description="read: GET. write: all other methods. admin: keys, tenants, workers, metrics and the audit log."
)
PURPOSE: Any = Field(description="Purpose of the key, for people.")
KeyId = Annotated[str, Field(description="Id of the key.")]
KeyPrefix = Annotated[str, Field(description="The beginning of the key, which tells it from others.")]
OfTenant = Annotated[str, Field(description="Name of the tenant.")]


class CreateKey(Strict):
    """A key to make."""

    tenant: TenantName
    name: Annotated[str, PURPOSE] = Field(
        "key",
        min_length=1,
        max_length=128,
        pattern=LINE,
        examples=["ci"],
    )
    scopes: Annotated[list[Scope], SCOPES] = Field(
        ["read", "write"],
        min_length=1,
        max_length=3,
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

    id: KeyId
    tenant: OfTenant
    name: Annotated[str, PURPOSE]
    prefix: KeyPrefix
    scopes: Annotated[list[str], SCOPES]
    state: str = Field(description="State of the key: valid, expired or revoked.")
    source: str = Field(description="Place of the key: store, or file for a key of the keys file.")
    created: Created
    expires_at: End
    expires: FormerEnd
    revoked: float | None = Field(
        description="Time of the revocation, in seconds since 1970; null if it is not revoked."
    )
    last_used: float | None = Field(
        description="Time of the last use to a minute, in seconds since 1970; null before it."
    )


class NewKey(KeyView):
    """A new key with its text, which no later answer repeats."""

    key: str = Field(description="The text of the key: send it as `Authorization: Bearer <key>`.")


class RotatedKey(NewKey):
    """A new key with its text, and the key that it replaces."""

    replaced: KeyView = Field(description="The key that the new one replaces; it stays valid for `overlap_s`.")


class KeyPage(Strict):
    """One page of keys."""

    keys: list[KeyView] = Field(description="Keys, ordered by id, without their texts.")
    next_page_token: NextPage = None


class Quota(Strict):
    """A limit of a tenant, and how much of it is used."""

    limit: float | None = Field(description="The limit, in the unit of its name; null for no limit.")
    used: float | None = Field(description="The present use; null for rates, which have none.")


class TenantView(Strict):
    """A tenant: its state, the limits that an administrator set for it, and those that hold."""

    tenant: OfTenant
    state: str = Field(description="active, suspended, deleting or deleted.")
    reason: str | None = Field(description="Reason of the suspension; null without one.")
    since: float | None = Field(description="When the state began, in seconds since 1970; null of an active tenant.")
    own: dict[str, float] = Field(description="Limits that differ from the settings by name; 0 for no limit.")
    quotas: dict[str, Quota] = Field(description="Limits and their use by name.")


class TenantPage(Strict):
    """One page of the tenants that have keys, limits of their own or a state."""

    tenants: list[TenantView] = Field(description="Tenants, ordered by name.")
    next_page_token: NextPage = None


class Suspend(Strict):
    """The suspension of a tenant."""

    reason: str = Field(
        min_length=1,
        max_length=200,
        pattern=LINE,
        description="Why, for the tenant: its refused calls contain it.",
        examples=["unpaid invoice"],
    )


class SetLimits(Strict):
    """Limits of a tenant."""

    limits: dict[str, float | None] = Field(
        description="Name of a quota -> its limit; 0 for no limit, null for that of the settings. Names that are left "
        "out keep their limit.",
        max_length=32,
    )


class KeyOfCaller(Strict):
    """The key of the request."""

    id: KeyId
    name: Annotated[str, PURPOSE]
    prefix: KeyPrefix
    expires_at: End
    expires: FormerEnd


class Me(Strict):
    """The caller: its tenant, its rights, its limits and its use."""

    tenant: OfTenant
    key: KeyOfCaller | None = Field(description="The key of the request; null on a service without keys.")
    scopes: Annotated[list[str], SCOPES]
    quotas: dict[str, Quota] = Field(description="Limits and their use by name.")
    today: dict[str, float] = Field(description="Use of this day (UTC): compute_seconds, steps, requests, bytes.")


class UsageRow(Strict):
    """The use of one tenant on one day."""

    day: str = Field(description="The day in UTC, such as 2026-11-22.")
    tenant: OfTenant
    compute_seconds: float = Field(0.0, description="Seconds in which workers ran calls.")
    steps: int = Field(0, description="Number of optimizer steps.")
    requests: int = Field(0, description="Number of requests that the application answered.")
    bytes_in: int = Field(0, description="Bytes of request bodies.")
    bytes_out: int = Field(0, description="Bytes of answers.")


class UsagePage(Strict):
    """Use by day and tenant."""

    first: str = Field(alias="from", description="First day of the period, in UTC.")
    last: str = Field(alias="to", description="Last day of the period, in UTC.")
    usage: list[UsageRow] = Field(description="A row for each day and tenant with any use.")


class AuditEntry(Strict):
    """One call."""

    n: int = Field(description="Number of the entry; grows with time.")
    time: float = Field(description="Time of the call, in seconds since 1970.")
    tenant: OfTenant
    key: str | None = Field(description="Id of the key; null for a caller without a key and for the command line.")
    action: str = Field(
        description="Method and route; of the command line the command, such as `backpass keys create`."
    )
    target: str = Field(description="Path of the request, or of the thing that it created.")
    status: int = Field(description="HTTP status of the answer.")
    request_id: str = Field(description="Id of the request; empty for the command line.")


class AuditPage(Strict):
    """One page of the audit log, the newest entry first."""

    entries: list[AuditEntry] = Field(description="Entries, the newest first.")
    next_page_token: NextPage = None
