"""An independent meaning for open programs: an interpreter with mutable scopes, as Fluid's users think of them.

It shares no code with the reader. While it runs it writes down every plain op it executes, which gives the same
program unrolled: straight-line, each name written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import expit

__all__ = ["NearKink", "unrolled"]

COMPUTE = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "sigmoid": expit,
    "softplus": lambda x: np.log1p(np.exp(x)),
    "reduce_sum": np.sum,
    "less_than": np.less,
}


class NearKink(Exception):
    """A comparison was too close to call: finite differences would cross it."""


class Scope:
    """Names of one block while it runs. What a block does not declare and an outer one has is the outer one's."""

    def __init__(self, declared: set[str], outer: Scope | None) -> None:
        self.declared, self.outer = declared, outer
        self.cells: dict[str, str] = {}

    def holder(self, name: str) -> Scope | None:
        at: Scope | None = self
        while at is not None:
            if name in at.cells:
                return at
            at = None if name in at.declared else at.outer
        return None

    def read(self, name: str) -> str:
        holder = self.holder(name)
        assert holder is not None, f"{name} has no value"
        return holder.cells[name]

    def write(self, name: str, cell: str) -> None:
        (self.holder(name) or self).cells[name] = cell


class _Unroller:
    def __init__(self, document: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        self.blocks = document["blocks"]
        self.values: dict[str, Any] = dict(values)
        self.ops: list[dict[str, Any]] = []
        self.count = 0

    def cell(self) -> str:
        self.count += 1
        return f"u{self.count}"

    def run(self, index: int, scope: Scope) -> None:
        for op in self.blocks[index]["ops"]:
            if op["type"] == "while":
                inner = self.blocks[op["attrs"]["sub_block"]]
                while bool(self.values[scope.read(op["inputs"]["condition"][0])]):
                    self.run(inner["idx"], Scope({v["name"] for v in inner["vars"]}, scope))
            elif op["type"] == "if_else":
                self.branch(op, scope)
            else:
                self.plain(op, scope)

    def branch(self, op: dict[str, Any], scope: Scope) -> None:
        taken = bool(self.values[scope.read(op["inputs"]["condition"][0])])
        sides = [op["attrs"]["true_block"], op["attrs"]["false_block"]]
        index = sides[0] if taken else sides[1]
        if index is None:
            return
        inner = self.blocks[index]
        own = Scope({v["name"] for v in inner["vars"]}, scope)
        self.run(index, own)
        both = self.defines(sides[0]) & self.defines(sides[1])
        for name in both & set(own.cells):
            scope.cells[name] = own.cells[name]

    def defines(self, index: int | None) -> set[str]:
        """Names that a block surely gives to the block around it, whichever way it goes."""
        if index is None:
            return set()
        block, names = self.blocks[index], set()
        for op in block["ops"]:
            if op["type"] == "if_else":
                names |= self.defines(op["attrs"]["true_block"]) & self.defines(op["attrs"]["false_block"])
            elif op["type"] != "while":
                names |= set(op["outputs"]["out"])
        return names - {v["name"] for v in block["vars"]}

    def plain(self, op: dict[str, Any], scope: Scope) -> None:
        names = [scope.read(n) for slot in op["inputs"].values() for n in slot]
        args = [self.values[n] for n in names]
        attrs = op.get("attrs", {})
        if op["type"] == "fill_constant":
            result: Any = np.full(attrs["shape"], attrs["value"], dtype=attrs["dtype"])
        elif op["type"] == "increment":
            result = args[0] + attrs["step"]
        else:
            if op["type"] in ("less_than", "maximum") and args[0].dtype.kind == "f" and names[0] != names[1]:
                gap = np.abs(args[0] - args[1])
                if ((gap < 1e-3) & (gap > 0 if op["type"] == "maximum" else True)).any():
                    raise NearKink
            result = COMPUTE[op["type"]](*args)
        out = self.cell()
        self.values[out] = np.asarray(result)
        slots = {slot: [names.pop(0)] for slot in op["inputs"]}
        self.ops.append({"type": op["type"], "inputs": slots, "outputs": {"out": [out]}, "attrs": attrs})
        scope.write(op["outputs"]["out"][0], out)


def unrolled(document: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """The straight-line program that `document` amounts to on these values, and its loss.

    Raises NearKink where a small change of the values could change the way it goes.
    """
    root = document["blocks"][0]
    scope = Scope(set(), None)
    for var in root["vars"]:
        scope.cells[var["name"]] = var["name"]
    unroller = _Unroller(document, values)
    unroller.run(0, scope)
    loss = scope.read("loss")
    for op in unroller.ops:
        op["outputs"]["out"] = ["loss" if n == loss else n for n in op["outputs"]["out"]]
    straight = {"blocks": [{"idx": 0, "parent_idx": -1, "vars": root["vars"], "ops": unroller.ops}]}
    return straight, float(unroller.values[loss])
