"""Blocks written by hand, op by op, with names that stay readable when they are printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value

__all__ = ["Writer", "printed"]


class Writer:
    """A block under construction. `op` names the output itself, so that printed blocks need no generated names."""

    def __init__(self, **params: str | tuple[int, ...]) -> None:
        """params: name -> shape of float64, or the dtype of a single number."""
        self.b = BlockBuilder()
        for name, given in params.items():
            type = TensorType((), given) if isinstance(given, str) else TensorType(given, "float64")
            self.b.param(type, name)

    def op(self, out: str, type: str, *inputs: str, **attrs: Any) -> Value:
        """Append ``out = type(*inputs, **attrs)``; several outputs are separated by blanks."""
        op = self.b.make(type, *map(self.b.value, inputs), **attrs)
        return self.b.append(replace(op, outputs=tuple(out.split())))[0]

    def block(self, results: str) -> Block:
        """The block with these results, separated by blanks."""
        return self.b.build(results.split())


def printed(text: str) -> str:
    """An expected print, without the indentation that it has in the test."""
    lines = text.strip("\n").splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n".join(line[indent:] for line in lines).rstrip()
