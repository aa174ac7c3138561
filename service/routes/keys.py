"""API keys, for administrators: make, list, rotate and revoke them."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from service.http.request_body import JSON, read_body
from service.problems import HttpProblem, responses
from service.routes.common import administrator, json_answer
from service.routes.documented import accepts, empty_answer
from service.routes.state import settings, store, tenancy
from service.schemas import tenants as schemas
from service.tenants import actions, table
from service.tenants.key import Key
from service.tenants.states import WrongState

__all__ = ["router"]

router = APIRouter(prefix="/v1/keys", tags=["tenants"], dependencies=[Depends(administrator)])

ID = r"key_[a-z2-7]{26}"
SAMPLE_KEY = "key_mfrggzdfmztwq2lknnwg23tpob"
KeyId = Annotated[
    str,
    Path(
        pattern=f"^{ID}$",
        description="Id of an API key.",
        openapi_examples={"sample": {"summary": "The key of the documentation, which is revoked", "value": SAMPLE_KEY}},
    ),
]
ValidateOnly = Annotated[
    bool,
    Query(
        description="Check the request without making a key.",
        openapi_examples={"check": {"summary": "Only check the request", "value": True}},
    ),
]
SAMPLE = Key(
    id=SAMPLE_KEY,
    tenant="acme",
    name="ci",
    digest=bytes(32),
    prefix="bp_mzxw6y",
    scopes=frozenset({"read", "write"}),
    created=1767225600.0,
    revoked=1767312000.0,
)
"""The key of the documentation. It is not in the store and opens nothing: no text has a digest of zeros."""

VIEW = actions.shown(SAMPLE)
VALID = {**VIEW, "state": "valid", "revoked": None}
TEXT = {"key": "bp_" + "x" * 52}
BODY = ("invalid-json", "body-too-large", "body-timeout", "unsupported-media-type", "invalid-request")
STORAGE = ("storage-full", "storage-unavailable")


@router.post(
    "",
    summary="Make a key",
    status_code=201,
    response_model=schemas.NewKey,
    responses={
        201: {"description": "The key, with its text.", "content": {JSON: {"example": {**VALID, **TEXT}}}},
        200: {"description": "The request is valid (`validate_only`).", "model": schemas.CreateKey},
        **responses("invalid-state", *BODY, *STORAGE),
    },
    openapi_extra=accepts(
        schemas.CreateKey,
        binary=False,
        ci=(
            "A key that ends after 90 days",
            {"tenant": "acme", "name": "ci", "scopes": ["read", "write"], "ttl_s": 7776000.0},
        ),
    ),
)
async def create_key(request: Request, validate_only: ValidateOnly = False) -> Response:
    """Make a key for a tenant. The answer contains its text, which is stored nowhere and cannot be read again.

    The first key is made by `backpass keys create`: from then on, every request needs a key. Without keys this call
    answers 409. It refuses an `Idempotency-Key` with 422, because a stored answer would contain the text.
    """
    asked = (await read_body(request, settings(request), binary=False)).read_as(schemas.CreateKey)
    if validate_only:
        return json_answer(asked.model_dump())
    if not tenancy(request).ring.is_needed:
        detail = (
            "the service has no keys: everyone who reaches it may do everything. Make the first key with "
            "`backpass keys create` on its machine; from then on every request needs one"
        )
        raise HttpProblem("invalid-state", detail)
    lifetime = asked.expires_in_s if asked.ttl_s is None else asked.ttl_s
    arguments = {"tenant": asked.tenant, "name": asked.name, "scopes": asked.scopes, "expires_in": lifetime}
    try:
        made = await actions.create(store(request), arguments)
    except WrongState as error:
        raise HttpProblem("invalid-state", str(error), state=error.state) from None
    await tenancy(request).ring.refresh()
    return json_answer(made, 201, {"Location": f"/v1/keys/{made['id']}"})


@router.get(
    "",
    summary="List keys",
    response_model=schemas.KeyPage,
    responses=responses("invalid-request", "storage-unavailable"),
)
async def list_keys(
    request: Request,
    tenant: Annotated[
        str | None, Query(max_length=64, pattern=r"^[a-z0-9][a-z0-9._-]*$", description="Keys of this tenant only.")
    ] = None,
    page_size: Annotated[int, Query(ge=1, le=200, description="Largest number of keys in the answer.")] = 50,
    page_token: Annotated[
        str, Query(max_length=40, pattern=rf"^({ID})?$", description="`next_page_token` of the previous page.")
    ] = "",
) -> Response:
    """One page of the keys of all tenants, ordered by id, with those that have ended."""
    stored = await store(request).read(lambda db: table.keys_page(db, tenant, page_token, page_size + 1))
    of_file = [key for key in tenancy(request).ring.of_file if key.id > page_token and tenant in (None, key.tenant)]
    found = sorted((*stored, *of_file), key=lambda key: key.id)
    page = found[:page_size]
    token = page[-1].id if len(found) > page_size else None
    return json_answer({"keys": [actions.shown(_used(request, key)) for key in page], "next_page_token": token})


@router.get(
    "/{key_id}",
    summary="Read a key",
    response_model=schemas.KeyView,
    responses={
        200: {"description": "The key, without its text.", "content": {JSON: {"example": VIEW}}},
        **responses("not-found", "invalid-request", "storage-unavailable"),
    },
)
async def get_key(request: Request, key_id: KeyId) -> Response:
    """The key's tenant, scopes, state and times; never its text."""
    return json_answer(actions.shown(await _found(request, key_id)))


@router.delete(
    "/{key_id}",
    summary="Revoke a key",
    status_code=204,
    responses=empty_answer("The key is revoked.", "not-found", "invalid-state", "invalid-request", *STORAGE),
)
async def delete_key(request: Request, key_id: KeyId) -> Response:
    """Revoke the key: this process refuses it at once, others within seconds. Its record stays. Safe to repeat."""
    key = await _found(request, key_id)
    _refuse_file(key)
    if key is not SAMPLE:
        await store(request).write(lambda db: table.revoke_key(db, key_id, time.time()))
        await tenancy(request).ring.refresh()
    return Response(status_code=204)


@router.post(
    "/{key_id}/rotate",
    summary="Replace a key",
    status_code=201,
    response_model=schemas.RotatedKey,
    responses={
        201: {
            "description": "The new key, with its text, and the old one.",
            "content": {
                JSON: {
                    "example": {
                        **VALID,
                        **TEXT,
                        "replaced": {**VALID, "expires_at": 1767312000.0, "expires": 1767312000.0},
                    }
                }
            },
        },
        200: {"description": "The request is valid (`validate_only`).", "model": schemas.RotateKey},
        **responses("not-found", "invalid-state", *BODY, *STORAGE),
    },
    openapi_extra=accepts(
        schemas.RotateKey, binary=False, hour=("Both keys are valid for an hour", {"overlap_s": 3600.0})
    ),
)
async def rotate_key(request: Request, key_id: KeyId, validate_only: ValidateOnly = False) -> Response:
    """Make a key with the tenant, name and scopes of another one, which ends after an overlap.

    As with a new key, only this answer contains the text.
    """
    key = await _found(request, key_id)
    asked = (await read_body(request, settings(request), binary=False)).read_as(schemas.RotateKey)
    if validate_only:
        return json_answer(asked.model_dump())
    _refuse_file(key)
    try:
        if key is SAMPLE:
            raise ValueError("the key is revoked or has expired; create a new one")
        made = await actions.rotate(store(request), {"id": key_id, "overlap": asked.overlap_s})
    except ValueError as error:
        raise HttpProblem("invalid-state", str(error)) from None
    await tenancy(request).ring.refresh()
    return json_answer(made, 201, {"Location": f"/v1/keys/{made['id']}"})


async def _found(request: Request, id: str) -> Key:
    """The key, of the store, the keys file or the documentation. Raises HttpProblem 404, StorageError."""
    if id == SAMPLE_KEY:
        return SAMPLE
    for key in tenancy(request).ring.of_file:
        if key.id == id:
            return key
    try:
        return _used(request, await store(request).read(lambda db: table.find_key(db, id)))
    except table.NoSuchKey:
        raise HttpProblem("not-found", "no key has this id") from None


def _used(request: Request, key: Key) -> Key:
    """`key` with the time of its last use, which the store knows only to a minute."""
    key.used = tenancy(request).ring.last_use(key) or key.used
    return key


def _refuse_file(key: Key) -> None:
    if key.source == "file":
        raise HttpProblem("invalid-state", "the key is in the keys file: change its line there")
