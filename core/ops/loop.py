"""`loop`: a block runs again and again. Its gradient is a `loop` too, over what the forward one recorded.

Whatever the backward pass needs from inside the block leaves it as a recorded stack, an ordinary output of the forward
op, so the result can be differentiated again by the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from core.autodiff import Adjoint
from core.build import Cotangent, SparseRows, Value, narrowed, widened
from core.dependence import FLOWS
from core.errors import ExecutionError, ProgramError, TypeMismatch
from core.ir import Block, Op, StackType, TensorType
from core.ops.control import LoopMemory, Side, check_condition, free_names
from core.ops.types import holds
from core.registry import op

__all__ = ["loop"]


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
    """Run `sub_block` again and again.

    The operands `x` are `carried` values, replaced on every trip; `captured` ones, the same on every trip; and
    stacks, of which each trip sees one element. The block takes (carried, captured, elements) and returns the next
    carried values, then values to record. The loop returns the last carried values, then a stack of each recorded one.

    With `condition` the first carried value is one bool, and the loop ends when it is false; otherwise it ends with its
    stacks. With `reverse` the last element comes first, and what is recorded lines up with the element it came from.
    A loop with `is_test` has no gradient.

    memory: what is kept for the backward pass of n trips. "store": on each trip all that it reads. "recompute": on each
    trip the carried values and the variables named in `checkpoints`; the rest is computed again. "sqrt": the carried
    values of about sqrt(2 n) trips, and all of as many trips between two of them, which run again. "binomial": the same
    once more inside, in about (6 n)^(1/3) memory. The gradient is the same to the last bit but one.
    counter: for a loop that is one run of a longer loop, the number of the carried value, an int64, that counts the
    trips of the longer one. The limit of trips then holds for that count.
    """
    state, fixed, stacks = x[:carried], x[carried : carried + captured], x[carried + captured :]
    trips = len(stacks[0]) if stacks else None
    if any(len(each) != trips for each in stacks):
        lengths = " and ".join(str(len(each)) for each in stacks)
        raise ExecutionError(f"a loop runs over sequences of different lengths: {lengths}", "shape_mismatch")
    recorded: list[list[Any]] = [[] for _ in range(len(sub_block.block.results) - carried)]  # type: ignore[attr-defined]
    done = 0
    while (trips is None or done < trips) and not (condition and not bool(state[0])):
        run.trip(done if counter is None else max(done, int(state[counter])))
        at = trips - 1 - done if reverse and trips is not None else done
        results = sub_block(run, *state, *fixed, *(s[at] for s in stacks))  # type: ignore[operator]
        state = results[:carried]
        for stack, value in zip(recorded, results[carried:], strict=True):
            stack.append(value)
        done += 1
    if reverse:
        recorded = [stack[::-1] for stack in recorded]
    return (*state, *recorded)


@loop.infer
def loop_infer(*x, sub_block, carried, captured, condition, reverse, is_test, memory, checkpoints, counter):
    if len(sub_block.params) != len(x) or carried + captured > len(x):
        raise TypeMismatch(f"the body of the loop takes {len(sub_block.params)} values, but {len(x)} are given")
    if len(sub_block.results) < carried:
        raise TypeMismatch(f"the body returns {len(sub_block.results)} values for {carried} carried ones")
    if condition:
        check_condition("loop", x[0] if carried else None)
        if len(x) > carried + captured:
            raise ProgramError("a loop ends with its condition or with its stacks, not both", "bad_attr")
    elif len(x) == carried + captured:
        raise ProgramError("a loop needs a condition or a stack to end it", "bad_attr")
    if counter is not None and not (0 <= counter < carried and x[counter] == TensorType((), "int64")):
        raise ProgramError(f"the counter of a loop must be a carried int64, not operand {counter}", "bad_attr")
    for each in x[carried + captured :]:
        if not isinstance(each, StackType):
            raise TypeMismatch(f"a loop runs over stacks, not over a {each}")
    given = (*x[: carried + captured], *(s.element for s in x[carried + captured :]))
    for name, type, param in zip(sub_block.params, given, sub_block.param_types, strict=True):
        if not holds(param, type):
            raise TypeMismatch(f"the body takes {name!r} as {param}, but is given {type}")
    for name, result, param in zip(
        sub_block.params, sub_block.result_types[:carried], sub_block.param_types, strict=False
    ):
        if not holds(
            param, result
        ):  # the type of the parameter is that of the carried value before and after each trip
            raise ProgramError(f"{name!r} enters the body as {param} and leaves it as {result}", "carry_type_changed")
    return (*sub_block.param_types[:carried], *(StackType(t) for t in sub_block.result_types[carried:]))


def _loop_flow(op: Op, sub_block: tuple[int, ...]) -> list[int]:
    carried = op.attrs["carried"]
    reach = _closure(sub_block[:carried])
    return [_through(bits, reach) for bits in (*(1 << i for i in range(carried)), *sub_block[carried:])]


FLOWS["loop"] = _loop_flow


def _closure(masks: Sequence[int]) -> list[int]:
    """What each carried value depends on after any number of trips, none included.

    masks: what each depends on after one trip; bits below len(masks) are carried values themselves.
    """
    reach = [mask | 1 << i for i, mask in enumerate(masks)]
    for via in range(len(reach)):  # Warshall: paths through ever more carried values
        for i, bits in enumerate(reach):
            if bits >> via & 1:
                reach[i] = bits | reach[via]
    return reach


def _through(bits: int, reach: Sequence[int]) -> int:
    total = bits
    for i, more in enumerate(reach):
        if bits >> i & 1:
            total |= more
    return total


@loop.adjoint
def loop_adjoint(a: Adjoint, index: int, op: Op, cts: list[Value | None], wanted: list[bool]) -> list[Cotangent | None]:
    """The gradient of a loop is a loop over what the forward one recorded, newest trip first.

    Cotangents of carried values are replaced on each trip, those of captured values are added up from zero, those of
    stack elements leave as stacks. Those of captured tables that are rows leave as stacks too, and are merged behind
    the loop.
    """
    if op.attrs["is_test"]:
        raise ProgramError("the loop keeps nothing of its trips: is_test is set", "is_test_loop", location=op.location)
    body: Block = op.attrs["sub_block"]
    n, m = op.attrs["carried"], op.attrs["captured"]
    tracked = _tracked(a, op, cts, wanted)
    seeded = [j for j in range(n, len(cts)) if cts[j] is not None]
    cts = [_complete(a, op.outputs[j], ct) if ct and j >= n else ct for j, ct in enumerate(cts)]

    inner = a.inside(body)
    from_carried = {i: inner.b.param(body.types[body.params[i]]) for i in tracked}
    from_stacks = {j: inner.seed(body.results[j]) for j in seeded}
    seeds = [(body.results[i], ct) for i, ct in (from_carried | from_stacks).items()]
    wrt = [p for i, p in enumerate(body.params) if (i in tracked if i < n else wanted[i])]
    by_rows = inner.run_by_rows(seeds, dict.fromkeys(wrt))
    tables = {i: ct for i in range(n, n + m) if isinstance(ct := by_rows.get(body.params[i]), SparseRows)}
    apart = {body.params[i] for i in tables}
    found = {
        p: inner.cotangents.whole(p, ct, "changed_by_loop", op.location) for p, ct in by_rows.items() if p not in apart
    }

    b = inner.b
    next_cts = [found.get(body.params[i]) or b.zeros_like(b.value(body.params[i])) for i in tracked]
    added = [i for i in range(n, n + m) if body.params[i] in found]
    # 16-bit floats are added up in float32: a thousand ones are more than bfloat16 can count
    zeros = [widened(a.b.zeros_like(a.b.value(op.inputs[i]))) for i in added]
    sums = [b.param(zero.type) for zero in zeros]
    next_sums = [b.emit("sum", total, widened(found[body.params[i]])) for i, total in zip(added, sums, strict=True)]
    elements = [i for i in range(n + m, len(body.params)) if body.params[i] in found]
    records = list(inner.cotangents.recorded.items())
    returned = [
        *next_cts,
        *next_sums,
        *(found[body.params[i]] for i in elements),
        *(ct for _, ct in records),
        *(part for table in tables.values() for part in (table.rows, table.values)),
    ]
    side = Side.of(inner, [v.name for v in returned], op.attrs["memory"], op.attrs["checkpoints"])

    read_captured = [i for i in range(n, n + m) if body.params[i] in side.reads]
    read_elements = [i for i in range(n + m, len(body.params)) if body.params[i] in side.reads]
    given = {body.params[i] for i in (*read_captured, *read_elements)}
    kept = [name for name in side.reads if name not in given]
    if not (kept or read_elements or seeded):  # nothing is read, but the number of trips must be known
        if op.attrs["condition"]:
            kept = [body.params[0]]
        else:
            read_elements = [n + m]
    op, stacks = _record(a, index, op, side.forward, kept)

    params = [
        *(from_carried[i].name for i in tracked),
        *(s.name for s in sums),
        *(body.params[i] for i in read_captured),
        *kept,
        *(body.params[i] for i in read_elements),
        *(from_stacks[j].name for j in seeded),
    ]
    adjoint_body = inner.part(side.ops, params, [v.name for v in returned])
    outs = a.b.append(
        a.b.make(
            "loop",
            *(cts[i] or a.b.zeros_like(a.b.value(op.outputs[i])) for i in tracked),
            *zeros,
            *(a.b.value(op.inputs[i]) for i in read_captured),
            *stacks,
            *(a.b.value(op.inputs[i]) for i in read_elements),
            *(cts[j] for j in seeded),
            sub_block=adjoint_body,
            carried=len(tracked) + len(added),
            captured=len(read_captured),
            condition=False,
            reverse=not op.attrs["reverse"],
        )
    )
    result: list[Cotangent | None] = [None] * len(op.inputs)
    given_back = (*tracked, *added, *elements)
    for i, out in zip(given_back, outs, strict=False):
        result[i] = narrowed(out, a.b.types[op.inputs[i]]) if i in added else out
    rest = outs[len(given_back) :]
    a.cotangents.recorded.update((key, out) for (key, _), out in zip(records, rest, strict=False))
    stacks = list(rest[len(records) :])
    for i, rows, values in zip(tables, stacks[::2], stacks[1::2], strict=True):
        result[i] = _merged(a, a.b.value(op.inputs[i]), rows, values, newest_first=not op.attrs["reverse"])
    return result


def _merged(a: Adjoint, table: Value, rows: Value, values: Value, newest_first: bool) -> SparseRows:
    """The rows of all trips of a backward loop, those to one row of `table` added in the order of its trips."""
    rows = a.b.emit("array_concat", rows, a.b.constant(0, "int64", (0,)))
    values = a.b.emit("array_concat", values, table)
    if newest_first:  # stacks line up with the forward trips; in one trip every row is there once
        rows, values = (a.b.emit("flip", each, axes=(0,)) for each in (rows, values))
    return SparseRows(*a.b.emit("merge_rows", values, rows, table))


COMPLETE = frozenset(
    {"loop", "array_join", "array_concat", "array_flatten", "array_regroup", "array_chunks", "assign", "sum"}
)
"""Readers of an array whose cotangent has every element."""


def _complete(a: Adjoint, stack: str, ct: Value) -> Value:
    """The cotangent of a recorded stack, with an element for every trip even where the stack is read as an array."""
    if all(each.type in COMPLETE for each in a.readers(stack)):
        return ct
    return a.b.emit("array_fill", ct, a.b.value(stack))


def _tracked(a: Adjoint, op: Op, cts: list[Value | None], wanted: list[bool]) -> list[int]:
    """The carried values that some trip has a cotangent for and that move, on some trip, with what is wanted.

    Both are closed over trips: a state that starts as a constant still moves from the second trip on.
    """
    body: Block = op.attrs["sub_block"]
    n = op.attrs["carried"]
    once = a.depends.of(body)
    reach = _closure(once[:n])
    want = sum(1 << i for i, w in enumerate(wanted) if w)
    moves = {i for i in range(n) if reach[i] & want}
    useful = 0
    for j, ct in enumerate(cts):
        if ct is not None:
            useful |= reach[j] if j < n else _through(once[j], reach)
    return [i for i in sorted(moves) if useful >> i & 1 and body.types[body.params[i]].is_float]


def _record(a: Adjoint, index: int, op: Op, body: Block, kept: list[str]) -> tuple[Op, list[Value]]:
    """The forward loop, now also recording `kept`; and those stacks. What it records already is not recorded twice."""
    n = op.attrs["carried"]
    recorded = list(body.results[n:])
    new = [name for name in kept if name not in recorded]
    outputs = (*op.outputs, *free_names(a, [f"{name}@STACK" for name in new]))
    results = (*body.results, *new)
    op = replace(op, outputs=outputs, attrs={**op.attrs, "sub_block": replace(body, results=results)})
    a.rewrite(index, a.b.typed(op))
    where = [*recorded, *new]
    return op, [a.b.value(op.outputs[n + where.index(name)]) for name in kept]
