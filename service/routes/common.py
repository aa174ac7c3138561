"""Helpers of several routes: the state of the application, ids, answers, pages, leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.openapi.models import Example

from service.caller import CALLER, tenant
from service.checkpoints import Checkpoints
from service.datasets import Datasets
from service.engine import Engine, EngineError
from service.formats import json_tensors as wire
from service.formats.packed import as_text
from service.http.request_body import JSON
from service.http.worker_calls import Calls
from service.models import Importer, write_values
from service.objects import Objects
from service.observability.metrics import Metrics
from service.problems import FieldError, HttpProblem, from_exception
from service.schemas.examples import EXAMPLES, FITTED, FITTED_ID, REGRESSION_ID, REGRESSION_PARAMETERS, WHILE_ID
from service.sessions.live import LiveMetrics
from service.settings import Settings
from service.store.program_text import ProgramText
from service.store.program_values import StoredValues
from service.store.programs import ProgramStore, StoredProgram
from service.store.store import Store
from service.tenants.quotas import Quotas
from service.tenants.tenancy import Tenancy

if TYPE_CHECKING:
    from service.sessions.registry import SessionRegistry

__all__ = [
    "LOSS",
    "FittedProgramId",
    "Profiled",
    "ProgramId",
    "UnusedProgramId",
    "administrator",
    "calls",
    "checkpoints",
    "cut_page",
    "datasets",
    "deadline_of",
    "engine",
    "importer",
    "json_answer",
    "lease_of",
    "live",
    "metrics",
    "named_program",
    "objects",
    "program",
    "programs",
    "quotas",
    "reading_values",
    "register_sample",
    "sessions",
    "settings",
    "store",
    "stored_values",
    "tapes",
    "tenancy",
    "values_of",
]


class HasId(Protocol):
    @property
    def id(self) -> str: ...


Entry = TypeVar("Entry", bound=HasId)

PROGRAM_ID = r"^prg_[a-z2-7]{26}$"
ProgramId = Annotated[
    str,
    Path(
        pattern=PROGRAM_ID,
        description="Id of a registered program.",
        openapi_examples={
            "regression": {"summary": "Linear regression", "value": REGRESSION_ID},
            "while": {"summary": "A loop whose trip count is a feed", "value": WHILE_ID},
        },
    ),
]
"""The id in a path. Forms of the documentation start with an example program."""
FittedProgramId = Annotated[
    str,
    Path(
        pattern=PROGRAM_ID,
        description="Id of a registered program with initial values.",
        openapi_examples={"fitted": {"summary": "Linear regression with initial values", "value": FITTED_ID}},
    ),
]
"""The same with an example program that has initial values."""
UnusedProgramId = Annotated[
    str,
    Path(
        pattern=PROGRAM_ID,
        description="Id of a registered program.",
        openapi_examples={"while": {"summary": "A loop whose trip count is a feed", "value": WHILE_ID}},
    ),
]
"""The same with an example program that the sample session does not use."""

Profiled = Annotated[
    bool, Query(description="Return the time of each kernel. Measuring makes the call slightly slower.")
]

LOSS: dict[str, Example] = {"loss": {"value": "loss"}}
"""The loss that forms of the documentation start with."""


def settings(request: Request) -> Settings:
    return request.app.state.settings


def engine(request: Request) -> Engine:
    return request.app.state.engine


def store(request: Request) -> Store:
    return request.app.state.store


def datasets(request: Request) -> Datasets:
    return request.app.state.datasets


def importer(request: Request) -> Importer:
    return request.app.state.importer


def objects(request: Request) -> Objects:
    return request.app.state.objects


def checkpoints(request: Request) -> Checkpoints:
    return request.app.state.checkpoints


def tenancy(request: Request) -> Tenancy:
    return request.app.state.tenancy


def quotas(request: Request) -> Quotas:
    return request.app.state.tenancy.quotas


async def administrator(request: Request) -> None:
    """A dependency of routes for administrators. The check of keys asks the same, before the request is read.

    Raises HttpProblem 403.
    """
    if "admin" not in CALLER.get().scopes:
        raise HttpProblem("forbidden", "the request needs the scope admin")


def calls(request: Request) -> Calls:
    return request.app.state.calls


def metrics(request: Request) -> Metrics:
    return request.app.state.metrics


def programs(request: Request) -> ProgramStore:
    return request.app.state.programs


def sessions(request: Request) -> SessionRegistry:
    return request.app.state.sessions


def live(request: Request) -> LiveMetrics:
    return request.app.state.live


def tapes(request: Request) -> SessionRegistry:
    return request.app.state.tapes


def json_answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(wire.dumps(content), status, headers, JSON)


def cut_page(found: Sequence[Entry], size: int) -> tuple[Sequence[Entry], str | None]:
    """The entries of a page, and the token of the next page, which is the id of the last entry; None on the last page.

    found: entries in the order of ids, of which there are more than `size` if another page follows.
    """
    page = found[:size]
    return page, page[-1].id if len(found) > size else None


def lease_of(asked: float | None, default: float, most: float) -> float:
    """The lease in seconds: the requested one, or the default. Raises HttpProblem 422 above the maximum."""
    if asked is not None and asked > most:
        detail = f"lease_s exceeds the maximum of {most:.15g} s"
        raise HttpProblem("limit-exceeded", detail, errors=[FieldError("/lease_s", "too_long", detail)])
    return default if asked is None else asked


def deadline_of(asked: float | None, settings: Settings) -> float:
    """The deadline in seconds: the requested one, or the default. Raises HttpProblem 422 above the maximum."""
    if asked is None:
        return settings.step_deadline
    if asked > settings.max_step_deadline:
        detail = f"deadline_s exceeds the maximum of {settings.max_step_deadline:.15g} s"
        raise HttpProblem("limit-exceeded", detail, errors=[FieldError("/deadline_s", "too_long", detail)])
    return asked


async def register_sample(app: FastAPI, id: str) -> StoredProgram:
    """Check and store a program of the documentation. Raises EngineError, StorageError, TooManyPrograms."""
    text = ProgramText.of(EXAMPLES[id])
    reply = await app.state.engine.call("inspect", {"document": text.text, "as_json": True}, deadline=30.0)
    stored, _ = await app.state.programs.put(tenant(), text, reply.tensors["json"].tobytes())
    return stored


async def _register_fitted(app: FastAPI) -> StoredProgram:
    """Store the sample program with initial values. Raises as `register_sample`."""
    text, arrays = ProgramText.of(FITTED), wire.decode_all(REGRESSION_PARAMETERS, pointer="")
    async with app.state.importer.folder() as folder:
        new = await asyncio.to_thread(write_values, arrays, folder / "values.safetensors")
        reply = await app.state.engine.call("inspect", {"document": text.text, "as_json": True}, deadline=30.0)
        stored, _ = await app.state.programs.put(tenant(), text, reply.tensors["json"].tobytes(), new)
    return stored


async def named_program(
    request: Request, document: dict[str, Any] | None, id: str | None
) -> tuple[ProgramText, dict[str, Any]]:
    """The program of a request that contains or names it, and the arguments of `values_of`.

    Raises HttpProblem 404, or 422 for a program with initial values that are not stored.
    """
    if document is None:
        stored = await _named(request, id or "")
        return stored.program, values_of(stored.values)
    text = as_text(document)
    if text.values is None:
        return text, {}
    return text, values_of(await stored_values(request, text.values))


async def _named(request: Request, id: str) -> StoredProgram:
    try:
        return await program(request, id)
    except HttpProblem as problem:
        if problem.code == "not-found":
            problem.errors = (FieldError("/program_id", "unknown_program", problem.detail),)
        raise


@asynccontextmanager
async def reading_values(
    request: Request, id: str | None, given: ProgramText | None = None, in_body: bool = False
) -> AsyncIterator[None]:
    """The block reads the initial values of a program.

    id: of the registered program; None for one in the request, which is `given`. in_body: whether the body has the id.
    Raises HttpProblem 404 if the program is deleted meanwhile, 422 if the values that `given` names are. If the file
    was missing and is there now, because they were deleted and stored again, the problem is retryable.
    """
    try:
        yield
    except (HttpProblem, EngineError) as error:
        problem, values = from_exception(error), None
        if problem.code == "values-damaged":
            if id is not None:
                values = (await (_named(request, id) if in_body else program(request, id))).values
            elif given is not None and given.values is not None:
                values = await stored_values(request, given.values)
        missing = problem.extensions.get("reason") == "values-missing"
        if missing and values is not None and await asyncio.to_thread(objects(request).exists, values.key):
            again = "the values of the program were deleted and stored again during the call; send it again"
            raise HttpProblem(problem.code, again, retryable=True, **problem.extensions) from error
        raise


async def stored_values(request: Request, sha256: str) -> StoredValues:
    """The initial values with this digest. Raises HttpProblem 422."""
    found = await programs(request).values_with(tenant(), sha256)
    if found is None:
        detail = "the program names initial values that are not stored here: send them, or leave the member out"
        raise HttpProblem("invalid-request", detail, errors=[FieldError("/program/values", "unknown_values", detail)])
    return found


def values_of(values: StoredValues | None) -> dict[str, Any]:
    """The arguments of a worker's call that tell it the initial values of the program."""
    return {} if values is None else {"values": {"key": values.key, "sha256": values.sha256}}


async def program(request: Request, id: str) -> StoredProgram:
    """The registered program. A missing sample of the documentation is registered again. Raises HttpProblem 404."""
    found = await programs(request).get(tenant(), id)
    if found is None and id in EXAMPLES:
        found = await register_sample(request.app, id)
    if found is None and id == FITTED_ID:
        found = await _register_fitted(request.app)
    if found is None:
        raise HttpProblem("not-found", "no program has this id")
    return found
