"""The program of a request: registered under an id, or contained in the body; and the initial values of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request

from service.caller import tenant
from service.engine import EngineError
from service.formats import json_tensors as wire
from service.formats.packed import as_text
from service.models import write_values
from service.problems import FieldError, HttpProblem, from_exception, wrong_member
from service.routes.state import objects, programs
from service.schemas.examples import EXAMPLES, FITTED, FITTED_ID, REGRESSION_ID, REGRESSION_PARAMETERS, WHILE_ID
from service.store.program_text import ProgramText
from service.store.program_values import NewValues, StoredValues
from service.store.programs import StoredProgram

__all__ = [
    "PROGRAM_ID",
    "FittedProgramId",
    "ProgramId",
    "UnusedProgramId",
    "named_program",
    "program",
    "reading_values",
    "register_sample",
    "stored_values",
    "values_of",
]

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
        raise wrong_member("/program/values", detail, "unknown_values")
    return found


def values_of(values: StoredValues | None) -> dict[str, Any]:
    """The arguments of a worker's call that tell it the initial values of the program."""
    return {} if values is None else {"values": {"key": values.key, "sha256": values.sha256}}


async def register_sample(app: FastAPI, id: str) -> StoredProgram:
    """Check and store a program of the documentation. Raises EngineError, StorageError, TooManyPrograms."""
    return await _register(app, ProgramText.of(EXAMPLES[id]))


async def _register_fitted(app: FastAPI) -> StoredProgram:
    """Store the sample program with initial values. Raises as `register_sample`."""
    arrays = wire.decode_all(REGRESSION_PARAMETERS, pointer="")
    async with app.state.importer.folder() as folder:
        values = await asyncio.to_thread(write_values, arrays, folder / "values.safetensors")
        return await _register(app, ProgramText.of(FITTED), values)


async def _register(app: FastAPI, text: ProgramText, values: NewValues | None = None) -> StoredProgram:
    reply = await app.state.engine.call("inspect", {"document": text.text, "as_json": True}, deadline=30.0)
    stored, _ = await app.state.programs.put(tenant(), text, reply.tensors["json"].tobytes(), values)
    return stored
