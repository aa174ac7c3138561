"""Remove the backward pass from a program, to evaluate it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from core.ir import Block, Op, Program, blocks_inside, inner_blocks
from core.ir.errors import ProgramError
from core.ir.registry import lookup, roles_of
from core.wire.document import is_reserved

__all__ = ["clone"]


def clone(program: Program, for_test: bool = False) -> Program:
    """`program` without the ops of its backward pass and without the residuals that loops and branches return for it.

    for_test: set `is_test` in ops that behave differently in training (dropout, batch normalisation).

    Raises ProgramError if the program contains derivatives of such ops, which are those of training: read the document
    again, with `for_test`.
    """
    if for_test and _differentiates_training(program.block):
        raise ProgramError(
            "the program contains derivatives of ops that behave differently in a test: clone the program that the op "
            "`gradients` stands in",
            "bad_query",
        )
    written = frozenset(program.latest.get(v.name, v.name) for v in program.states)
    return replace(program, block=_forward(program.block, for_test, written))


def _forward(block: Block, for_test: bool, kept: Collection[str] = ()) -> Block:
    """kept: variables that are read after the block, in addition to its results."""
    needed = {*block.results, *kept}
    ops: list[Op] = []
    for op in reversed(block.ops):
        backward = op.location is not None and op.location.adjoint
        if backward or (needed.isdisjoint(op.outputs) and all(map(is_reserved, op.outputs))):
            continue
        op = _for_test(_trimmed(op, needed), for_test)
        needed.update(op.inputs)
        ops.append(op)
    ops.reverse()
    named = {*block.params, *(name for op in ops for name in op.outputs)}
    types = {name: type for name, type in block.types.items() if name in named}
    return Block(block.params, tuple(ops), block.results, types, block.stopped & named, block.index)


def _differentiates_training(block: Block) -> bool:
    """Whether `block` has ops of the construct `gradients` and ops that behave differently in a test."""
    ops = [*block.ops, *(op for inner in blocks_inside(block.ops) for op in inner.ops)]
    return any(op.location is not None and op.location.type == "gradients" for op in ops) and any(
        map(_has_test_form, ops)
    )


def _has_test_form(op: Op) -> bool:
    return op.attrs.get("is_test") is False and lookup(op.type).kind != "control"


def _trimmed(op: Op, needed: Collection[str]) -> Op:
    """A control-flow op without its residuals: outputs with reserved names that no forward op reads."""
    roles = roles_of(op)
    if roles is None:
        return op
    keep = [i for i, n in enumerate(op.outputs) if i not in roles.optional or n in needed or not is_reserved(n)]
    blocks = {k: replace(v, results=tuple(v.results[i] for i in keep)) for k, v in inner_blocks(op)}
    return replace(op, outputs=tuple(op.outputs[i] for i in keep), attrs={**op.attrs, **blocks})


def _for_test(op: Op, for_test: bool) -> Op:
    attrs = {k: _forward(v, for_test) if isinstance(v, Block) else v for k, v in op.attrs.items()}
    if for_test and _has_test_form(op):
        attrs["is_test"] = True
    return replace(op, attrs=attrs)
