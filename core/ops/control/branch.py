"""Branches: `if_else` runs one of two blocks, and its gradient is an `if_else` too.

The values inside a block that the backward pass reads become ordinary outputs of the forward op. So the same rule
differentiates the result again.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from core.autodiff.activity import FLOWS
from core.autodiff.adjoint import Adjoint
from core.ir import Block, Op
from core.ir.builder import BlockBuilder, Cotangent, SparseRows, Value
from core.ir.errors import ProgramError, TypeMismatch
from core.ir.registry import op
from core.ir.roles import Roles
from core.ops.common.types import joined_type, matches
from core.ops.control.elements import returned_arrays
from core.ops.control.inner_blocks import BranchMemory, Side, check_condition, empty, free_names, zero_cotangent
from core.ops.indexing.gather import slice_

__all__ = ["if_else"]


@op(control=True, outputs="out")
def if_else(
    run,
    condition,
    *x,
    true_block: Block,
    false_block: Block,
    memory: BranchMemory = "store",
    checkpoints: tuple[str, ...] = (),
):
    """Run `true_block` on the operands `x` if `condition` (one bool) is true, else `false_block`.

    Both blocks take the same operands and return the same number of results, of the same dtypes. A size in which the
    results differ is unknown before the run. The other block runs neither forwards nor backwards.

    memory: the residuals that are stored for the backward pass. "store": all values that it reads. "recompute": the
    operands and the variables of the blocks named in `checkpoints`; the other values are computed again.
    """
    return (true_block if bool(condition) else false_block)(run, *x)  # type: ignore[operator]


@if_else.infer
def if_else_infer(condition, *x, true_block, false_block, memory, checkpoints):
    check_condition("if_else", condition)
    for block in (true_block, false_block):
        if len(block.params) != len(x) or not all(matches(a, p) for a, p in zip(x, block.param_types, strict=True)):
            raise TypeMismatch("both blocks of if_else must take the types of its operands")
    a, b = true_block.result_types, false_block.result_types
    if len(a) != len(b):
        raise ProgramError(f"the branches of if_else return {len(a)} and {len(b)} values", "branch_mismatch")
    return tuple(
        joined_type(s, t, "branch_mismatch", f"result {i} of if_else differs between the branches")
        for i, (s, t) in enumerate(zip(a, b, strict=True))
    )


@if_else.roles
def if_else_roles(op: Op) -> Roles:
    return Roles(condition=range(1), captured=range(1, len(op.inputs)), optional=range(len(op.outputs)))


def _if_else_flow(op: Op, true_block: tuple[int, ...], false_block: tuple[int, ...]) -> list[int]:
    return [(t | f) << 1 for t, f in zip(true_block, false_block, strict=True)]  # bit 0 is the condition


FLOWS["if_else"] = _if_else_flow


@if_else.adjoint
def if_else_adjoint(
    a: Adjoint, index: int, op: Op, cts: list[Value | None], wanted: list[bool]
) -> list[Cotangent | None]:
    """The gradient of a branch is a branch. It takes the residuals of both sides; those of the side not taken are
    zeros.
    """
    roles = if_else_roles(op)
    blocks = (op.attrs["true_block"], op.attrs["false_block"])
    seeded = [i for i, ct in enumerate(cts) if ct is not None]
    inner = [a.inside(block) for block in blocks]
    for each in inner:
        each.whole = returned_arrays(a, op, each.block)
    cotangents = [[each.seed(each.block.results[i]) for i in seeded] for each in inner]
    found = []
    for each, given in zip(inner, cotangents, strict=True):
        wrt = [each.block.params[roles.param(i)] for i in roles.passed if wanted[i]]
        seeds = zip((each.block.results[i] for i in seeded), given, strict=True)
        found.append(each.run_by_rows(seeds, wrt))
    names = {i: [block.params[roles.param(i)] for block in blocks] for i in roles.passed}  # operand -> name in each
    sides_of = {i: [f.get(name) for f, name in zip(found, names[i], strict=True)] for i in roles.passed}
    reached = [i for i, pair in sides_of.items() if any(ct is not None for ct in pair)]
    tables = [i for i in reached if _by_rows(sides_of[i])]
    returned: list[list[str]] = []
    for which, each in enumerate(inner):
        arriving = {names[i][which]: sides_of[i][which] for i in reached}
        results = _returned(each, op, arriving, {names[i][which] for i in tables})
        for other in inner:
            for ct in other.cotangents.recorded.values():
                results.append(ct if other is each else empty(each.b, ct.type))
        returned.append([value.name for value in results])
    memory = op.attrs["memory"], op.attrs["checkpoints"]
    sides = [Side.of(each, results, *memory) for each, results in zip(inner, returned, strict=True)]

    operands = [i for i in roles.passed if any(n in s.reads for n, s in zip(names[i], sides, strict=True))]
    kept = [[n for n in s.reads if n not in s.adjoint.block.params] for s in sides]
    op = _keep_in_branches(a, index, op, sides, kept)
    saved = [a.b.value(n) for n in op.outputs[len(cts) :]]

    adjoints = []
    for which, s in enumerate(sides):
        own = dict(enumerate(kept[which], start=len(kept[0]) if which else 0))
        slots = []
        for i, value in enumerate(saved):
            slots.append(own.get(i) or s.adjoint.b.param(value.type).name)
        params = [*(names[i][which] for i in operands), *slots, *(c.name for c in cotangents[which])]
        adjoints.append(s.adjoint.part(s.ops, params, returned[which]))

    values = [a.b.value(op.inputs[i]) for i in operands]
    given_cts = [ct for ct in cts if ct is not None]
    if not reached:
        return [None] * len(op.inputs)
    outs = a.b.append(
        a.b.make(
            "if_else",
            *(a.b.value(op.inputs[i]) for i in roles.condition),
            *values,
            *saved,
            *given_cts,
            true_block=adjoints[0],
            false_block=adjoints[1],
        )
    )
    result: list[Cotangent | None] = [None] * len(op.inputs)
    left = iter(outs)
    for i in reached:
        result[i] = SparseRows(next(left), next(left)) if i in tables else next(left)
    a.cotangents.recorded.update(zip((key for each in inner for key in each.cotangents.recorded), left, strict=True))
    return result


def _returned(side: Adjoint, op: Op, cts: Mapping[str, Cotangent | None], tables: Set[str]) -> list[Value]:
    """The cotangents that one side returns, by its name of each operand; zeros for those that it does not reach.

    tables: operands whose cotangents leave as rows.
    """
    found: list[Value] = []
    for name, ct in cts.items():
        if name in tables:
            rows = ct if isinstance(ct, SparseRows) else _no_rows(side.b, side.b.value(name))
            found += [rows.rows, rows.values]
        elif ct is None:
            found.append(zero_cotangent(side.b, side.b.value(name)))
        else:
            found.append(side.cotangents.dense(name, ct, "other_branch", op.location))
    return found


def _by_rows(sides: list[Cotangent | None]) -> bool:
    """Whether a cotangent can leave as rows: on each side it is rows or a structural zero."""
    return any(isinstance(ct, SparseRows) for ct in sides) and not any(isinstance(ct, Value) for ct in sides)


def _no_rows(b: BlockBuilder, table: Value) -> SparseRows:
    """The cotangent of `table`, of a side that looks nothing up in it."""
    return SparseRows(b.constant(0, "int64", (0,)), slice_(table, axes=(0,), starts=(0,), ends=(0,)))


def _keep_in_branches(a: Adjoint, index: int, op: Op, sides: list[Side], kept: list[list[str]]) -> Op:
    """The forward `if_else`, which now also returns the residuals of both sides; the side not taken returns zeros."""
    if not any(kept):
        outputs: tuple[str, ...] = op.outputs
        blocks = [s.forward for s in sides]
    else:
        blocks = []
        for which, s in enumerate(sides):
            b = BlockBuilder.like(s.forward)
            other = sides[1 - which].adjoint.b
            zeros = {type: empty(b, type) for type in dict.fromkeys(other.types[n] for n in kept[1 - which])}
            absent = [zeros[other.types[n]] for n in kept[1 - which]]
            own = [b.value(n) for n in kept[which]]
            extra = [*own, *absent] if which == 0 else [*absent, *own]
            blocks.append(b.build([*s.adjoint.block.results, *extra]))
        outputs = (*op.outputs, *free_names(a, [*kept[0], *kept[1]], "KEPT"))
    true_block, false_block = blocks
    op = replace(op, outputs=outputs, attrs={**op.attrs, "true_block": true_block, "false_block": false_block})
    a.rewrite(index, a.b.typed(op))
    return op
