"""Statements of random programs with matrix products: states and rows times a weight, in short and long loops."""

from __future__ import annotations

from typing import Any

from tests.statements import POOL, Statements

__all__ = ["ROWS", "Products"]

Block = dict[str, Any]
ROWS = 19
"""Rows of the feed `deep`; a loop makes at most as many trips."""


class Products(Statements):
    """The statements of `strategies.Writer` on matrix products."""

    memory: tuple[str, ...]
    max_depth: int
    count: int

    def weight(self, block: Block, visible: set[str]) -> str:
        """A square matrix from two vectors, at times a product that only its transposition reads; its elements are
        bounded."""
        column, row, raw, square, norm, one, out = (self.fresh("tab") for _ in range(7))
        self.op(block, "unsqueeze", column, self.pick(sorted(visible)), axes=[1])
        self.op(block, "unsqueeze", row, self.pick(sorted(visible)), axes=[0])
        self.op(block, "matmul", raw, column, row)
        self.op(block, "square", square, raw)
        self.op(block, "reduce_sum", norm, square)
        self.op(block, "scale", one, norm, scale=1.0, bias=1.0)
        self.op(block, "div", out, raw, one)
        if self.count % 3:
            return out
        product, turned = self.fresh("tab"), self.fresh("tab")
        self.op(block, "matmul", product, out, out)
        self.op(block, "transpose", turned, product, axes=[1, 0])
        return turned

    def times(self, block: Block, name: str, weight: str) -> str:
        """The vector `name` times the matrix."""
        row, product, out = (self.fresh("tab") for _ in range(3))
        self.op(block, "unsqueeze", row, name, axes=[0])
        self.op(block, "matmul", product, row, weight)
        if self.count % 2:
            self.op(block, "squeeze", out, product, axes=[0])
        else:
            turned = self.fresh("tab")
            self.op(block, "transpose", turned, product, axes=[1, 0])
            self.op(block, "squeeze", out, turned, axes=[1])
        return out

    def write_product(self, block: Block, visible: set[str], depth: int) -> None:
        self.mixed_in(block, visible, self.times(block, self.pick(sorted(visible)), self.weight(block, visible)))

    def write_cell(self, block: Block, visible: set[str], depth: int) -> None:
        """A recurrent cell in a `while`: h = tanh(h U + x V), where x is the next row of a feed on each trip."""
        weights = [self.weight(block, visible) for _ in range(2)]
        state = self.pick(POOL)
        if state not in visible:
            self.op(block, "fill_constant", state, shape=[2], value=self.draw.randint(-4, 4) / 8, dtype="float64")
            visible.add(state)
        i, n, go = self.fresh("i"), self.fresh("n"), self.fresh("go")
        long = depth == 0 and self.draw.random() < 0.2
        trips = self.pick((8, 17, ROWS) if long else (0, 1, 2, 3))
        self.op(block, "fill_constant", n, shape=[], value=trips, dtype="int64")
        self.op(block, "fill_constant", i, shape=[], value=0, dtype="int64")
        self.op(block, "less_than", go, i, n)
        inner, inside = self.new_block(block["idx"]), set(visible)
        shadowed = False
        if not long and self.draw.random() < 0.5:
            inside = self.fill(inner, visible, depth + 1)
            shadowed = any(v["name"] == state for v in inner["vars"])
        parts = [self.times(inner, self.pick(sorted(inside)) if shadowed else state, weights[0])]
        if self.draw.random() < 0.7:
            row = self.fresh("tab")
            slots = {"x": ["deep"], "index": [i]}
            inner["ops"].append({"type": "gather", "inputs": slots, "outputs": {"out": [row]}, "attrs": {"axis": 0}})
            parts.append(self.times(inner, row, self.pick(weights)))
        total = parts[0]
        if len(parts) == 2:
            total = self.fresh("tab")
            self.op(inner, self.pick(("add", "mul")), total, *parts)
        self.op(inner, self.pick(("tanh", "sin")), state, total)
        self.op(inner, "increment", i, i, step=1)
        self.op(inner, "less_than", go, i, n)
        attrs = {"sub_block": inner["idx"], "memory": self.pick(self.memory)}
        block["ops"].append({"type": "while", "inputs": {"condition": [go]}, "attrs": attrs})
