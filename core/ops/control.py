"""Control flow: ops whose attributes are blocks, closed under differentiation.

A kernel receives its blocks ready to call; the rules receive them as data. The gradient of a `loop` is a `loop`, that
of an `if_else` is an `if_else`: whatever the backward pass needs from inside a block leaves it as an ordinary output
of the forward op, so the result can be differentiated again by the same rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.autodiff import FLOWS, Adjoint, live, reads
from core.build import BlockBuilder, Value
from core.errors import ProgramError, TypeMismatch
from core.ir import Block, Op, StackType, TensorType, Type
from core.ops.types import joined_type, matches
from core.registry import lookup, op

__all__ = ["if_else", "loop"]


# ---------------------------------------------------------------------------------------------------------------
# if_else
# ---------------------------------------------------------------------------------------------------------------


@op(control=True, outputs="out")
def if_else(run, condition, *x, true_block: Block, false_block: Block):
    """Run `true_block` on the operands `x` if `condition` (one bool) is true, else `false_block`.

    Both blocks take the same operands and return equally many results of equal dtypes; sizes in which the results
    differ are known only when the program runs. The branch not taken runs neither forwards nor backwards.
    """
    return (true_block if bool(condition) else false_block)(run, *x)  # type: ignore[operator]


@if_else.infer
def if_else_infer(condition, *x, true_block, false_block):
    _check_condition("if_else", condition)
    for block in (true_block, false_block):
        if len(block.params) != len(x) or not all(matches(a, p) for a, p in zip(x, block.param_types, strict=True)):
            raise TypeMismatch("a branch of if_else must take the operands' types")
    a, b = true_block.result_types, false_block.result_types
    if len(a) != len(b):
        raise ProgramError(f"the branches of if_else return {len(a)} and {len(b)} values", "branch_mismatch")
    return tuple(
        joined_type(s, t, "branch_mismatch", f"result {i} of if_else differs between the branches")
        for i, (s, t) in enumerate(zip(a, b, strict=True))
    )


def _if_else_flow(op: Op, true_block: tuple[int, ...], false_block: tuple[int, ...]) -> list[int]:
    return [(t | f) << 1 for t, f in zip(true_block, false_block, strict=True)]  # bit 0 is the condition


FLOWS["if_else"] = _if_else_flow


@dataclass(slots=True)
class _Side:
    """The backward pass of one inner block, and what it reads of the forward one."""

    adjoint: Adjoint
    ops: tuple[Op, ...]
    reads: list[str]

    @classmethod
    def of(cls, a: Adjoint, results: Sequence[str]) -> _Side:
        """Keep the ops that `results` need, and make here what is as cheap to make as to keep."""
        names = [a.final(r) for r in results]
        kept = [_without_reading(a, each) for each in live(a.ops(), names)]
        constants = {o: each for each in a.primal if not each.inputs for o in each.outputs}
        read = [n for n in reads(kept, names, a.b.types) if a.is_primal(n)]
        again = dict.fromkeys(id(constants[n]) for n in read if n in constants)
        made = [each for each in a.primal if id(each) in again]
        return cls(a, (*made, *kept), [n for n in read if n not in constants])


def _without_reading(a: Adjoint, op: Op) -> Op:
    """Zeros shaped like a value of known shape need not keep the value."""
    if op.type == "fill_zeros_like" and isinstance(t := a.b.types[op.inputs[0]], TensorType) and t.is_static:
        attrs = {"shape": t.shape, "value": 0.0, "dtype": t.dtype}
        return replace(op, type="fill_constant", inputs=(), attrs=lookup("fill_constant").complete(attrs))
    return op


@if_else.adjoint
def if_else_adjoint(a: Adjoint, index: int, op: Op, cts: list[Value | None], wanted: list[bool]) -> list[Value | None]:
    """The gradient of a branch is a branch. What the taken side kept comes along; the other side keeps zeros."""
    blocks = (op.attrs["true_block"], op.attrs["false_block"])
    seeded = [i for i, ct in enumerate(cts) if ct is not None]
    inner = [a.inside(block) for block in blocks]
    cotangents = [[each.seed(each.block.results[i]) for i in seeded] for each in inner]
    found = []
    for each, given in zip(inner, cotangents, strict=True):
        wrt = [p for p, w in zip(each.block.params, wanted[1:], strict=True) if w]
        seeds = zip((each.block.results[i] for i in seeded), given, strict=True)
        found.append(each.run(seeds, wrt))
    reached = [
        i
        for i in range(len(op.inputs) - 1)
        if any(block.params[i] in f for block, f in zip(blocks, found, strict=True))
    ]
    sides, returned = [], []
    for each, f in zip(inner, found, strict=True):
        names = [each.block.params[i] for i in reached]
        returned.append([f.get(n) or each.b.zeros_like(each.b.value(n)) for n in names])
        sides.append(_Side.of(each, [v.name for v in returned[-1]]))

    operands = [i for i in range(len(op.inputs) - 1) if any(s.adjoint.block.params[i] in s.reads for s in sides)]
    kept = [[n for n in s.reads if n not in s.adjoint.block.params] for s in sides]
    op = _keep_in_branches(a, index, op, sides, kept)
    saved = [a.b.value(n) for n in op.outputs[len(cts) :]]

    adjoints = []
    for which, s in enumerate(sides):
        own = dict(enumerate(kept[which], start=len(kept[0]) if which else 0))
        slots = []
        for i, value in enumerate(saved):
            slots.append(own.get(i) or s.adjoint.b.param(value.type).name)
        params = [*(s.adjoint.block.params[i] for i in operands), *slots, *(c.name for c in cotangents[which])]
        adjoints.append(s.adjoint.part(s.ops, params, [v.name for v in returned[which]]))

    values = [a.b.value(op.inputs[1 + i]) for i in operands]
    given_cts = [ct for ct in cts if ct is not None]
    if not reached:
        return [None] * len(op.inputs)
    outs = a.b.append(
        a.b.make(
            "if_else",
            a.b.value(op.inputs[0]),
            *values,
            *saved,
            *given_cts,
            true_block=adjoints[0],
            false_block=adjoints[1],
        )
    )
    result: list[Value | None] = [None] * len(op.inputs)
    for i, out in zip(reached, outs, strict=True):
        result[1 + i] = out
    return result


def _keep_in_branches(a: Adjoint, index: int, op: Op, sides: list[_Side], kept: list[list[str]]) -> Op:
    """The forward `if_else`, now also returning what either backward side reads; the side not taken returns zeros."""
    if not any(kept):
        outputs: tuple[str, ...] = op.outputs
        blocks = [s.adjoint.part(s.adjoint.primal, s.adjoint.block.params, s.adjoint.block.results) for s in sides]
    else:
        blocks = []
        for which, s in enumerate(sides):
            b = BlockBuilder.like(s.adjoint.part(s.adjoint.primal, s.adjoint.block.params, s.adjoint.block.results))
            other = sides[1 - which].adjoint.b
            empty = [_empty(b, other.types[n]) for n in kept[1 - which]]
            own = [b.value(n) for n in kept[which]]
            extra = [*own, *empty] if which == 0 else [*empty, *own]
            blocks.append(b.build([*s.adjoint.block.results, *extra]))
        names = [f"{n}@KEPT" for n in (*kept[0], *kept[1])]
        outputs = (*op.outputs, *_named(a, names))
    true_block, false_block = blocks
    op = replace(op, outputs=outputs, attrs={**op.attrs, "true_block": true_block, "false_block": false_block})
    a.rewrite(index, a.b.typed(op))
    return op


def _empty(b: BlockBuilder, type: Type) -> Value:
    """Stands for a value that the branch not taken does not have; nobody reads it."""
    if isinstance(type, StackType):
        depth, element = 0, type
        while isinstance(element, StackType):
            depth, element = depth + 1, element.element  # type: ignore[assignment]
        return b.emit("empty_stack", depth=depth, shape=element.shape, dtype=element.dtype)
    return b.constant(0.0, type.dtype, tuple(max(n, 0) for n in type.shape))


def _named(a: Adjoint, names: Sequence[str]) -> list[str]:
    """`names`, each made free by a number where it is taken."""
    out: list[str] = []
    for name in names:
        free, n = name, 0
        while free in a.b.types or free in out:
            n += 1
            free = f"{name}@{n}"
        out.append(free)
    return out


# ---------------------------------------------------------------------------------------------------------------
# loop
# ---------------------------------------------------------------------------------------------------------------


@op(control=True, outputs="out")
def loop(run, *x, sub_block: Block, carried: int, captured: int, condition: bool = True, reverse: bool = False):
    """Run `sub_block` again and again.

    The operands `x` are `carried` values, replaced on every trip; `captured` ones, the same on every trip; and
    stacks, of which each trip sees one element. The block takes (carried, captured, elements) and returns the next
    carried values, then values to record. The loop returns the last carried values, then a stack of each recorded one.

    With `condition` the first carried value is one bool, and the loop ends when it is false. With stacks it ends when
    they do. With `reverse` the last element comes first, and what is recorded lines up with the element it came from.
    """
    state, fixed, stacks = x[:carried], x[carried : carried + captured], x[carried + captured :]
    trips = len(stacks[0]) if stacks else None
    recorded: list[list[Any]] = [[] for _ in range(len(sub_block.block.results) - carried)]  # type: ignore[attr-defined]
    done = 0
    while (trips is None or done < trips) and not (condition and not bool(state[0])):
        run.trip(done)
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
def loop_infer(*x, sub_block, carried, captured, condition, reverse):
    if len(sub_block.params) != len(x) or carried + captured > len(x):
        raise TypeMismatch(f"the body of the loop takes {len(sub_block.params)} values, but {len(x)} are given")
    if len(sub_block.results) < carried:
        raise TypeMismatch(f"the body returns {len(sub_block.results)} values for {carried} carried ones")
    if condition:
        _check_condition("loop", x[0] if carried else None)
    elif len(x) == carried + captured:
        raise ProgramError("a loop needs a condition or a stack to end it", "bad_attr")
    for each in x[carried + captured :]:
        if not isinstance(each, StackType):
            raise TypeMismatch(f"a loop runs over stacks, not over a {each}")
    given = (*x[: carried + captured], *(s.element for s in x[carried + captured :]))
    for name, type, param in zip(sub_block.params, given, sub_block.param_types, strict=True):
        if not matches(type, param):
            raise TypeMismatch(f"the body takes {name!r} as {param}, but is given {type}")
    for name, result, param in zip(
        sub_block.params, sub_block.result_types[:carried], sub_block.param_types, strict=False
    ):
        if not matches(result, param):
            raise ProgramError(f"{name!r} enters the body as {param} and leaves it as {result}", "carry_type_changed")
    return (*sub_block.param_types[:carried], *(StackType(t) for t in sub_block.result_types[carried:]))


def _check_condition(op: str, type: Type | None) -> None:
    if not isinstance(type, TensorType) or type.dtype != "bool" or any(n not in (1, -1) for n in type.shape):
        raise ProgramError(f"the condition of {op} must be one bool, not {type}", "bad_condition")


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
def loop_adjoint(a: Adjoint, index: int, op: Op, cts: list[Value | None], wanted: list[bool]) -> list[Value | None]:
    """The gradient of a loop is a loop over what the forward one recorded, newest trip first.

    Cotangents of carried values are replaced on each trip, those of captured values are added up from zero, those of
    stack elements leave as stacks.
    """
    body: Block = op.attrs["sub_block"]
    n, m = op.attrs["carried"], op.attrs["captured"]
    tracked = _tracked(a, op, cts, wanted)
    seeded = [j for j in range(n, len(cts)) if cts[j] is not None]

    inner = a.inside(body)
    from_carried = {i: inner.b.param(body.types[body.params[i]]) for i in tracked}
    from_stacks = {j: inner.seed(body.results[j]) for j in seeded}
    seeds = [(body.results[i], ct) for i, ct in (from_carried | from_stacks).items()]
    wrt = [p for i, p in enumerate(body.params) if (i in tracked if i < n else wanted[i])]
    found = inner.run(seeds, dict.fromkeys(wrt))

    b = inner.b
    next_cts = [found.get(body.params[i]) or b.zeros_like(b.value(body.params[i])) for i in tracked]
    added = [i for i in range(n, n + m) if body.params[i] in found]
    sums = [b.param(b.types[body.params[i]]) for i in added]
    next_sums = [b.emit("sum", total, found[body.params[i]]) for i, total in zip(added, sums, strict=True)]
    elements = [i for i in range(n + m, len(body.params)) if body.params[i] in found]
    returned = [*next_cts, *next_sums, *(found[body.params[i]] for i in elements)]
    side = _Side.of(inner, [v.name for v in returned])

    read_captured = [i for i in range(n, n + m) if body.params[i] in side.reads]
    read_elements = [i for i in range(n + m, len(body.params)) if body.params[i] in side.reads]
    given = {body.params[i] for i in (*read_captured, *read_elements)}
    kept = [name for name in side.reads if name not in given]
    if not (kept or read_elements or seeded):  # nothing is read, but the number of trips must be known
        if op.attrs["condition"]:
            kept = [body.params[0]]
        else:
            read_elements = [n + m]
    op, stacks = _record(a, index, op, inner, kept)

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
            *(a.b.zeros_like(a.b.value(op.inputs[i])) for i in added),
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
    result: list[Value | None] = [None] * len(op.inputs)
    for i, out in zip((*tracked, *added, *elements), outs, strict=True):
        result[i] = out
    return result


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


def _record(a: Adjoint, index: int, op: Op, inner: Adjoint, kept: list[str]) -> tuple[Op, list[Value]]:
    """The forward loop, now also recording `kept`; and those stacks. What it records already is not recorded twice."""
    n = op.attrs["carried"]
    body = inner.block
    recorded = list(body.results[n:])
    new = [name for name in kept if name not in recorded]
    outputs = (*op.outputs, *_named(a, [f"{name}@STACK" for name in new]))
    results = (*body.results, *new)
    op = replace(op, outputs=outputs, attrs={**op.attrs, "sub_block": inner.part(inner.primal, body.params, results)})
    a.rewrite(index, a.b.typed(op))
    where = [*recorded, *new]
    return op, [a.b.value(op.outputs[n + where.index(name)]) for name in kept]
