"""The role that each parameter plays, from the slots of the ops that read it.

A parameter is followed through casts, reshapes and slices, into loops, branches and functions, and into the ops that a
composite stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from core.cost.views import VIEWS
from core.ir import HOLE, Block, Op, Program, TensorType, inner_blocks
from core.ir.builder import expansion
from core.ir.registry import lookup, roles_of
from core.ir.slot_roles import Role

__all__ = ["parameter_roles"]

WEAK: Mapping[Role, Role] = {"factor": "scale", "term": "shift"}
"""Operands of products and sums -> the role of a vector there. A role that an op declares itself goes before."""

SAME = VIEWS | {"cast", "scale", "gather"}
"""Ops whose outputs hold elements of their first input, or multiples of them."""

PRODUCTS = frozenset({"matmul", "einsum", "correlate", "correlate_input_adjoint", "correlate_filter_adjoint"})
"""The ops that all others with sums of products, such as addmm and conv2d, are made of."""

Found = dict[str, list[Role | Literal["weight"]]]
"""Leaf -> its roles, in the order of the program; "weight" is an operand of one of the PRODUCTS."""


def parameter_roles(program: Program) -> dict[str, Role]:
    """The roles of parameters and states that have one.

    A matrix that is only multiplied has none, and a state has only roles that an op declares itself. A matrix of one
    row or column that a product reads has none either, though sums may read it too: a network of which all matrices
    are zero has no gradients.
    """
    leaves = {v.name: v.name for v in (*program.parameters, *program.states)}
    vectors = {v.name: v.type.rank for v in program.parameters if _is_vector(v.type)}
    found: Found = {}
    _follow(program.block, leaves, found)
    roles: dict[str, Role] = {}
    for name, each in found.items():
        declared = [role for role in each if role != "weight" and role not in WEAK]
        weak = [WEAK[role] for role in each if role != "weight" and role in WEAK]
        if declared:
            roles[name] = declared[0]
        elif weak and name in vectors and (vectors[name] < 2 or "weight" not in each):
            roles[name] = weak[0]
    return roles


def _is_vector(type: TensorType) -> bool:
    """Whether all axes but one have the size 1: what a bias or a scale of channels looks like."""
    return sum(size != 1 for size in type.shape) <= 1


def _follow(block: Block, leaves: Mapping[str, str], found: Found) -> list[str | None]:
    """Add the roles in `block` to `found`; returns the leaf that each result of the block holds, if it holds one.

    leaves: variable of the block -> the leaf that it holds.
    """
    holds = dict(leaves)
    for op in block.ops:
        read = [holds.get(name) for name in op.inputs]
        if not any(read):
            continue
        if any(True for _ in inner_blocks(op)):
            _into_blocks(op, read, found)
            continue
        spec = lookup(op.type)
        distinct = len({name for name in read if name}) == sum(map(bool, read))  # a square is no scale
        passed = False
        for i, leaf in enumerate(read):
            role = spec.slot(i).role if leaf else None
            if leaf and role and (distinct or role not in WEAK):
                found.setdefault(leaf, []).append(role)
            elif leaf and op.type in PRODUCTS:
                found.setdefault(leaf, []).append("weight")
            elif leaf and op.type in SAME and i == 0:
                holds.update(dict.fromkeys(op.outputs, leaf))
            else:
                passed = passed or bool(leaf)
        if passed and spec.kind == "composite":
            types = tuple(None if name == HOLE else block.types[name] for name in op.inputs)
            inner = expansion(spec, types, op.attrs)
            open_leaves = {
                param: leaf
                for i, (param, leaf) in enumerate(zip(inner.params, read, strict=True))
                if leaf and not spec.slot(i).role
            }
            results = _follow(inner, open_leaves, found)
            holds.update({name: leaf for name, leaf in zip(op.outputs, results, strict=True) if leaf})
    return [holds.get(name) for name in block.results]


def _into_blocks(op: Op, read: list[str | None], found: Found) -> None:
    """Follow the operands of a loop, branch or call into its blocks."""
    roles = roles_of(op)
    for _, inner in inner_blocks(op):
        if roles is not None:
            params = {inner.params[roles.param(i)]: read[i] for i in roles.passed}
        elif len(inner.params) == len(read):
            params = dict(zip(inner.params, read, strict=True))
        else:
            continue  # the gradient of a function
        _follow(inner, {name: leaf for name, leaf in params.items() if leaf}, found)
