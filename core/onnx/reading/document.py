"""The JSON form of a draft: its names, its blocks, and only the ops that a result needs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from core.onnx.reading.draft import Draft, DraftBlock, Written
from core.onnx.reading.values import Label
from core.wire.document import NAME, Limits, is_reserved

__all__ = ["Names", "document"]

_LONGEST = Limits().max_name


class Names:
    """Unique names of variables. A label gets the name that it wishes, or that name with a number."""

    def __init__(self) -> None:
        self._of: dict[int, str] = {}
        self._kept: list[Label] = []
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def of(self, label: Label) -> str:
        found = self._of.get(id(label))
        if found is None:
            found = self._of[id(label)] = self._free(legal(label.hint))
            self._kept.append(label)
            self._taken.add(found)
        return found

    def _free(self, name: str) -> str:
        if name not in self._taken:
            return name
        while True:
            self._next[name] = number = self._next.get(name, 0) + 1
            suffix = f".{number}"
            other = name[: _LONGEST - len(suffix)] + suffix
            if other not in self._taken:
                return other


def legal(name: str) -> str:
    """`name` as a name of a program: characters that it cannot have become underscores."""
    name = name[:_LONGEST]
    if NAME.match(name) and not is_reserved(name):
        return name
    name = "".join(each if each != "@" and NAME.match(f"a{each}") else "_" for each in name)[: _LONGEST - 2]
    return name if NAME.match(name) and not is_reserved(name) else f"n_{name}"


def document(draft: Draft, outputs: Iterable[Label]) -> tuple[dict[str, Any], dict[str, np.ndarray], Names]:
    """The program, its first values by name, and the names of its variables. outputs: the variables to keep."""
    outputs = list(outputs)
    kept = {id(label) for label in outputs}
    kept.update(id(target.label) for _, target in draft.at_end)
    root = _needed(DraftBlock([*draft.constants.ops, *draft.root.ops]), kept)
    names = Names()
    for label, _ in draft.feeds:
        names.of(label)
    read = {id(label) for op in _every(root) for labels in op.inputs.values() for label in labels}
    leaves = [(label, initial) for label, initial in draft.initials if id(label) in read | kept]
    for wanted in (True, False):
        for label in [*(label for label, _ in leaves), *outputs, *_written(root)]:
            if label.wanted == wanted:
                names.of(label)
    vars: list[dict[str, Any]] = [
        {"name": names.of(label), "dtype": type.dtype, "shape": list(type.shape), "role": "feed"}
        for label, type in draft.feeds
    ]
    for label, initial in leaves:
        array = initial.array
        vars.append(
            {"name": names.of(label), "dtype": array.dtype.name, "shape": list(array.shape), "role": initial.role}
        )
    blocks = _blocks(root, names)
    blocks[0]["vars"] = vars
    return {"version": 1, "blocks": blocks}, {names.of(label): each.array for label, each in leaves}, names


def _needed(block: DraftBlock, kept: set[int]) -> DraftBlock:
    """`block` without ops whose results nothing reads. `kept` grows by the variables that the remaining ops read."""
    ops = []
    for op in reversed(block.ops):
        written = [*(label for labels in op.outputs.values() for label in labels), *op.effects]
        if written and not any(id(label) in kept for label in written):
            continue
        attrs = dict(op.attrs)
        for name, value in op.attrs.items():
            if isinstance(value, DraftBlock):
                kept.update(id(label) for label in value.results)
                kept.update(id(label) for label in op.effects)
                attrs[name] = _needed(value, kept)
        kept.update(id(label) for labels in op.inputs.values() for label in labels)
        ops.append(Written(op.type, op.inputs, op.outputs, attrs, op.effects))
    return DraftBlock(ops[::-1], block.results)


def _every(block: DraftBlock) -> Iterable[Written]:
    for op in block.ops:
        yield op
        for value in op.attrs.values():
            if isinstance(value, DraftBlock):
                yield from _every(value)


def _written(block: DraftBlock) -> list[Label]:
    return [label for op in _every(block) for labels in op.outputs.values() for label in labels]


def _blocks(root: DraftBlock, names: Names) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []

    def add(block: DraftBlock, parent: int) -> int:
        index = len(blocks)
        found: dict[str, Any] = {"idx": index, "parent_idx": parent, "ops": []}
        blocks.append(found)
        found["ops"] += [_op(op, index) for op in block.ops]
        return index

    def _op(op: Written, index: int) -> dict[str, Any]:
        found: dict[str, Any] = {"type": op.type}
        if op.inputs:
            found["inputs"] = {slot: [names.of(label) for label in labels] for slot, labels in op.inputs.items()}
        if op.outputs:
            found["outputs"] = {slot: [names.of(label) for label in labels] for slot, labels in op.outputs.items()}
        if op.attrs:
            found["attrs"] = {name: _attr(value, index) for name, value in op.attrs.items()}
        return found

    def _attr(value: Any, index: int) -> Any:
        if isinstance(value, DraftBlock):
            return add(value, index)
        if isinstance(value, Label):
            return names.of(value)
        return [_attr(each, index) for each in value] if isinstance(value, list) else value

    add(root, -1)
    return blocks
