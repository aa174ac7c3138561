"""The results of a step: the returned variables and their meanings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.backward.backward_program import Backward
from core.backward.query import GradientQuery
from core.ir import Block, Program
from core.ir.errors import pointing_to
from core.ir.names import root_array
from core.passes import optimize

__all__ = ["KEPT", "Result", "Wanted", "fetched_by", "gradient_step", "rows_of", "states_of", "step_block", "wanted_by"]


@dataclass(frozen=True, slots=True)
class Result:
    """The meaning of a result of a block: the field of `Outputs` it belongs to (`place`), and its name there.

    table: shape of the whole table, if this result is rows of one; the result before it has the row numbers then.
    """

    place: str
    name: str
    table: tuple[int, ...] | None = None


KEPT = ("parameters", "optimizer_state", "states")
"""The results of a step that are inputs of the next step."""

Wanted = list[tuple[Result, str]]
"""Each result with the variable that holds it."""


def gradient_step(backward: Backward, query: GradientQuery, fetch: Sequence[str] = ()) -> Block:
    """The optimised block that the step of `query` runs."""
    return step_block(backward.program, wanted_by(backward, query, fetch))


def wanted_by(backward: Backward, query: GradientQuery, fetch: Sequence[str], gives_gradients: bool = True) -> Wanted:
    """The results of the step of `query`. gives_gradients: whether the gradients are among them."""
    program = backward.program
    wanted: Wanted = []
    for name, grad in backward.gradients.items() if gives_gradients else ():
        if name in backward.sparse:
            wanted += rows_of("gradients", name, backward.sparse[name], program.block.types[grad])
        else:
            wanted.append((Result("gradients", name), grad))
    if query.loss is not None:
        wanted.append((Result("loss", query.loss), root_array(program, query.loss)))
    wanted += fetched_by(program, fetch)
    wanted += [(Result("recorded", key), variable) for key, variable in backward.recorded.items()]
    return wanted + states_of(program)


def fetched_by(program: Program, fetch: Sequence[str]) -> Wanted:
    """The variables to fetch. Raises ProgramError (unknown_variable)."""
    wanted: Wanted = []
    for i, name in enumerate(fetch):
        with pointing_to(f"/fetch/{i}"):
            wanted.append((Result("fetched", name), root_array(program, name)))
    return wanted


def rows_of(place: str, name: str, variables: tuple[str, str], table: Any) -> Wanted:
    """Rows of a table as two results: the row numbers, then the values."""
    rows, values = variables
    return [(Result("rows", name), rows), (Result(place, name, table.shape), values)]


def states_of(program: Program) -> Wanted:
    """The states that the program writes."""
    return [(Result("states", v.name), program.latest[v.name]) for v in program.states if v.name in program.latest]


def step_block(program: Program, wanted: Wanted) -> Block:
    """The optimised block that returns the wanted variables."""
    return optimize(replace(program.block, results=tuple(variable for _, variable in wanted)))
