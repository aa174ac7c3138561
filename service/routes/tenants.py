"""The caller and its limits, usage by day, and for administrators tenants and the audit log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from core.ir.errors import escaped
from core.ir.suggest import near
from service.caller import CALLER
from service.http.request_body import JSON, read_body
from service.problems import FieldError, HttpProblem, responses, wrong_parameter
from service.routes.common import administrator, json_answer
from service.routes.documented import accepts
from service.routes.state import quotas, sessions, settings, store, tapes, tenancy
from service.schemas import tenants as schemas
from service.store.admin import Action
from service.store.errors import StorageError
from service.tenants import actions, audit, usage
from service.tenants.limits import NAMES, BadLimit
from service.tenants.states import ACTIVE, WrongState

__all__ = ["quotas_of", "router"]

router = APIRouter(tags=["tenants"])

DAY = r"^\d{4}-\d{2}-\d{2}$"
DAY_S = 86_400.0
MOST_ROWS = 50_000
TOKEN = "tenant:"
"""The beginning of page tokens of tenants: their names may look as tokens of other lists do."""
TENANT = r"^[a-z0-9][a-z0-9._-]{0,63}$"


def _name(example: str) -> Any:
    return Path(pattern=TENANT, description="Name of a tenant.", openapi_examples={example: {"value": example}})


TenantName = Annotated[str, _name("acme")]
FormerName = Annotated[str, _name("former")]
"""Another example, so that the examples of the other routes go on."""
QUOTAS = {
    "sessions": {"limit": 10000, "used": 3},
    "compute_seconds": {"limit": None, "used": 12.5},
    "requests_per_second": {"limit": 5000, "used": None},
}
BODY = ("invalid-json", "body-too-large", "body-timeout", "unsupported-media-type", "invalid-request")
STORAGE = ("storage-full", "storage-unavailable")
UNUSED = {kind: 0.0 if kind == "compute_seconds" else 0 for kind in usage.KINDS}
ME = {
    "tenant": "acme",
    "key": {
        "id": "key_mfrggzdfmztwq2lknnwg23tpob",
        "name": "ci",
        "prefix": "bp_mzxw6y",
        "expires_at": None,
        "expires": None,
    },
    "scopes": ["read", "write"],
    "quotas": QUOTAS,
    "today": {"compute_seconds": 12.5, "steps": 1000, "requests": 1010, "bytes_in": 40000, "bytes_out": 90000},
}


async def quotas_of(request: Request, tenant: str) -> dict[str, dict[str, float | None]]:
    """The limits of a tenant and their use; without the use of stored things if the store cannot be read."""
    try:
        open_tapes, _ = await tapes(request).usage(tenant)
        living, _ = await sessions(request).usage(tenant)
        return await quotas(request).told(tenant, tapes=float(open_tapes), sessions=float(living))
    except StorageError:
        return quotas(request).untold(tenant)


@router.get(
    "/v1/me",
    summary="Read who is calling",
    response_model=schemas.Me,
    responses={200: {"description": "The caller.", "content": {JSON: {"example": ME}}}},
)
async def get_me(request: Request) -> Response:
    """Tenant and scopes of the key of the request, the limits of the tenant, and how much of them it uses."""
    caller = CALLER.get()
    key = tenancy(request).ring.by_id(caller.key)
    about = None if key is None else {n: actions.shown(key)[n] for n in schemas.KeyOfCaller.model_fields}
    today = usage.day_of(time.time())
    found = await _usage(request, caller.tenant, today, today)
    return json_answer(
        {
            "tenant": caller.tenant,
            "key": about,
            "scopes": [scope for scope in ("read", "write", "admin") if scope in caller.scopes],
            "quotas": await quotas_of(request, caller.tenant),
            "today": {kind: found[0][kind] for kind in usage.KINDS} if found else UNUSED,
        }
    )


@router.get(
    "/v1/usage",
    summary="Read the usage",
    response_model=schemas.UsagePage,
    responses=responses("invalid-request", "limit-exceeded", "storage-unavailable"),
)
async def get_usage(
    request: Request,
    first: Annotated[
        str | None, Query(alias="from", pattern=DAY, description="First day (UTC); by default 30 days before the last.")
    ] = None,
    last: Annotated[str | None, Query(alias="to", pattern=DAY, description="Last day (UTC); by default today.")] = None,
    tenant: Annotated[
        str | None, Query(pattern=TENANT, description="Usage of this tenant; of another one with the scope admin only.")
    ] = None,
) -> Response:
    """Compute seconds, steps, requests and bytes by day: of the caller's tenant, and of all with the scope admin."""
    caller = CALLER.get()
    if tenant is None and "admin" not in caller.scopes:
        tenant = caller.tenant
    if tenant not in (None, caller.tenant) and "admin" not in caller.scopes:
        raise HttpProblem("forbidden", "the usage of another tenant needs the scope admin")
    until = last or usage.day_of(time.time())
    since = first or usage.day_of(_seconds(until, "to") - 30 * DAY_S)
    between = _seconds(until, "to") - _seconds(since, "from")
    if between < 0:
        raise wrong_parameter("query: from", "from is after to", "out_of_range")
    if between > 366 * DAY_S:
        field = FieldError("", "out_of_range", "from is at most 366 days before to", parameter="query: from")
        raise HttpProblem("invalid-request", "the first day must be at most 366 days before the last", errors=[field])
    return json_answer({"from": since, "to": until, "usage": await _usage(request, tenant, since, until)})


async def _usage(request: Request, tenant: str | None, first: str, last: str) -> list[dict[str, Any]]:
    """The use by day and tenant. Raises StorageError, or HttpProblem for too much of it."""
    with contextlib.suppress(StorageError):  # a full disk keeps the last seconds in memory
        await tenancy(request).usage.flush()
    rows = await store(request).read(lambda db: usage.rows(db, tenant, first, last, MOST_ROWS + 1))
    if len(rows) > MOST_ROWS:
        raise HttpProblem("limit-exceeded", "the answer would be too large; ask for fewer days or for one tenant")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        amount = round(row.amount, 6) if row.kind == "compute_seconds" else round(row.amount)
        found.setdefault((row.day, row.tenant), {"day": row.day, "tenant": row.tenant, **UNUSED})[row.kind] = amount
    return list(found.values())


def _seconds(day: str, parameter: str) -> float:
    try:
        return time.mktime((*time.strptime(day, "%Y-%m-%d")[:3], 12, 0, 0, 0, 0, 0))
    except (ValueError, OverflowError):
        field = FieldError("", "invalid", "no day of the calendar", parameter=f"query: {parameter}")
        raise HttpProblem("invalid-request", f"{parameter} is no day of the calendar", errors=[field]) from None


@router.get(
    "/v1/audit",
    summary="Read the audit log",
    response_model=schemas.AuditPage,
    responses=responses("invalid-request", "storage-unavailable"),
    dependencies=[Depends(administrator)],
)
async def list_audit_records(
    request: Request,
    tenant: Annotated[str | None, Query(pattern=TENANT, description="Entries of this tenant only.")] = None,
    page_size: Annotated[int, Query(ge=1, le=200, description="Largest number of entries in the answer.")] = 50,
    page_token: Annotated[
        str, Query(pattern=r"^[0-9]{0,18}$", description="`next_page_token` of the previous page.")
    ] = "",
) -> Response:
    """The audit log: creations, changes and deletions with their authors, the newest entry first.

    Steps, gradients and reads have no entries, but for those of administrators. An entry appears within two seconds.
    """
    before = int(page_token) if page_token else None
    rows = await store(request).read(lambda db: audit.page(db, before, page_size + 1, tenant))
    page = rows[:page_size]
    token = str(page[-1].n) if len(rows) > page_size else None
    entries = [
        {
            "n": row.n,
            "time": row.time,
            "tenant": row.tenant,
            "key": row.key,
            "action": row.action,
            "target": row.target,
            "status": row.status,
            "request_id": row.request_id,
        }
        for row in page
    ]
    return json_answer({"entries": entries, "next_page_token": token})


@router.get(
    "/v1/tenants",
    summary="List tenants",
    response_model=schemas.TenantPage,
    responses=responses("invalid-request", "storage-unavailable"),
    dependencies=[Depends(administrator)],
)
async def list_tenants(
    request: Request,
    page_size: Annotated[int, Query(ge=1, le=200, description="Largest number of tenants in the answer.")] = 50,
    page_token: Annotated[
        str,
        Query(pattern=r"^(tenant:[a-z0-9._-]{1,64})?$", description="`next_page_token` of the previous page."),
    ] = "",
) -> Response:
    """One page of the tenants with keys, own limits or a state, ordered by name, with their quotas."""
    known = await actions.list_tenants(store(request), {})
    names = {each["tenant"] for each in known} | {key.tenant for key in tenancy(request).ring.of_file}
    found = sorted(name for name in names if name > page_token.removeprefix(TOKEN))
    page = found[:page_size]
    token = f"{TOKEN}{page[-1]}" if len(found) > page_size else None
    return json_answer({"tenants": await _views(request, page), "next_page_token": token})


@router.get(
    "/v1/tenants/{tenant}",
    summary="Read a tenant",
    response_model=schemas.TenantView,
    responses=responses("invalid-request", "storage-unavailable"),
    dependencies=[Depends(administrator)],
)
async def get_tenant(request: Request, tenant: TenantName) -> Response:
    """State and limits of the tenant, and their use. A tenant without keys has the limits of the settings."""
    return json_answer((await _views(request, [tenant]))[0])


@router.put(
    "/v1/tenants/{tenant}",
    summary="Set the limits of a tenant",
    response_model=schemas.TenantView,
    responses=responses("invalid-state", *BODY, *STORAGE),
    dependencies=[Depends(administrator)],
    openapi_extra=accepts(
        schemas.SetLimits,
        binary=False,
        limits=("Fewer jobs, and an hour of compute time a day", {"limits": {"jobs": 4, "compute_seconds": 3600}}),
        default=("The limits of the settings", {"limits": {"jobs": None, "compute_seconds": None}}),
    ),
)
async def put_tenant(request: Request, tenant: TenantName) -> Response:
    """Set own limits of a tenant, which hold at once in this process and within seconds in others.

    Limits that are left out stay as they are. Things beyond a lower limit are not deleted.
    """
    asked = (await read_body(request, settings(request), binary=False)).read_as(schemas.SetLimits)
    try:
        await actions.set_limits(store(request), {"tenant": tenant, "limits": asked.limits})
    except WrongState as error:
        raise HttpProblem("invalid-state", str(error), state=error.state) from None
    except BadLimit as error:
        meant = None if error.name in NAMES else near(error.name, NAMES)
        field = FieldError(f"/limits/{escaped(error.name)}", "invalid", str(error), suggestion=meant)
        raise HttpProblem("invalid-request", str(error), errors=[field]) from None
    await tenancy(request).ring.refresh()
    return json_answer((await _views(request, [tenant]))[0])


@router.post(
    "/v1/tenants/{tenant}/suspend",
    summary="Suspend a tenant",
    response_model=schemas.TenantView,
    responses=responses("invalid-state", *BODY, *STORAGE),
    dependencies=[Depends(administrator)],
    openapi_extra=accepts(schemas.Suspend, binary=False, unpaid=("A reason", {"reason": "unpaid invoice"})),
)
async def suspend_tenant(request: Request, tenant: TenantName) -> Response:
    """Refuse the calls of all keys of a tenant with 403 `tenant-suspended`, which has the reason; safe to repeat.

    Within seconds its streams end, its jobs wait in the queue, and its calls that wait for a worker are refused; those
    that run are completed. Nothing is lost. The caller cannot suspend its own tenant.
    """
    asked = (await read_body(request, settings(request), binary=False)).read_as(schemas.Suspend)
    return await _changed(request, tenant, actions.suspend, reason=asked.reason)


@router.post(
    "/v1/tenants/{tenant}/resume",
    summary="Lift the suspension of a tenant",
    response_model=schemas.TenantView,
    responses=responses("invalid-state", "invalid-request", *STORAGE),
    dependencies=[Depends(administrator)],
)
async def resume_tenant(request: Request, tenant: TenantName) -> Response:
    """Let the keys of a tenant work again, and its jobs go on, within seconds; safe to repeat."""
    return await _changed(request, tenant, actions.resume)


@router.delete(
    "/v1/tenants/{tenant}",
    summary="Delete a tenant",
    status_code=202,
    response_model=schemas.TenantView,
    responses=responses("invalid-state", "invalid-request", *STORAGE),
    dependencies=[Depends(administrator)],
)
async def delete_tenant(request: Request, tenant: FormerName) -> Response:
    """Revoke all keys of a tenant, and erase all that it has; safe to repeat, and not to be undone.

    Reading the tenant shows the state `deleting`, and its use as it goes down, until all is erased: then the state is
    `deleted`, and a new tenant can have the name. The audit log, the usage by day and the records of the revoked keys
    stay. The caller cannot delete its own tenant.
    """
    return await _changed(request, tenant, actions.delete, status=202)


async def _changed(request: Request, tenant: str, action: Action, status: int = 200, **more: str) -> Response:
    """The tenant after `action`, which changes its state. Raises HttpProblem 409, 422, StorageError."""
    if tenant == CALLER.get().tenant:
        detail = f"{tenant} is the tenant of the caller; an administrator of another tenant, or `backpass keys tenants`"
        raise HttpProblem("invalid-state", f"{detail}, can change its state", state=ACTIVE.state)
    try:
        await action(store(request), {"tenant": tenant, **more})
    except WrongState as error:
        raise HttpProblem("invalid-state", str(error), state=error.state) from None
    except ValueError as error:
        field = FieldError("/reason", "invalid", str(error))
        raise HttpProblem("invalid-request", str(error), errors=[field]) from None
    await tenancy(request).ring.refresh()
    headers = {"Location": f"/v1/tenants/{tenant}"} if status == 202 else None
    return json_answer((await _views(request, [tenant]))[0], status, headers)


async def _views(request: Request, names: Iterable[str]) -> list[dict[str, Any]]:
    ring = tenancy(request).ring
    return [
        {
            "tenant": name,
            **actions.state_of(ring.states.get(name)),
            "own": ring.limits.get(name, {}),
            "quotas": await quotas_of(request, name),
        }
        for name in names
    ]
