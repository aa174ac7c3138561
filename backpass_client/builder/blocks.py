"""The records of a program under construction: names, ops and blocks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backpass_client.builder.types import Type

__all__ = ["Block", "Leaf", "Name", "Op", "Ref", "line_of_caller", "origin_of_unknown"]

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(slots=True, eq=False)
class Name:
    """The name of a variable. All versions of a variable share one object, so that it can be renamed.

    fixed: whether the user chose it.
    same:  another name that this variable has now: branches write their results under one name.
    """

    text: str
    fixed: bool = False
    same: Name | None = None


class Ref:
    """One version of a variable. ref: its name and type, and the block that it belongs to."""

    name: Name
    type: Type
    block: Block


@dataclass(slots=True, eq=False)
class Op:
    """One op. blocks: attribute -> an inner block, a list of them, or None. names: attribute -> local names.

    line: the place in the user's Python code, "file:line".
    """

    type: str
    inputs: Mapping[str, Sequence[Ref]]
    outputs: Mapping[str, Sequence[Ref]]
    attrs: dict[str, Any] = field(default_factory=dict)
    blocks: Mapping[str, Block | list[Block] | None] = field(default_factory=dict)
    names: Mapping[str, Sequence[Ref]] = field(default_factory=dict)
    line: str = ""

    def inner(self) -> Iterator[Block]:
        for each in self.blocks.values():
            if isinstance(each, list):
                yield from each
            elif each is not None:
                yield each


@dataclass(slots=True, eq=False)
class Block:
    """A list of ops. title: the block's purpose, for errors. declared: symbols whose type the service checks."""

    parent: Block | None
    title: str
    ops: list[Op] = field(default_factory=list)
    declared: list[Ref] = field(default_factory=list)

    def is_inside(self, other: Block) -> bool:
        """Whether this is `other`, or a block inside of it."""
        at: Block | None = self
        while at is not None:
            if at is other:
                return True
            at = at.parent
        return False


@dataclass(slots=True, eq=False)
class Leaf:
    """A feed, parameter or state. initializer: how a session draws it. value: its first value."""

    ref: Ref
    role: str
    trainable: bool = True
    initializer: Mapping[str, Any] | None = None
    value: Any = None
    line: str = ""


def origin_of_unknown(root: Block, ref: Ref, has_rule: Callable[[str], bool]) -> tuple[Ref, Op] | None:
    """The result at which the type of `ref` was lost, and its op; None if no op wrote `ref`.

    root:     the outermost block of the program.
    has_rule: whether the client can infer the results of an op from its operands.
    """
    writers = {out.name: (out, op) for op in _ops(root) for refs in op.outputs.values() for out in refs}
    found, seen = writers.get(ref.name), {ref.name}
    while found is not None:
        operands = [x for refs in found[1].inputs.values() for x in refs if not x.type.is_known and x.name not in seen]
        before = next((writers[x.name] for x in operands if x.name in writers), None)
        if before is None or not has_rule(found[1].type):
            return found
        found = before
        seen.add(found[0].name)
    return None


def _ops(block: Block) -> Iterator[Op]:
    for op in block.ops:
        yield op
        for inner in op.inner():
            yield from _ops(inner)


def line_of_caller() -> str:
    """The innermost line outside of this package, as "file:line"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
