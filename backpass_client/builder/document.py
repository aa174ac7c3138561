"""A program under construction as the JSON document of the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backpass_client.builder.blocks import Block, Leaf, Op, Ref
from backpass_client.builder.build import Builder
from backpass_client.builder.calls import Instance

__all__ = ["document_of", "numbered"]


def numbered(root: Block) -> list[Block]:
    """All blocks, each before those inside of it: the number of a block is its place."""
    found = [root]
    for op in root.ops:
        for inner in op.inner():
            found += numbered(inner)
    return found


def document_of(builder: Builder) -> dict[str, Any]:
    """The program document of what `builder` has recorded."""
    blocks = numbered(builder.root)
    index = {id(block): i for i, block in enumerate(blocks)}
    document: dict[str, Any] = {"blocks": [_block(block, index, builder.leaves) for block in blocks]}
    if builder.functions:
        document["functions"] = {name: _function(each) for name, each in builder.functions.items()}
    if not builder.is_function and (sizes := _sizes(builder.leaves)):
        document["sizes"] = sizes
    return document


def _sizes(leaves: Mapping[str, Leaf]) -> dict[str, list[str | None]]:
    """Feed -> the names of its open sizes."""
    named = {
        leaf.ref.name.text: [size if isinstance(size, str) else None for size in leaf.ref.type.dims]
        for leaf in leaves.values()
        if leaf.role == "feed"
    }
    return {name: sizes for name, sizes in named.items() if any(sizes)}


def _function(instance: Instance) -> dict[str, Any]:
    results = [None if each is None else each.name.text for each in instance.results]
    written: dict[str, Any] = {"program": document_of(instance.builder), "results": results}
    return written if instance.gradient is None else written | {"gradient": instance.gradient}


def _block(block: Block, index: Mapping[int, int], leaves: Mapping[str, Leaf]) -> dict[str, Any]:
    declared = [_leaf(leaf) for leaf in leaves.values()] if block.parent is None else []
    declared += [_variable(ref) for ref in block.declared]
    return {
        "idx": index[id(block)],
        "parent_idx": -1 if block.parent is None else index[id(block.parent)],
        "vars": declared,
        "ops": [_op(op, index) for op in block.ops],
    }


def _variable(ref: Ref) -> dict[str, Any]:
    return {"name": ref.name.text, "dtype": ref.type.dtype, "shape": ref.type.wire_shape}


def _leaf(leaf: Leaf) -> dict[str, Any]:
    written = _variable(leaf.ref) | {"role": leaf.role}
    return written if leaf.trainable else written | {"trainable": False}


def _op(op: Op, index: Mapping[int, int]) -> dict[str, Any]:
    written: dict[str, Any] = {"type": op.type}
    for member, slots in (("inputs", op.inputs), ("outputs", op.outputs)):
        named = {slot: _texts(refs) for slot, refs in slots.items() if refs}
        if named:
            written[member] = named
    attrs = dict(op.attrs)
    attrs |= {name: _texts(refs) for name, refs in op.names.items() if refs}
    for name, inner in op.blocks.items():
        if isinstance(inner, list):
            attrs[name] = [index[id(each)] for each in inner]
        else:
            attrs[name] = None if inner is None else index[id(inner)]
    return written | {"attrs": attrs} if attrs else written


def _texts(refs: Sequence[Ref]) -> list[str]:
    return [ref.name.text for ref in refs]
