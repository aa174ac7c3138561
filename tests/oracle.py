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
    "squeeze": np.squeeze,
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
        self.arrays: dict[str, list[str]] = {}
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
                taken = bool(self.values[scope.read(op["inputs"]["condition"][0])])
                sides = [op["attrs"]["true_block"], op["attrs"]["false_block"]]
                self.branch(sides, 0 if taken else 1, scope)
            elif op["type"] == "switch_case":
                sides = [*op["attrs"]["branches"], op["attrs"]["default_block"]]
                chosen = int(self.values[scope.read(op["inputs"]["index"][0])])
                self.branch(sides, chosen if 0 <= chosen < len(sides) else len(sides) - 1, scope)
            elif op["type"] == "net":
                inner = self.blocks[op["attrs"]["sub_block"]]
                own = Scope({v["name"] for v in inner["vars"]}, scope)
                self.run(inner["idx"], own)
                scope.cells |= {n: c for n, c in own.cells.items() if n not in own.declared}
            elif op["type"] == "scan":
                self.scan(op, scope)
            elif "array" in op["type"]:
                self.array(op, scope)
            else:
                self.plain(op, scope)

    def branch(self, sides: list[int | None], chosen: int, scope: Scope) -> None:
        index = sides[chosen]
        if index is None:
            return
        inner = self.blocks[index]
        own = Scope({v["name"] for v in inner["vars"]}, scope)
        self.run(index, own)
        shared = set.intersection(*(self.defines(side) for side in sides))
        for name in shared & set(own.cells):
            scope.cells[name] = own.cells[name]

    def scan(self, op: dict[str, Any], scope: Scope) -> None:
        attrs = op["attrs"]
        inner = self.blocks[attrs["sub_block"]]
        sequence = scope.read(op["inputs"]["sequences"][0])
        (state_name,), (element,), (output,) = attrs["states"], attrs["elements"], attrs["outputs"]
        state = scope.read(op["inputs"]["initial"][0])
        rows = list(range(self.values[sequence].shape[0]))
        given: dict[int, str] = {}
        for row in reversed(rows) if attrs["reverse"] else rows:
            cut = {"axes": [0], "starts": [row], "ends": [row + 1]}
            part = self.emit("slice", [sequence], self.values[sequence][row : row + 1], cut)
            own = Scope({state_name, element, *(v["name"] for v in inner["vars"])}, scope)
            own.cells[element] = self.emit("squeeze", [part], self.values[sequence][row], {"axes": [0]})
            own.cells[state_name] = state
            self.run(inner["idx"], own)
            state, given[row] = own.cells[state_name], own.cells[output]
        scope.write(op["outputs"]["final"][0], state)
        scope.write(op["outputs"]["stacked"][0], self.stack([given[row] for row in rows]))

    def array(self, op: dict[str, Any], scope: Scope) -> None:
        """Arrays are lists of cells; in the straight-line program there are none."""
        inputs = {slot: scope.read(names[0]) for slot, names in op.get("inputs", {}).items()}
        out = op["outputs"]["out"][0]
        if op["type"] == "array_stack":
            scope.write(out, self.stack(self.arrays[inputs["array"]]))
        elif op["type"] == "array_read":
            scope.write(out, self.arrays[inputs["array"]][int(self.values[inputs["index"]])])
        else:
            elements: list[str] = []
            if op["type"] == "array_write":
                elements, at = list(self.arrays[inputs["array"]]), int(self.values[inputs["index"]])
                elements[at : at + 1] = [inputs["x"]]
            cell = self.cell()
            self.arrays[cell] = elements
            scope.write(out, cell)

    def stack(self, cells: list[str]) -> str:
        if not cells:
            attrs = {"shape": [0, 2], "value": 0.0, "dtype": "float64"}
            return self.emit("fill_constant", [], np.zeros((0, 2)), attrs)
        return self.emit("stack", cells, np.stack([self.values[c] for c in cells]), {})

    def emit(self, type: str, cells: list[str], value: np.ndarray, attrs: dict[str, Any]) -> str:
        """Write down an op with one input slot, whose value is known."""
        out = self.cell()
        self.values[out] = np.asarray(value)
        self.ops.append(
            {"type": type, "inputs": {"x": cells} if cells else {}, "outputs": {"out": [out]}, "attrs": attrs}
        )
        return out

    def defines(self, index: int | None) -> set[str]:
        """Names that a block surely gives to the block around it, whichever way it goes."""
        if index is None:
            return set()
        block, names = self.blocks[index], set()
        for op in block["ops"]:
            attrs = op.get("attrs", {})
            if op["type"] == "if_else":
                names |= self.defines(attrs["true_block"]) & self.defines(attrs["false_block"])
            elif op["type"] == "switch_case":
                sides = (*attrs["branches"], attrs["default_block"])
                names |= set.intersection(*(self.defines(side) for side in sides))
            elif op["type"] == "net":
                names |= self.defines(attrs["sub_block"])
            elif op["type"] != "while":
                names |= {n for listed in op["outputs"].values() for n in listed}
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
            more = {"axis": tuple(attrs["axes"])} if "axes" in attrs else {}
            result = COMPUTE[op["type"]](*args, **more)
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
