"""Calls of a program at the values in a request: the service keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import Request

from service.engine import Reply
from service.engine.protocol import PartCallback
from service.http.given_values import Values, read_values
from service.http.request_body import Body
from service.routes.common import deadline_of
from service.routes.named_programs import reading_values, values_of
from service.routes.state import calls, settings
from service.schemas.tensors import Tensors
from service.store.program_text import ProgramText
from service.store.programs import StoredProgram

__all__ = ["COTANGENTS", "CallAtValues", "Called", "call_at_values", "registered"]

COTANGENTS = "/target_gradients"


@dataclass(frozen=True, slots=True)
class Called:
    """The program of a call. stored: its initial values, as of `values_of`. id, in_body: as of `reading_values`."""

    program: ProgramText
    stored: dict[str, Any]
    id: str | None
    in_body: bool = False


def registered(stored: StoredProgram) -> Called:
    """A registered program, which the path of the request names."""
    return Called(stored.program, values_of(stored.values), stored.id)


class AtValues(Protocol):
    """A request with values of feeds, parameters and states."""

    feeds: Tensors
    parameters: Tensors
    states: Tensors
    deadline_s: float | None


@dataclass(frozen=True, slots=True)
class CallAtValues:
    """A call whose values are read: a mistake in them is known before it begins."""

    request: Request
    called: Called
    op: str
    args: dict[str, Any]
    values: Values
    deadline: float

    async def reply(self, on_part: PartCallback | None = None) -> Reply:
        """Run the call in a worker. on_part: as in `Engine.call`."""
        program = self.called.program
        async with reading_values(self.request, self.called.id, program, self.called.in_body):
            with self.values.told():
                return await calls(self.request).with_program(
                    self.op,
                    program.id,
                    program.text,
                    self.args,
                    self.values.tensors,
                    deadline=self.deadline,
                    on_part=on_part,
                )


async def call_at_values(
    request: Request,
    called: Called,
    op: str,
    body: Body,
    asked: AtValues,
    args: Callable[[Collection[str]], dict[str, Any]],
    cotangents: Mapping[str, Any] | None = None,
) -> CallAtValues:
    """The call of `op` at the values that `asked`, read from `body`, has.

    args: makes the arguments of `op`, without the values, from the names of the values. cotangents: of the targets, by
    their positions. Raises HttpProblem 400 and 422.
    """
    members = {"/feeds": asked.feeds, "/parameters": asked.parameters, "/states": asked.states}
    values = await read_values(
        body, settings(request), members | {COTANGENTS: cotangents or {}}, {COTANGENTS: "target_gradients/"}
    )
    complete = {**args(values.names), **values.args, **called.stored}
    return CallAtValues(request, called, op, complete, values, deadline_of(asked.deadline_s, settings(request)))
