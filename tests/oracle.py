"""An independent semantics of wire programs: an interpreter with mutable scopes, the model that users of Fluid know.

It shares no code with the reader. It records every op without inner blocks that it executes. The record is the unrolled
program: straight-line, with each name written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from scipy.special import expit

from core.compiler.compile import compile_forward
from core.wire import read
from tests.adjoints import slope

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
    "logical_and": np.logical_and,
    "logical_not": np.logical_not,
    "where": np.where,
    "cast": lambda x, dtype: x.astype(dtype),
    "squeeze": np.squeeze,
    "unsqueeze": np.expand_dims,
    "transpose": lambda x, axis: np.transpose(x, axis),
    "square": np.square,
    "matmul": np.matmul,
    "div": np.divide,
    "gather": lambda x, index, axis: np.take(x, index, axis),
    "concat": lambda *x, axis: np.concatenate(x, axis),
    "assign": np.copy,
    "stop_gradient": np.copy,
    "sqrt": np.sqrt,
    "scale": lambda x, scale, bias: x * scale + bias,
}


class NearKink(Exception):
    """An operand is so close to a kink or a comparison that finite differences would cross it."""


class Scope:
    """Names of one running block. A name that it does not declare refers to the outer block that has it, if any."""

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


class ElementScope(Scope):
    """A block that reads one element of every vector of the outer blocks."""

    def __init__(self, declared: set[str], outer: Scope, unroller: _Unroller, element: int) -> None:
        super().__init__(declared, outer)
        self.unroller, self.element = unroller, element

    def read(self, name: str) -> str:
        cell = super().read(name)
        return cell if name in self.cells else self.unroller.row(cell, self.element)


class _Unroller:
    def __init__(self, document: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        self.blocks = document["blocks"]
        self.functions = document.get("functions", {})
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
            elif op["type"] == "conditional_block":
                taken = bool(self.values[scope.read(op["inputs"]["condition"][0])])
                self.branch([op["attrs"]["sub_block"], None], 0 if taken else 1, scope)
            elif op["type"] == "case":
                default = op["attrs"]["default_block"]
                sides = [*op["attrs"]["branches"], *([] if default is None else [default])]
                flags = [bool(self.values[scope.read(n)]) for n in op["inputs"]["conditions"]]
                self.branch(sides, flags.index(True) if True in flags else len(sides) - 1, scope)
            elif op["type"] == "scan":
                attrs, given, out = op["attrs"], op["inputs"], op["outputs"]
                names = attrs["states"], attrs["states"], attrs["elements"], attrs["outputs"]
                slots = given["initial"], given["sequences"], out["final"], out["stacked"]
                self.recurrence(attrs, names, slots, scope)
            elif op["type"] == "recurrent":
                attrs, given, out = op["attrs"], op["inputs"], op["outputs"]
                names = attrs["ex_states"], attrs["states"], attrs["step_inputs"], attrs["step_outputs"]
                slots = given["initial_states"], given["inputs"], out["final_states"], out["outputs"]
                self.recurrence(attrs, names, slots, scope)
            elif op["type"] == "if_else_rows":
                self.by_rows(op, scope)
            elif op["type"] == "safe_where":
                self.by_elements(op, scope)
            elif op["type"] == "call":
                self.call(op, scope)
            elif op["type"] == "embedding":
                self.embedding(op, scope)
            elif op["type"] == "dropout":
                x = scope.read(op["inputs"]["x"][0])
                scope.write(op["outputs"]["out"][0], self.dropout(x, op["attrs"]))
            elif op["type"] == "gradients":
                (target,) = (scope.read(n) for n in op["inputs"]["targets"])
                inputs = [scope.read(n) for n in op["inputs"]["inputs"]]
                for name, x in zip(op["outputs"]["out"], inputs, strict=True):
                    scope.write(name, slope(self, target, x))
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

    def recurrence(self, attrs: dict[str, Any], names: tuple[list[str], ...], slots: tuple, scope: Scope) -> None:
        """A scan or static RNN. names: of states before and after a step, elements, outputs; slots: their values."""
        inner = self.blocks[attrs["sub_block"]]
        before, after, elements, outputs = names
        initial, sequences, final, stacked = slots
        states = [scope.read(n) for n in initial]
        given = [scope.read(n) for n in sequences]
        steps = list(range(self.values[given[0]].shape[0]))
        left: dict[int, list[str]] = {}
        for step in reversed(steps) if attrs["reverse"] else steps:
            own = Scope({*before, *after, *elements, *(v["name"] for v in inner["vars"])}, scope)
            for name, cell in zip(elements, given, strict=True):
                part = self.row(cell, step)
                own.cells[name] = self.emit("squeeze", [part], self.values[part][0], {"axes": [0]})
            own.cells.update(zip(before, states, strict=True))
            self.run(inner["idx"], own)
            states, left[step] = [own.read(n) for n in after], [own.read(n) for n in outputs]
        for name, cell in zip(final, states, strict=True):
            scope.write(name, cell)
        for i, name in enumerate(stacked):
            scope.write(name, self.stack([left[step][i] for step in steps]))

    def by_rows(self, op: dict[str, Any], scope: Scope) -> None:
        attrs, out = op["attrs"], op["outputs"]["out"][0]
        mask = self.values[scope.read(op["inputs"]["condition"][0])]
        given = [scope.read(n) for n in op["inputs"]["x"]]
        rows: dict[int, str] = {}
        for side, index in ((True, attrs["true_block"]), (False, attrs["false_block"])):
            chosen = [i for i, flag in enumerate(mask) if flag == side]
            if not chosen:
                continue
            own = Scope({*attrs["rows"], *(v["name"] for v in self.blocks[index]["vars"])}, scope)
            for name, cell in zip(attrs["rows"], given, strict=True):
                own.cells[name] = self.joined([self.row(cell, i) for i in chosen])
            self.run(index, own)
            rows |= {i: self.row(own.read(out), place) for place, i in enumerate(chosen)}
        scope.write(out, self.joined([rows[i] for i in range(len(mask))]))

    def by_elements(self, op: dict[str, Any], scope: Scope) -> None:
        attrs, out = op["attrs"], op["outputs"]["out"][0]
        parts = []
        for i, flag in enumerate(self.values[scope.read(op["inputs"]["condition"][0])]):
            index = attrs["true_block"] if flag else attrs["false_block"]
            own = ElementScope({out, *(v["name"] for v in self.blocks[index]["vars"])}, scope, self, i)
            self.run(index, own)
            parts.append(own.cells[out])
        scope.write(out, self.joined(parts))

    def embedding(self, op: dict[str, Any], scope: Scope) -> None:
        table, ids = (scope.read(op["inputs"][slot][0]) for slot in ("weight", "ids"))
        padding, size = op["attrs"].get("padding_idx"), self.values[table].shape[0]
        zeros = {"shape": [1, 2], "value": 0.0, "dtype": "float64"}
        rows = [
            self.emit("fill_constant", [], np.zeros((1, 2)), zeros)
            if padding is not None and (int(i) - padding) % size == 0
            else self.row(table, int(i))
            for i in self.values[ids]
        ]
        none = {"shape": [0, 2], "value": 0.0, "dtype": "float64"}
        out = self.joined(rows) if rows else self.emit("fill_constant", [], np.zeros((0, 2)), none)
        scope.write(op["outputs"]["out"][0], out)

    def call(self, op: dict[str, Any], scope: Scope) -> None:
        """Run the ops of the function; ignore a custom gradient."""
        function = self.functions[op["attrs"]["function"]]
        around, self.blocks = self.blocks, function["program"]["blocks"]
        own = Scope(set(), None)
        feeds = [v["name"] for v in self.blocks[0]["vars"] if v.get("role") == "feed"]
        own.cells.update(zip(feeds, (scope.read(n) for n in op["inputs"]["x"]), strict=True))
        self.run(0, own)
        self.blocks = around
        for name, result in zip(op["outputs"]["out"], function["results"], strict=True):
            scope.write(name, own.read(result))

    def dropout(self, x: str, attrs: dict[str, Any]) -> str:
        mask = drawn(self.values[x].shape, float(attrs["p"]), attrs["seed"], attrs["stream"], int(self.values["key"]))
        shape = list(mask.shape)
        values = {"values": mask.ravel().tolist(), "shape": shape, "dtype": "float64"}
        constant = self.emit("assign_value", [], mask, values)
        out = self.cell()
        self.values[out] = self.values[x] * mask
        self.ops.append({"type": "mul", "inputs": {"x": [x], "y": [constant]}, "outputs": {"out": [out]}, "attrs": {}})
        return out

    def row(self, cell: str, i: int) -> str:
        """Row i as an array of one row."""
        cut = {"axes": [0], "starts": [i], "ends": [i + 1]}
        return self.emit("slice", [cell], self.values[cell][i : i + 1], cut)

    def joined(self, cells: list[str]) -> str:
        return self.emit("concat", cells, np.concatenate([self.values[c] for c in cells]), {"axis": 0})

    def array(self, op: dict[str, Any], scope: Scope) -> None:
        """Arrays are lists of cells; the straight-line program has no array ops."""
        inputs = {slot: scope.read(names[0]) for slot, names in op.get("inputs", {}).items()}
        out = op["outputs"]["out"][0]
        if op["type"] == "array_length":
            number = len(self.arrays[inputs["array"]])
            attrs = {"shape": [], "value": number, "dtype": "int64"}
            scope.write(out, self.emit("fill_constant", [], np.asarray(number), attrs))
        elif op["type"] == "array_stack":
            scope.write(out, self.stack(self.arrays[inputs["array"]]))
        elif op["type"] == "array_concat":
            elements = self.arrays[inputs["array"]]
            scope.write(out, self.joined(elements) if elements else self.none_of(inputs["like"]))
        elif op["type"] == "array_read":
            scope.write(out, self.arrays[inputs["array"]][int(self.values[inputs["index"]])])
        else:
            elements = []
            if op["type"] == "array_write":
                elements, at = list(self.arrays[inputs["array"]]), int(self.values[inputs["index"]])
                elements[at : at + 1] = [inputs["x"]]
            cell = self.cell()
            self.arrays[cell] = elements
            scope.write(out, cell)

    def none_of(self, cell: str) -> str:
        """An array without rows."""
        return self.emit("slice", [cell], self.values[cell][:0], {"axes": [0], "starts": [0], "ends": [0]})

    def stack(self, cells: list[str]) -> str:
        if not cells:
            attrs = {"shape": [0, 2], "value": 0.0, "dtype": "float64"}
            return self.emit("fill_constant", [], np.zeros((0, 2)), attrs)
        return self.emit("stack", cells, np.stack([self.values[c] for c in cells]), {})

    def emit(self, type: str, cells: list[str], value: np.ndarray, attrs: dict[str, Any]) -> str:
        """Record an op with one input slot and the known value of its output."""
        out = self.cell()
        self.values[out] = np.asarray(value)
        self.ops.append(
            {"type": type, "inputs": {"x": cells} if cells else {}, "outputs": {"out": [out]}, "attrs": attrs}
        )
        return out

    def computed(self, type: str, *cells: str, **attrs: Any) -> str:
        """Record an op whose value is computed here."""
        args = [self.values[c] for c in cells]
        if type == "assign_value":
            value = np.array(attrs["values"], attrs["dtype"]).reshape(attrs["shape"])
        elif type == "slice":
            value = args[0][attrs["starts"][0] : attrs["ends"][0]]
        else:
            value = COMPUTE[type](*args, **({"axis": tuple(attrs["axes"])} if "axes" in attrs else attrs))
        if type in ("concat",) or len(cells) < 2:
            return self.emit(type, list(cells), value, attrs)
        out = self.emit(type, [cells[0]], value, attrs)
        self.ops[-1]["inputs"]["y"] = [cells[1]]
        return out

    def defines(self, index: int | None) -> set[str]:
        """Names that a block defines in the outer block on every path through it."""
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
            elif op["type"] == "case":
                sides = (*attrs["branches"], *([] if attrs["default_block"] is None else [attrs["default_block"]]))
                names |= set.intersection(*(self.defines(side) for side in sides))
            elif op["type"] == "net":
                names |= self.defines(attrs["sub_block"])
            elif op["type"] not in ("while", "conditional_block"):
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
        elif op["type"] == "slice":
            result = args[0][attrs["starts"][0] : attrs["ends"][0]]
        else:
            if op["type"] in ("less_than", "maximum") and args[0].dtype.kind == "f" and names[0] != names[1]:
                gap = np.abs(args[0] - args[1])
                if ((gap < 1e-3) & (gap > 0 if op["type"] == "maximum" else True)).any():
                    raise NearKink
            more = {"axis": tuple(attrs["axes"])} if "axes" in attrs else dict(attrs)
            result = COMPUTE[op["type"]](*args, **more)
        out = self.cell()
        self.values[out] = np.asarray(result)
        slots = {slot: [names.pop(0) for _ in listed] for slot, listed in op["inputs"].items()}
        self.ops.append({"type": op["type"], "inputs": slots, "outputs": {"out": [out]}, "attrs": attrs})
        scope.write(op["outputs"]["out"][0], out)


@cache
def drawn(shape: tuple[int, ...], p: float, seed: int, stream: int, key: int) -> np.ndarray:
    """The mask of a dropout: the op's output for ones. The oracle checks the use of the mask, not the draw."""
    leaves = [
        {"name": "x", "dtype": "float64", "shape": list(shape), "role": "feed"},
        {"name": "key", "dtype": "int64", "shape": [], "role": "feed"},
    ]
    attrs = {"p": p, "seed": seed, "stream": stream}
    op = {"type": "dropout", "inputs": {"x": ["x"], "key": ["key"]}, "outputs": {"out": ["y"]}, "attrs": attrs}
    program = read({"blocks": [{"idx": 0, "parent_idx": -1, "vars": leaves, "ops": [op]}]})
    values = {"x": np.ones(shape), "key": np.asarray(key, dtype=np.int64)}
    return np.asarray(compile_forward(program, ["y"]).step(values).fetched["y"])


def unrolled(document: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """The straight-line program of the ops that `document` executes on these values, and its loss.

    Raises NearKink if a small change of the values could change the executed ops.
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
