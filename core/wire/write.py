"""Closed blocks out as JSON: a legal program again, in the client's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from core.headroom import headroom
from core.ir import HOLE, Block, Op, Program, StackType, Type, inner_blocks
from core.registry import OpSpec, lookup

__all__ = ["write"]


def write(program: Program) -> dict[str, Any]:
    """The JSON document of a program, in the closed form: ``read(write(p)) == p``.

    Forward blocks keep the client's indices where they are known; blocks of the backward pass follow, outer ones
    before inner ones, each naming the forward block it belongs to.
    """
    roles = {v.name: v for v in program.variables}
    with headroom():
        places = _number(program.block)
        inner = sorted((p for p in places.values() if p.index), key=lambda p: p.index)
        blocks = [_root(program, places, roles), *(_block(place, places) for place in inner)]
    document: dict[str, Any] = {"version": 1, "form": "closed", "blocks": blocks}
    if program.latest:
        document["names"] = dict(program.latest)
    return document


class _Place:
    """Where a block stands in the document."""

    def __init__(self, block: Block, index: int, parent: int, forward: int) -> None:
        self.block, self.index, self.parent, self.forward = block, index, parent, forward


Slot = tuple[int, str]
"""Identity of the op that holds a block, and the attribute that holds it."""


def _number(root: Block) -> dict[Slot | None, _Place]:
    """A place for every block; that of the root is under None."""
    nested = list(_nested(root, None))
    taken = {0}
    index_of: dict[Slot, int] = {}
    for op, attr, block, _ in nested:
        wanted = _original_index(block)
        if not _is_adjoint(op) and wanted is not None and wanted not in taken and wanted <= len(nested):
            index_of[id(op), attr] = wanted
            taken.add(wanted)
    free = (n for n in range(len(nested) + 1) if n not in taken)
    for op, attr, _, _ in sorted(nested, key=lambda n: _is_adjoint(n[0])):
        if (id(op), attr) not in index_of:
            index_of[id(op), attr] = next(free)
    forward_of: dict[tuple[int, int, str], int] = {}
    for op, attr, _, _ in nested:
        if op.location is not None and not op.location.adjoint:
            forward_of.setdefault((op.location.block, op.location.op, attr), index_of[id(op), attr])
    places: dict[Slot | None, _Place] = {None: _Place(root, 0, -1, -1)}
    for op, attr, block, owner in nested:
        parent = 0 if owner is None else index_of[owner]
        forward = -1
        if _is_adjoint(op):
            assert op.location is not None
            forward = forward_of.get((op.location.block, op.location.op, attr), -1)
        places[id(op), attr] = _Place(block, index_of[id(op), attr], parent, forward)
    return places


def _nested(block: Block, owner: Slot | None) -> Iterator[tuple[Op, str, Block, Slot | None]]:
    """(op, attribute, block, owner) for every inner block, outer ones first. Iterative: nesting may be deep."""
    level: list[tuple[Block, Slot | None]] = [(block, owner)]
    while level:
        below: list[tuple[Block, Slot | None]] = []
        for each, at in level:
            for op in each.ops:
                for attr, inner in inner_blocks(op):
                    yield op, attr, inner, at
                    below.append((inner, (id(op), attr)))
        level = below


def _original_index(block: Block) -> int | None:
    for op in block.ops:
        if op.location is not None and not op.location.adjoint:
            return op.location.block
    return None


def _is_adjoint(op: Op) -> bool:
    return op.location is not None and op.location.adjoint


def _root(program: Program, places: dict[Slot | None, _Place], roles: dict[str, Any]) -> dict[str, Any]:
    raw = _block(places[None], places)
    for var in raw["vars"]:
        if var["name"] in roles:
            role = roles[var["name"]]
            var["role"] = role.role
            if not role.trainable and role.role == "parameter":
                var["trainable"] = False
    del raw["params"], raw["results"]
    return raw


def _block(place: _Place, places: dict[Slot | None, _Place]) -> dict[str, Any]:
    block = place.block
    out: dict[str, Any] = {"idx": place.index, "parent_idx": place.parent}
    if place.forward >= 0:
        out["forward_block_idx"] = place.forward
    out["params"] = list(block.params)
    out["results"] = list(block.results)
    out["vars"] = [_var(name, type, name in block.stopped) for name, type in block.types.items()]
    out["ops"] = [_op(op, places) for op in block.ops]
    return out


def _var(name: str, type: Type, stopped: bool) -> dict[str, Any]:
    depth = 0
    while isinstance(type, StackType):
        depth, type = depth + 1, type.element
    out: dict[str, Any] = {"name": name, "dtype": type.dtype, "shape": list(type.shape)}
    if depth:
        out["stack_depth"] = depth
    if stopped:
        out["stop_gradient"] = True
    return out


def _op(op: Op, places: dict[Slot | None, _Place]) -> dict[str, Any]:
    spec = lookup(op.type)
    out: dict[str, Any] = {"type": op.type}
    if op.inputs:
        out["inputs"] = _inputs(spec, op)
    if spec.variadic_outputs:
        out["outputs"] = {spec.outputs[0]: list(op.outputs)}
    else:
        out["outputs"] = {slot: [name] for slot, name in zip(spec.outputs, op.outputs, strict=True)}
    attrs: dict[str, Any] = {}
    defaults = {a.name: a.default for a in spec.attrs}
    for name, value in op.attrs.items():
        if isinstance(value, Block):
            attrs[name] = places[id(op), name].index
        elif value != defaults[name]:
            attrs[name] = list(value) if isinstance(value, tuple) else value
    if attrs:
        out["attrs"] = attrs
    return out


def _inputs(spec: OpSpec, op: Op) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for i, slot in enumerate(spec.inputs):
        if slot.variadic:
            out[slot.name] = list(op.inputs[i:])
        elif op.inputs[i] != HOLE:
            out[slot.name] = [op.inputs[i]]
    return out
