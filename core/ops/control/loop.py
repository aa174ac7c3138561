"""Loops: `loop` runs a block once for each trip, and its gradient is a `loop` over the stacks that it recorded.

The values inside the block that the backward pass reads become recorded stacks, ordinary outputs of the forward op. So
the same rule differentiates the result again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.autodiff.activity import FLOWS
from core.autodiff.adjoint import Adjoint
from core.ir import Block, Op, StackType, TensorType, with_inner
from core.ir.builder import Cotangent, SparseRows, Value, narrowed, widened
from core.ir.errors import ExecutionError, ProgramError, TypeMismatch
from core.ir.registry import op
from core.ir.roles import Roles
from core.ops.common.types import holds
from core.ops.control.array_cotangents import array_fill
from core.ops.control.array_joins import array_concat
from core.ops.control.elements import has_every_element, recorded_arrays
from core.ops.control.inner_blocks import LoopMemory, Side, check_condition, free_names, zero_cotangent
from core.ops.control.opened import opened
from core.ops.indexing.embedding import merge_rows
from core.ops.reduction.sums import sum_
from core.ops.shape.arrange import flip

__all__ = ["loop", "loop_roles"]


@op(control=True, outputs="out")
def loop(
    run,
    *x,
    sub_block: Block,
    carried: int,
    captured: int,
    condition: bool = True,
    reverse: bool = False,
    is_test: bool = False,
    memory: LoopMemory = "store",
    checkpoints: tuple[str, ...] = (),
    counter: int | None = None,
):
    """Run `sub_block` once for each trip.

    The operands `x` are `carried` values, which each trip replaces; `captured` values, which are the same on every
    trip; and stacks, of which each trip takes one element. The block takes (carried, captured, elements) and returns
    the next carried values, then values to record. The loop returns the last carried values, then a stack of each
    recorded value.

    With `condition` the first carried value is one bool, and the loop ends when it is false; otherwise the loop ends
    after the last element of its stacks. With `reverse` the last element comes first, and a recorded value has the
    position of its element. A loop with `is_test` has no gradient.

    memory: the residuals that are stored for the backward pass of n trips. "store": all values that it reads of each
    trip. "recompute": the carried values and the variables named in `checkpoints` of each trip; the other values are
    computed again. "sqrt": the carried values of about sqrt(2 n) trips; the trips between two of them run again, and
    all their values are stored then. "binomial": the same with two levels of runs, in about (6 n)^(1/3) memory. The
    gradients agree except for the last bit.
    """
    state, fixed, stacks = x[:carried], x[carried : carried + captured], x[carried + captured :]
    trips = len(stacks[0]) if stacks else None
    if any(len(each) != trips for each in stacks):
        lengths = " and ".join(str(len(each)) for each in stacks)
        raise ExecutionError(f"the stacks of a loop must have the same length, not {lengths}", "shape_mismatch")
    recorded: list[list[Any]] = [[] for _ in range(len(sub_block.block.results) - carried)]  # type: ignore[attr-defined]
    done = 0
    while (trips is None or done < trips) and not (condition and not bool(state[0])):
        run.trip(done if counter is None else max(done, int(state[counter])))
        at = trips - 1 - done if reverse and trips is not None else done
        results = sub_block(run, *state, *fixed, *(s[at] for s in stacks))  # type: ignore[operator]
        state = results[:carried]
        for stack, value in zip(recorded, results[carried:], strict=True):
            stack.append(value)
            if not isinstance(value, list | tuple):  # an inner loop has counted the elements of its stack
                run.keep(value.nbytes, "the record of the loop")
        done += 1
    if reverse:
        recorded = [stack[::-1] for stack in recorded]
    return (*state, *recorded)


@loop.infer
def loop_infer(*x, sub_block, carried, captured, condition, reverse, is_test, memory, checkpoints, counter):
    if len(sub_block.params) != len(x) or carried + captured > len(x):
        raise TypeMismatch(f"the body of the loop takes {len(sub_block.params)} values, not {len(x)}")
    if len(sub_block.results) < carried:
        raise TypeMismatch(f"the body returns {len(sub_block.results)} values, fewer than the {carried} carried ones")
    if condition:
        check_condition("loop", x[0] if carried else None)
        if len(x) > carried + captured:
            raise ProgramError("a loop must have a condition or stacks, not both", "bad_attr")
    elif len(x) == carried + captured:
        raise ProgramError("a loop must have a condition or a stack, or it never ends", "bad_attr")
    if counter is not None and not (0 <= counter < carried and x[counter] == TensorType((), "int64")):
        raise ProgramError(f"the counter of a loop must be a carried int64, not operand {counter}", "bad_attr")
    for each in x[carried + captured :]:
        if not isinstance(each, StackType):
            raise TypeMismatch(f"operands after the captured ones must be stacks, not {each}")
    given = (*x[: carried + captured], *(s.element for s in x[carried + captured :]))
    for name, type, param in zip(sub_block.params, given, sub_block.param_types, strict=True):
        if not holds(param, type):
            raise TypeMismatch(f"the body takes {name!r} as {param}, not {type}")
    for name, result, param in zip(
        sub_block.params, sub_block.result_types[:carried], sub_block.param_types, strict=False
    ):
        if not holds(param, result):  # the parameter has the type of the carried value before and after each trip
            raise ProgramError(f"{name!r} enters the body as {param} and leaves it as {result}", "carry_type_changed")
    return (*sub_block.param_types[:carried], *(StackType(t) for t in sub_block.result_types[carried:]))


@loop.roles
def loop_roles(op: Op) -> Roles:
    n, m = op.attrs["carried"], op.attrs["captured"]
    return Roles(
        carried=range(n),
        captured=range(n, n + m),
        elements=range(n + m, len(op.inputs)),
        optional=range(n, len(op.outputs)),
        repeats=True,
    )


def _loop_flow(op: Op, sub_block: tuple[int, ...]) -> list[int]:
    carried = op.attrs["carried"]
    reach = _closure(sub_block[:carried])
    return [_through(bits, reach) for bits in (*(1 << i for i in range(carried)), *sub_block[carried:])]


FLOWS["loop"] = _loop_flow


def _closure(masks: Sequence[int]) -> list[int]:
    """The operands that each carried value depends on after any number of trips, including none, as bits.

    masks: the same after one trip; bits below len(masks) are carried values themselves.
    """
    reach = [mask | 1 << i for i, mask in enumerate(masks)]
    for via in range(len(reach)):  # Warshall: paths through the carried values up to `via`
        if reach[via] == 1 << via:
            continue
        for i, bits in enumerate(reach):
            if bits >> via & 1:
                reach[i] = bits | reach[via]
    return reach


def _through(bits: int, reach: Sequence[int]) -> int:
    total = bits
    rest = bits & (1 << len(reach)) - 1
    while rest:
        lowest = rest & -rest
        total |= reach[lowest.bit_length() - 1]
        rest ^= lowest
    return total


@loop.adjoint
def loop_adjoint(a: Adjoint, index: int, op: Op, cts: list[Value | None], wanted: list[bool]) -> list[Cotangent | None]:
    """The gradient of a loop: a loop over the stacks that the forward loop recorded, newest trip first.

    It carries the cotangents of carried values, and the sums, from zero, of the cotangents of captured values. It
    records the cotangents of elements. Cotangents of captured tables that come as rows are recorded too, and merged
    after the loop.
    """
    if op.attrs["is_test"]:
        raise ProgramError(
            "the loop records nothing for a backward pass: is_test is set", "is_test_loop", location=op.location
        )
    if op.attrs["memory"] == "store":
        op = with_inner(op, opened)
    body: Block = op.attrs["sub_block"]
    roles = loop_roles(op)
    moving = _moving(a, op, cts, wanted)
    seeded = [j for j in roles.optional if cts[j] is not None]
    cts = [_complete(a, op.outputs[j], ct) if ct and j in roles.optional else ct for j, ct in enumerate(cts)]

    inner = a.inside(body)
    inner.whole = recorded_arrays(op, body)
    params = {i: inner.b.param(body.types[body.params[i]]) for i in moving}
    seeds = params | {j: inner.seed(body.results[j]) for j in seeded}
    wanted = [i in moving if i in roles.carried else wanted[i] for i in roles.passed]
    found, tables = _pulled_back(inner, op, seeds, wanted)

    following = {i: found.get(i) or zero_cotangent(inner.b, inner.b.value(body.params[i])) for i in moving}
    sums = _sums(a, inner, op, {i: ct for i, ct in found.items() if i in roles.captured})
    initial = {i: cts[i] or zero_cotangent(a.b, a.b.value(op.outputs[i])) for i in moving}
    carried = [*(_Carried(i, initial[i], params[i], following[i]) for i in moving), *sums]
    elements = [i for i in roles.elements if i in found]
    records = list(inner.cotangents.recorded.items())
    returned = [
        *(each.following for each in carried),
        *(found[i] for i in elements),
        *(ct for _, ct in records),
        *(part for table in tables.values() for part in (table.rows, table.values)),
    ]
    given = [body.params[i] for i in roles.captured]
    side = Side.of(inner, [v.name for v in returned], op.attrs["memory"], op.attrs["checkpoints"], given)
    op, captured, stacks = _residuals(a, index, op, side, trips_known=bool(seeded))
    stacks += [(ct, seeds[j].name) for j in seeded if (ct := cts[j]) is not None]
    names = [*(each.param.name for each in carried), *(name for _, name in (*captured, *stacks))]
    outs = iter(
        a.b.append(
            a.b.make(
                "loop",
                *(each.initial for each in carried),
                *(value for value, _ in (*captured, *stacks)),
                sub_block=inner.part(side.ops, names, [v.name for v in returned]),
                carried=len(carried),
                captured=len(captured),
                condition=False,
                reverse=not op.attrs["reverse"],
            )
        )
    )
    result: list[Cotangent | None] = [None] * len(op.inputs)
    for i in moving:
        result[i] = next(outs)
    for each in sums:
        result[each.operand] = narrowed(next(outs), a.b.types[op.inputs[each.operand]])
    for i in elements:
        result[i] = next(outs)
    a.cotangents.recorded.update((key, next(outs)) for key, _ in records)
    for i in tables:
        result[i] = _merged(a, a.b.value(op.inputs[i]), next(outs), next(outs), newest_first=not op.attrs["reverse"])
    return result


@dataclass(frozen=True, slots=True)
class _Carried:
    """A value that the backward loop carries: the cotangent of one operand of the forward loop.

    operand:   position of that operand.
    initial:   the value before the first trip, outside of the loop.
    param:     the value at the start of a trip, in the body.
    following: the value at the end of a trip, in the body.
    """

    operand: int
    initial: Value
    param: Value
    following: Value


def _pulled_back(
    inner: Adjoint, op: Op, seeds: Mapping[int, Value], wanted: Sequence[bool]
) -> tuple[dict[int, Value], dict[int, SparseRows]]:
    """The cotangents of the body's parameters in one trip, and those of captured tables that come as rows.

    seeds: position of a result of the body -> its cotangent. wanted: for each parameter whether it needs a cotangent.
    """
    body, captured = inner.block, loop_roles(op).captured
    wrt = [name for name, each in zip(body.params, wanted, strict=True) if each]
    by_rows = inner.run_by_rows([(body.results[j], ct) for j, ct in seeds.items()], dict.fromkeys(wrt))
    found: dict[int, Value] = {}
    tables: dict[int, SparseRows] = {}
    for i, name in enumerate(body.params):
        ct = by_rows.get(name)
        if isinstance(ct, SparseRows) and i in captured:
            tables[i] = ct
        elif ct is not None:
            found[i] = inner.cotangents.dense(name, ct, "changed_by_loop", op.location)
    return found, tables


def _sums(a: Adjoint, inner: Adjoint, op: Op, found: Mapping[int, Value]) -> list[_Carried]:
    """The sums over trips of the cotangents `found` of captured operands.

    They are float32 for 16-bit floats: bfloat16 cannot count to a thousand.
    """
    zeros = {i: widened(zero_cotangent(a.b, a.b.value(op.inputs[i]))) for i in found}
    totals = {i: inner.b.param(zero.type) for i, zero in zeros.items()}
    return [_Carried(i, zeros[i], total, sum_(total, widened(found[i]))) for i, total in totals.items()]


def _residuals(
    a: Adjoint, index: int, op: Op, side: Side, trips_known: bool
) -> tuple[Op, list[tuple[Value, str]], list[tuple[Value, str]]]:
    """The forward op that records the residuals, and the captured operands and the stacks that the backward body reads.

    Each operand and stack comes with the name of the body's parameter that takes it. trips_known: whether the backward
    loop runs over another stack; if it has no stack at all, one is recorded to give its number of trips.
    """
    roles = loop_roles(op)
    body: Block = op.attrs["sub_block"]
    captured = [i for i in roles.captured if body.params[i] in side.reads]
    elements = [i for i in roles.elements if body.params[i] in side.reads]
    given = {body.params[i] for i in (*captured, *elements)}
    kept = [name for name in side.reads if name not in given]
    if not (kept or elements or trips_known):
        if op.attrs["condition"]:
            kept = [body.params[roles.carried[0]]]
        else:
            elements = [roles.elements[0]]
    op, recorded = _record(a, index, op, side.forward, kept)
    stacks = [*zip(recorded, kept, strict=True), *((a.b.value(op.inputs[i]), body.params[i]) for i in elements)]
    return op, [(a.b.value(op.inputs[i]), body.params[i]) for i in captured], stacks


def _merged(a: Adjoint, table: Value, rows: Value, values: Value, newest_first: bool) -> SparseRows:
    """The rows of all trips of a backward loop. Values for one row of `table` are added in the order of the trips."""
    rows = array_concat(rows, a.b.constant(0, "int64", (0,)))
    values = array_concat(values, table)
    if newest_first:  # stacks are in the order of the forward trips; within a trip each row occurs once
        rows, values = (flip(each, axes=(0,)) for each in (rows, values))
    return SparseRows(*merge_rows(values, rows, table))


def _complete(a: Adjoint, stack: str, ct: Value) -> Value:
    """The cotangent of a recorded stack, with an element for every trip, even if the stack is read as a tensor
    array.
    """
    return ct if has_every_element(a, stack) else array_fill(ct, a.b.value(stack))


def _moving(a: Adjoint, op: Op, cts: list[Value | None], wanted: list[bool]) -> list[int]:
    """The carried values that have a cotangent on some trip and that depend, on some trip, on a wanted operand.

    Both hold over all trips: a state that starts as a constant may depend on an operand from the second trip on.
    """
    body: Block = op.attrs["sub_block"]
    n = op.attrs["carried"]
    once = a.activity.of(body)
    reach = _closure(once[:n])
    want = sum(1 << i for i, w in enumerate(wanted) if w)
    moves = {i for i in range(n) if reach[i] & want}
    useful = 0
    for j, ct in enumerate(cts):
        if ct is not None:
            useful |= reach[j] if j < n else _through(once[j], reach)
    return [i for i in sorted(moves) if useful >> i & 1 and body.types[body.params[i]].is_float]


def _record(a: Adjoint, index: int, op: Op, body: Block, kept: list[str]) -> tuple[Op, list[Value]]:
    """The forward loop, which now also records `kept`, and the stacks of `kept`. No value is recorded twice."""
    n = op.attrs["carried"]
    recorded = list(body.results[n:])
    new = [name for name in kept if name not in recorded]
    outputs = (*op.outputs, *free_names(a, new, "STACK"))
    results = (*body.results, *new)
    op = replace(op, outputs=outputs, attrs={**op.attrs, "sub_block": replace(body, results=results)})
    a.rewrite(index, a.b.typed(op))
    where = [*recorded, *new]
    return op, [a.b.value(op.outputs[n + where.index(name)]) for name in kept]
