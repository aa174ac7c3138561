"""Single assignment: each definition of a name becomes a variable of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from core.ir import Block, Op, Type
from core.ir.builder import BlockBuilder, Value
from core.wire.records import RawVar
from core.wire.written import Written

__all__ = ["Versions"]


class Versions:
    """A block builder that numbers the definitions of each name.

    A parameter keeps its name, and its later versions are ``x@VER@1``, ``x@VER@2``. For any other name the last version
    keeps the name, and earlier ones are ``x@VER@0`` and so on; this is decided when the block is built.

    index: the client's index of the block. If another block is inlined into this one, as by `net`, that block's own
    variables are named ``x@IN@<its index>``, because they differ from variables of the same name here.

    written: the ops of the block by what they write.
    """

    def __init__(self, index: int | None = None) -> None:
        self.index = index
        self.builder = BlockBuilder()
        self.written = Written(self.builder)
        self.counts: dict[str, int] = {}
        self.leaves: set[str] = set()

    def param(self, name: str, type: Type, stopped: bool) -> Value:
        self.leaves.add(name)
        self.counts[name] = 1
        if stopped:
            self.builder.stopped.add(name)
        return self.builder.param(type, name)

    def new_version(self, name: str, type: Type, declared: RawVar | None) -> str:
        """A variable for the next definition of `name`. `stop_gradient` of the declaration applies to the first
        definition.
        """
        count = self.counts.get(name, 0)
        self.counts[name] = count + 1
        variable = name if count == 0 else f"{name}@VER@{count}"
        self.builder.types[variable] = type
        if count == 0 and declared is not None and declared.stop_gradient:
            self.builder.stopped.add(variable)
        return variable

    def final_names(self) -> dict[str, str]:
        renamed = {}
        for name, count in self.counts.items():
            if count > 1 and name not in self.leaves:
                renamed[name] = f"{name}@VER@0"
                renamed[f"{name}@VER@{count - 1}"] = name
        return renamed

    def build(self, results: Iterable[Value]) -> Block:
        block = replace(self.builder.build(results), index=self.index)
        defined = {*block.params, *(n for op in block.ops for n in op.outputs)}
        types = {n: t for n, t in block.types.items() if n in defined}
        new = self.final_names()
        if not new:
            return replace(block, types=types)

        def named(names: Iterable[str]) -> tuple[str, ...]:
            return tuple([new.get(n, n) for n in names])

        ops = tuple([Op(op.type, named(op.inputs), named(op.outputs), op.attrs, op.location) for op in block.ops])
        return Block(
            block.params,
            ops,
            named(block.results),
            {new.get(n, n): t for n, t in types.items()},
            frozenset(named(block.stopped)),
            block.index,
        )
