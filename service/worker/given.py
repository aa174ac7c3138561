"""Checks of the values of a request against the program, before anything is compiled or computed.

All mistakes are found at once. Each has the JSON pointer of the value in the request, never one into the program.
A request may also contain values that the service could not decode: the arguments list their names under `flawed`. Such
a request is always refused, with the place of each flawed value, so that the service can report its mistakes together
with those found here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from core.compiler.compile import GradientQuery, bind_shapes
from core.ir import Program, TensorType, Variable, inner_blocks
from core.ir.errors import InvalidProgram, Problem, ProgramError, escaped
from core.ir.program import Block, Op
from core.ir.suggest import near
from core.ops.common.types import as_dtype

__all__ = [
    "BY_ROLE",
    "FLAWED",
    "Mistakes",
    "check_feeds",
    "check_inputs",
    "check_row_numbers",
    "check_shapes",
    "check_sizes",
    "check_values",
    "leaves_of",
    "missing_inputs",
    "outputs_of",
    "with_sizes",
]

T = TypeVar("T")

COTANGENT = "target_gradients/"

BY_ROLE = {"feed": "/feeds", "parameter": "/parameters", "state": "/states"}
"""Role of a variable -> member of a request that holds its value."""

NO_MORE: Mapping[str, TensorType | None] = {}

FLAWED = "flawed"
"""The code of a value that the service could not decode. The service knows the mistake."""

NOT_OF_SIZES = ("budget_too_small",)
"""Codes of refusals that depend on sizes and name the cause themselves."""


@dataclass(slots=True)
class Mistakes:
    """The mistakes found so far."""

    found: list[Problem] = field(default_factory=list)

    def add(
        self, code: str, message: str, pointer: str, suggestion: str | None = None, value: str | None = None
    ) -> None:
        """Add a mistake. value: the name that the request gives the value, if it gives one."""
        self.found.append(Problem(code, message, pointer, suggestion=suggestion, value=value))

    def flawed(self, value: str, pointer: str) -> None:
        """Add the mistake of a value that the service could not decode."""
        self.add(FLAWED, "the value cannot be read", pointer, value=value)

    def type(self, name: str, wanted: TensorType, value: Any, pointer: str, leading: Sequence[int] = ()) -> None:
        """Add the mistakes of `value` as the value of `name`, which is declared as `wanted`.

        leading: sizes of the axes of batches that the value may have before the declared ones.
        """
        if value.dtype != as_dtype(wanted.dtype):
            message = f"{name!r} is declared as {wanted}, but its value is {value.dtype}"
            self.add("feed_dtype", message, f"{pointer}/dtype", value=name)
        self.shape(name, wanted, value.shape, pointer, leading)

    def shape(
        self, name: str, wanted: TensorType, shape: Sequence[int], pointer: str, leading: Sequence[int] = ()
    ) -> None:
        """Add the mistake that a value of `name`, which is declared as `wanted`, does not have `shape`."""
        batched = leading[: max(0, len(shape) - wanted.rank)]
        sizes = (*batched, *wanted.shape)
        if len(shape) != len(sizes) or any(m not in (-1, n) for m, n in zip(sizes, shape, strict=True)):
            axes = f", after axes of {list(leading)} batches" if leading else ""
            message = f"{name!r} is declared as {wanted}{axes}, but its value has the shape {list(shape)}"
            self.add("feed_shape", message, f"{pointer}/shape", value=name)

    def missing(self, variable: Variable, pointer: str) -> None:
        self.add("feed_missing", f"no value is given for {variable.name!r} ({variable.type})", pointer)

    def raise_if_any(self) -> None:
        """Raises InvalidProgram with all mistakes."""
        if self.found:
            raise InvalidProgram(self.found)


def check_values(
    program: Program,
    given: Mapping[str, Any],
    args: Mapping[str, Any],
    needed: Callable[[], Collection[str]] = frozenset,
    roles: Mapping[str, str] = BY_ROLE,
    extra: Mapping[str, TensorType | None] = NO_MORE,
    leading: Sequence[int] = (),
) -> None:
    """Check the values `given` by the names of variables with these `roles`.

    args:   those of the call; `flawed` lists values that could not be decoded.
    needed: the variables that the call needs. Missing ones are reported with other mistakes only: without any, the
            compiled program knows exactly which values it reads.
    roles:  role -> member of the request.
    extra:  further names that may be given, with their types where these are known.
    leading: as of `Mistakes.type`, for feeds and `extra` values.
    Raises InvalidProgram with all mistakes (feed_unknown, feed_missing, feed_dtype, feed_shape).
    """
    flawed = args.get(FLAWED, ())
    variables = {v.name: v for v in program.variables if v.role in roles}
    mistakes = Mistakes()
    for name in given:
        variable = variables.get(name)
        if variable is not None:
            pointer = f"{roles[variable.role]}/{escaped(name)}"
            mistakes.type(name, variable.type, given[name], pointer, leading if variable.role == "feed" else ())
        elif name not in extra:
            mistakes.add(*_unknown(program, name, roles, variables))
        elif (type := extra[name]) is not None:
            mistakes.type(name, type, given[name], f"/{name}", leading)
    for name in flawed:
        variable = variables.get(name)
        if variable is not None or name in extra:
            mistakes.flawed(name, f"/{name}" if variable is None else f"{roles[variable.role]}/{escaped(name)}")
        else:
            mistakes.add(*_unknown(program, name, roles, variables))
    if mistakes.found:
        awaited = needed()
        for variable in variables.values():
            if variable.name in awaited and variable.name not in given and variable.name not in flawed:
                mistakes.missing(variable, f"{roles[variable.role]}/{escaped(variable.name)}")
    mistakes.raise_if_any()


def check_feeds(
    program: Program,
    given: Mapping[str, Any],
    args: Mapping[str, Any],
    outputs: Sequence[str],
    cotangents: Mapping[str, TensorType | None] = NO_MORE,
    leading: Sequence[int] = (),
) -> None:
    """As `check_values`, for calls that take feeds and cotangents, and compute `outputs`."""
    feeds = {"feed": BY_ROLE["feed"]}
    check_values(program, given, args, lambda: leaves_of(program, outputs), feeds, cotangents, leading)


def outputs_of(query: GradientQuery, fetch: Sequence[str]) -> list[str]:
    """The variables that a call with this question computes."""
    return [*([] if query.loss is None else [query.loss]), *query.targets, *fetch]


def check_shapes(program: Program, shapes: Mapping[str, Sequence[int]]) -> None:
    """Check shapes that are given for feeds without values. Raises InvalidProgram with all mistakes."""
    feeds = {v.name: v for v in program.feeds}
    mistakes = Mistakes()
    for name, shape in shapes.items():
        pointer = f"{BY_ROLE['feed']}/{escaped(name)}"
        if name not in feeds:
            mistakes.add(*_unknown(program, name, {"feed": BY_ROLE["feed"]}, feeds))
        else:
            mistakes.shape(name, feeds[name].type, shape, pointer)
    mistakes.raise_if_any()


def check_inputs(inputs: Sequence[Variable], values: Mapping[str, Any]) -> None:
    """Check the values of an executable. Raises InvalidProgram for missing ones, and for cotangents of a wrong type,
    whose sizes only the executable knows."""
    missing_inputs(inputs, values)
    cotangents = [v for v in inputs if v.name.startswith(COTANGENT)]
    if cotangents:
        mistakes = Mistakes()
        for v in cotangents:
            mistakes.type(v.name, v.type, values[v.name], f"/{v.name}")
        mistakes.raise_if_any()


def missing_inputs(inputs: Sequence[Variable], values: Mapping[str, Any]) -> None:
    """Raises InvalidProgram (feed_missing) with all `inputs` that have no value."""
    if not [v for v in inputs if v.name not in values and v.role != "key"]:
        return
    mistakes = Mistakes()
    for variable in inputs:
        if variable.role != "key" and variable.name not in values:
            mistakes.missing(variable, f"{BY_ROLE[variable.role]}/{escaped(variable.name)}")
    mistakes.raise_if_any()


def _unknown(
    program: Program, name: str, roles: Mapping[str, str], variables: Mapping[str, Variable]
) -> tuple[str, str, str, str | None, str]:
    """The members of a mistake: `variables` does not contain `name`."""
    nouns = [*roles]
    noun = " or ".join([", ".join(nouns[:-1]), nouns[-1]]) if len(nouns) > 1 else nouns[0]
    message = f"the program has no {noun} {name!r}"
    others = {v.name: v.role for v in program.variables if v.role != "key"}
    if name in others:
        message += f"; {name!r} is a {others[name]}"
    elif name in program.block.types or name in program.latest:
        message += f"; {name!r} is computed by the program"
    members = set(roles.values())
    member = members.pop() if len(members) == 1 else ""  # a tensor of a file belongs to no member
    return "feed_unknown", message, f"{member}/{escaped(name)}", near(name, variables), name


# --- sizes -------------------------------------------------------------------------------------------------------


def with_sizes(
    program: Program, shapes: Mapping[str, Sequence[int]], make: Callable[[dict[str, Sequence[int]]], T]
) -> T:
    """The result of `make` for the `shapes` of feeds. A refusal that these sizes cause names the feeds.

    Raises InvalidProgram (feed_shape) if `make` accepts the program with open sizes, but not with these.
    """
    try:
        return make(dict(shapes))
    except ProgramError as error:
        if not shapes or error.code in NOT_OF_SIZES:
            raise
        check_sizes(program, shapes)
        try:
            make({})
        except ProgramError:
            raise error from None
        raise _disagreement(program, shapes, error) from error


def check_sizes(program: Program, shapes: Mapping[str, Sequence[int]]) -> None:
    """Check that the types of all ops fit together for these shapes of feeds. Raises InvalidProgram (feed_shape)."""
    try:
        bind_shapes(program, shapes)
    except ProgramError as error:
        raise _disagreement(program, shapes, error) from error


def _disagreement(program: Program, shapes: Mapping[str, Sequence[int]], error: ProgramError) -> InvalidProgram:
    """The refusal of the sizes that reach the op of `error`."""
    failed = next((op for op in program.block.ops if _contains(op, error)), None)
    sources = set(shapes) if failed is None else _sources(program.block, failed.inputs)
    # a feed that is not declared with open sizes always fits
    involved = [n for n in shapes if n in sources] or list(shapes)
    listed = [f"{name!r} {list(shapes[name])}" for name in involved]
    if len(listed) > 1:
        message = f"the sizes of {', '.join(listed[:-1])} and {listed[-1]} do not fit together: {error.message}"
    else:
        message = f"{listed[0]} does not fit the program: {error.message}"
    return InvalidProgram(
        [
            Problem("feed_shape", message, f"{BY_ROLE['feed']}/{escaped(name)}/shape", error.location, value=name)
            for name in involved
        ]
    )


def _contains(op: Op, error: ProgramError) -> bool:
    """Whether `op`, or an op inside it, is the one that `error` names."""
    if error.location is None:
        return False
    if op.location is not None and op.location.place == error.location.place:
        return True
    return any(_contains(each, error) for _, inner in inner_blocks(op) for each in inner.ops)


def leaves_of(program: Program, outputs: Iterable[str]) -> set[str]:
    """The variables that the `outputs` depend on, leaves included."""
    return _sources(program.block, [program.latest.get(name, name) for name in outputs])


def _sources(block: Block, names: Iterable[str | None]) -> set[str]:
    """The variables that `names` depend on, in a block of single assignments, themselves included."""
    found = {name for name in names if name is not None}
    for op in reversed(block.ops):
        if not found.isdisjoint(op.outputs):
            found.update(name for name in op.inputs if name is not None)
    return found


def check_row_numbers(mistakes: Mistakes, rows: np.ndarray, size: int, pointer: str) -> None:
    """Add a mistake if one of `rows` is not a row of a table with `size` rows. Negative numbers count from its end."""
    outside = rows[(rows < -size) | (rows >= size)]
    if outside.size:
        message = f"row {int(outside[0])} is outside 0 to {size - 1}"
        mistakes.add("index_out_of_range", message, pointer)
