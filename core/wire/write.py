"""Writing of a program: closed blocks as a JSON document with the client's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.ir import HOLE, OF_FUNCTION, Block, Op, Program, StackType, Type, inner_blocks
from core.ir.attr_values import json_value
from core.ir.errors import Place
from core.ir.exact import exact
from core.ir.names import block_index
from core.ir.recursion import headroom
from core.ir.registry import OpSpec, lookup, roles_of
from core.ir.stop import poll

__all__ = ["write"]


def write(program: Program) -> dict[str, Any]:
    """The JSON document of a program in the closed form: ``read(write(p)) == p``.

    Forward blocks keep the client's indices where these are known. The blocks of the backward pass follow, outer ones
    before inner ones, and each names its forward block.

    Each type is stated once. An inner block declares neither a parameter whose type is that of its operand, nor an
    output of a loop or branch, whose type is that of a result of an inner block. Values that pass through many blocks
    would otherwise be most of the document.
    """
    roles = {v.name: v for v in program.variables}
    with headroom():
        places = _assign_places(program.block)
        inner = sorted((p for p in places.values() if p.index), key=lambda p: p.index)
        blocks = [_root(places, roles), *(_block(place, places) for place in inner)]
    document: dict[str, Any] = {"version": 1, "form": "closed", "blocks": blocks}
    if program.latest:
        document["names"] = dict(program.latest)
    if program.aliases:
        document["aliases"] = dict(program.aliases)
    if program.sizes:
        document["sizes"] = {name: list(sizes) for name, sizes in program.sizes.items()}
    return document


class _Place:
    """The position of a block in the document."""

    def __init__(self, block: Block, index: int, parent: int, forward: int, node: _Node | None) -> None:
        self.block, self.index, self.parent, self.forward, self.node = block, index, parent, forward, node

    @property
    def number(self) -> int:
        return self.node.number if self.node else 0


Slot = tuple[int, int, str]
"""Key of an inner block: the number of the block with its op (0 for the root), the position of the op, the attribute.
An op itself cannot be the key, because a recomputed op occurs in several places."""


@dataclass(frozen=True, slots=True)
class _Node:
    """An inner block before it gets an index. `number` counts inner blocks from 1, outer ones first."""

    number: int
    slot: Slot
    op: Op
    block: Block
    outer: Block


def _assign_places(root: Block) -> dict[Slot | None, _Place]:
    """The place of each block. The key of the root is None."""
    nodes = _inner_nodes(root)
    taken = {0, OF_FUNCTION}
    index_of: dict[int, int] = {0: 0}
    for node in nodes:
        client_index = block_index(node.block)
        if (
            not _is_adjoint(node.op)
            and client_index is not None
            and client_index not in taken
            and client_index <= len(nodes)
        ):
            index_of[node.number] = client_index
            taken.add(client_index)
    free = (n for n in range(len(nodes) + 1) if n not in taken)
    for node in sorted(nodes, key=lambda n: _is_adjoint(n.op)):
        if node.number not in index_of:
            index_of[node.number] = next(free)
    forward_of: dict[tuple[Place, str], int] = {}
    for node in nodes:
        at = node.op.location
        if at is not None and not at.adjoint:
            forward_of.setdefault((at.place, node.slot[2]), index_of[node.number])
    places: dict[Slot | None, _Place] = {None: _Place(root, 0, -1, -1, None)}
    for node in nodes:
        forward = -1
        if _is_adjoint(node.op):
            at = node.op.location
            assert at is not None
            forward = forward_of.get((at.place, node.slot[2]), -1)
        places[node.slot] = _Place(node.block, index_of[node.number], index_of[node.slot[0]], forward, node)
    return places


def _inner_nodes(root: Block) -> list[_Node]:
    """All inner blocks, outer ones first. Iterative, because nesting may be deep."""
    found: list[_Node] = []
    level = [(0, root)]
    while level:
        below: list[tuple[int, Block]] = []
        for number, block in level:
            for position, op in enumerate(block.ops):
                for attr, inner in inner_blocks(op):
                    found.append(_Node(len(found) + 1, (number, position, attr), op, inner, block))
                    below.append((len(found), inner))
        level = below
    return found


def _is_adjoint(op: Op) -> bool:
    return op.location is not None and op.location.adjoint


def _root(places: dict[Slot | None, _Place], roles: dict[str, Any]) -> dict[str, Any]:
    raw = _block(places[None], places)
    for var in raw["vars"]:
        if var["name"] in roles:
            role = roles[var["name"]]
            var["role"] = role.role
            if not role.trainable:
                var["trainable"] = False
    del raw["params"], raw["results"]
    return raw


def _block(place: _Place, places: dict[Slot | None, _Place]) -> dict[str, Any]:
    block = place.block
    out: dict[str, Any] = {"idx": place.index, "parent_idx": place.parent}
    if place.forward >= 0:
        out["forward_block_idx"] = place.forward
    omitted = _stated_elsewhere(place)
    out["params"] = list(block.params)
    out["results"] = list(block.results)
    out["vars"] = [_var(name, type, name in block.stopped) for name, type in block.types.items() if name not in omitted]
    out["ops"] = [_op(op, place, i, places) for i, op in enumerate(block.ops)]
    return out


def _stated_elsewhere(place: _Place) -> set[str]:
    """The variables of an inner block that it need not declare."""
    block, node = place.block, place.node
    if node is None:
        return set()
    found = {n for op in block.ops if roles_of(op) is not None for n in op.outputs}
    if (roles := roles_of(node.op)) is not None:
        given = roles.param_types([node.outer.types[n] for n in node.op.inputs])
        found.update(n for n, type in zip(block.params, given, strict=True) if block.types[n] == type)
    return found - block.stopped


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


def _op(op: Op, place: _Place, position: int, places: dict[Slot | None, _Place]) -> dict[str, Any]:
    poll()
    spec = lookup(op.type)
    out: dict[str, Any] = {"type": op.type}
    if op.inputs:
        out["inputs"] = _inputs(spec, op)
    if spec.variadic_outputs:
        out["outputs"] = {spec.outputs[0]: list(op.outputs)}
    else:
        out["outputs"] = {slot: [name] for slot, name in zip(spec.outputs, op.outputs, strict=True)}
    attrs: dict[str, Any] = {}
    defaults = {a.name: exact(a.default) for a in spec.attrs if not a.required}
    for name, value in op.attrs.items():
        if isinstance(value, Block):
            attrs[name] = places[place.number, position, name].index
        elif name not in defaults or exact(value) != defaults[name]:  # a given -0.0 is not the default 0.0
            attrs[name] = json_value(value)
    if attrs:
        out["attrs"] = attrs
    here = op.location
    if here is not None and (here.adjoint or here.place != (None, place.index, position)):
        member = "backward_of" if here.adjoint else "made_from"
        out[member] = here.as_document()
    return out


def _inputs(spec: OpSpec, op: Op) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for i, slot in enumerate(spec.inputs):
        if slot.variadic:
            out[slot.name] = list(op.inputs[i:])
        elif op.inputs[i] != HOLE:
            out[slot.name] = [op.inputs[i]]
    return out
