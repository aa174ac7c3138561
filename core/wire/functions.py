"""Functions of a program: the construct `call`, and gradients that the client supplies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from core.ir import OF_FUNCTION, Block, TensorType, Type, with_inner
from core.ir.bounds import Bounds
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import Location, ProgramError
from core.ir.registry import Slot, construct
from core.ir.suggest import near
from core.ops import control
from core.ops.common.types import holds
from core.passes.bind import bind
from core.wire.reader import Reader
from core.wire.records import RawFunction
from core.wire.scope import Scopes
from core.wire.site import AlreadyReported, Site

__all__: list[str] = []

FAMILY = control.FAMILY


@construct(inputs=(Slot("x", optional=True, variadic=True),))
def call(r: Reader, at: Site, *, function: Annotated[str, Bounds(max_length=256)]) -> None:
    """Run the function named `function`, one of the program's ``functions``, on `x`.

    A function is a program whose feeds are its parameters, with a list of ``results``, variables of its block 0. It may
    call other functions of the program, but not itself. It may name another function as its ``gradient``, its
    vector-Jacobian product. That function takes the operands, the results and one cotangent per result; its results are
    the cotangents of the operands, or null for no gradient.
    """
    operands = r.operands(at, "x")
    raw = _function(r, at, function)
    block, _ = _block(r, at, (function,), raw, [v.type for v in operands], raw.results)
    gradient: Block | None = None
    inputs: tuple[int, ...] = ()
    if raw.gradient is not None:
        rule = _function(r, at, raw.gradient)
        types = [*(v.type for v in operands), *block.result_types, *block.result_types]
        gradient, inputs = _block(r, at, (function, raw.gradient), rule, types, rule.results)
    op = at.b.typed(at.b.make("call", *operands, block=block, gradient=gradient, inputs=inputs))
    names = at.raw.outputs.get("out", ())
    if len(names) != len(op.outputs):
        raise at.refuse(
            f"{function} has {len(op.outputs)} results, but out lists {len(names)} names", "bad_slot", "outputs"
        )
    r.define(at, op, names)


def _function(r: Reader, at: Site, name: str) -> RawFunction:
    if name not in r.raw.functions:
        hint = near(name, r.raw.functions) or f"its functions: {', '.join(sorted(r.raw.functions)) or 'none'}"
        raise at.refuse(f"the program has no function {name!r}", "unknown_function", "attrs/function", hint)
    return r.raw.functions[name]


def _block(
    r: Reader, at: Site, names: tuple[str, ...], raw: RawFunction, types: list, results: tuple[str | None, ...]
) -> tuple[Block, tuple[int, ...]]:
    """The block of a function for operands of `types`, and the positions of the results that are not null.

    names: its name, after that of the function whose gradient it is, if it is one.
    Raises ProgramError, or AlreadyReported if the function itself is wrong.
    """
    calls = (*r.calls, *names)
    again = next((each for each in names if each in r.calls), None)
    if again is not None:
        path = " -> ".join(calls[calls.index(again) : len(calls) - calls[::-1].index(again)])
        message = f"a function cannot need itself, in a call or for its gradient: {path}"
        raise at.refuse(message, "bad_function", "attrs/function")
    key = names, tuple(types), results
    body = r.bodies.get(key)
    if body is None:
        _check_depth(r, at, len(calls))
        body = r.bodies[key] = _read_body(r, at, calls, raw, types, results)
    else:
        _check_depth(r, at, len(r.calls) + body.depth)
        r.ops_left -= body.ops
        r.deepest = max(r.deepest, len(r.calls) + body.depth)
    numbers = tuple(i for i, n in enumerate(results) if n is not None)
    return _with_checked_shapes(body.block, types, at.raw.location), numbers


@dataclass(frozen=True, slots=True)
class _Body:
    """A function for operands of certain types, with the functions that it calls.

    depth: of calls in each other, its own included. ops: the number that was read.
    """

    block: Block
    depth: int
    ops: int


def _check_depth(r: Reader, at: Site, depth: int) -> None:
    if depth > r.limits.max_depth:
        message = f"calls of functions are nested deeper than the limit of {r.limits.max_depth}"
        raise at.refuse(message, "limit_exceeded", "attrs/function")


def _read_body(
    r: Reader, at: Site, calls: tuple[str, ...], raw: RawFunction, types: list, results: tuple[str | None, ...]
) -> _Body:
    """Read the function `calls[-1]`. Raises as `_block` does."""
    name, before, left = calls[-1], len(r.problems.found), r.ops_left
    whole = replace(raw.program, functions=r.raw.functions)
    scopes = Scopes(whole, r.problems, r.limits)
    inner = Reader(whole, scopes, r.problems, r.limits, r.for_test, calls)
    inner.ops_left, inner.bodies = r.ops_left, r.bodies
    program = inner.program()
    r.ops_left, r.deepest = inner.ops_left, max(r.deepest, inner.deepest)
    if len(r.problems.found) > before:
        raise AlreadyReported
    for variable in program.variables:
        if variable.role != "feed":
            what = "random ops" if variable.role == "key" else f"the {variable.role} {variable.name!r}"
            raise at.refuse(f"a function may declare only feeds, not {what}", "bad_function", "attrs/function")
    if len(program.feeds) != len(types):
        raise at.refuse(f"{name!r} takes {len(program.feeds)} operands, not {len(types)}", "bad_slot", "inputs/x")
    sizes = {}
    for feed, type in zip(program.feeds, types, strict=True):
        if not isinstance(type, TensorType) or type.dtype != feed.type.dtype:
            raise at.refuse(f"operand {feed.name!r} of {name!r} must be {feed.type}, not {type}", "type_mismatch")
        if type.is_static:
            sizes[feed.name] = type.shape
    block = _anonymous(bind(program.block, sizes))
    given = [n for n in results if n is not None]
    variables = [program.latest.get(n, n) for n in given]
    for each, found in zip(given, variables, strict=True):
        if found not in block.types:
            hint = near(each, block.types)
            message = f"{name!r} has no variable {each!r}"
            raise ProgramError(message, "unknown_variable", pointer=raw.pointer, suggestion=hint)
    return _Body(replace(block, results=tuple(variables)), inner.deepest - len(r.calls), left - r.ops_left)


def _with_checked_shapes(block: Block, types: Sequence[Type], location: Location) -> Block:
    """`block` for operands of `types`. The run checks the sizes that the block declares and `types` leave open.

    location: of the call; a value of another shape is an error there.
    """
    b = BlockBuilder()
    b.location = location
    checks: list[tuple[Value, TensorType, str]] = []
    for name, type, declared in zip(block.params, types, block.param_types, strict=True):
        assert isinstance(declared, TensorType)
        if holds(declared, type):
            b.param(declared, name)
        else:
            checks.append((b.param(type, f"{name}@GIVEN"), declared, name))
    if not checks:
        return block
    for given, declared, name in checks:
        b.append(replace(b.make("check_shape", given, shape=declared.shape), outputs=(name,)))
    types_of = {**block.types, **b.types}
    return replace(block, params=tuple(b.params), ops=(*b.ops, *block.ops), types=types_of)


def _anonymous(block: Block) -> Block:
    """`block` and its inner blocks without client indices: names outside a function never refer to its variables."""
    return replace(block, ops=tuple(with_inner(op, _anonymous) for op in block.ops), index=OF_FUNCTION)
