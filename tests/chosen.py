"""Random programs on chosen rows: sizes that only the run tells, with loops, branches, functions and sequences.

A value is a matrix whose rows belong to a *group*: all rows, or rows chosen from those of another group by a mask or as
the first of equal ones. Values of one group have the same rows and can be combined. A result of the chosen rows comes
back to the outer group, to segments, or to a scalar.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.programs import Sketch

__all__ = ["Chosen"]


@dataclass(eq=False)
class Group:
    """Rows. at: their positions in the rows of `outer`; masks, labels, vectors: of one element for each row."""

    outer: Group | None = None
    at: str = ""
    masks: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    values: list[tuple[str, int]] = field(default_factory=list)
    """Names and numbers of columns."""


UNARY = ("sin", "tanh", "relu", "sigmoid", "abs", "square", "neg", "assign", "stop_gradient")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
ALONE = ("unary", "binary", "product", "softmax", "gram", "shape", "attention", "order")
"""Statements that need nothing but values."""

SEGMENTS = 3
WIDTHS = (1, 2, 3, 5)


class Chosen:
    """One random program. `sketch` has its document and the values of its inputs; its loss is ``loss``."""

    def __init__(self, seed: int, rows: int, share: float, dtype: str = "float64", most: int = 9) -> None:
        self.draw, self.rng, self.rows, self.dtype = random.Random(seed), np.random.default_rng(seed), rows, dtype
        self.sketch, self.inputs, self.losses = Sketch(), [], []
        self.depth = 0
        s, rng = self.sketch, self.rng
        self.all = Group()
        for name, value in self.data(rng, share).items():
            s.feed(name, value, str(value.dtype))
        self.all.masks, self.all.labels = ["mask0", "mask1"], ["labels", "others"]
        self.lengths, self.yes, self.trips = "lengths", "yes", "trips"
        self.from_, self.until, self.one = "from", "until", "one"
        for name, columns in (("x", self.pick(WIDTHS)), ("z", 3)):
            self.inputs.append(s.param(name, rng.uniform(-1, 1, (rows, columns)), dtype))
            self.all.values.append((name, columns))
        self.weights: dict[tuple[int, ...], str] = {}
        self.table = self.weight(SEGMENTS, 3)
        self.sum = self.number(0.0)
        self.fill(self.all, self.draw.randint(3, most))
        self.finish(self.all)
        s.op("assign", self.sum, out="loss")

    def data(self, rng: np.random.Generator, share: float) -> dict[str, np.ndarray]:
        """The feeds that choose sizes, positions and branches. share: of the true elements of masks."""
        rows = self.rows
        masks = [rng.random(rows) < share for _ in range(2)]
        cuts = np.sort(rng.integers(0, rows + 1, 2))
        return {
            "mask0": masks[0],
            "mask1": masks[1],
            "labels": rng.integers(0, SEGMENTS, rows),
            "others": rng.integers(-SEGMENTS, SEGMENTS, rows),
            "lengths": np.diff(np.concatenate([[0], cuts, [rows]])),
            "yes": np.asarray(rng.random() < 0.5),
            "from": rng.integers(0, 2, 1),
            "until": rng.integers(0, rows + 2, 1),
            "one": np.ones(1, np.int64),
            "trips": np.asarray(rng.integers(0, 4)),
        }

    # --- small parts ---

    def pick(self, of: Any) -> Any:
        return self.draw.choice(list(of))

    def op(self, type: str, *inputs: Any, **attrs: Any) -> Any:
        return self.sketch.op(type, *inputs, **attrs)

    def number(self, value: float) -> str:
        return self.sketch.const(value, dtype=self.dtype)

    def weight(self, *shape: int) -> str:
        if shape not in self.weights:
            name = self.weights[shape] = f"w{len(self.weights)}"
            self.inputs.append(
                self.sketch.param(name, self.rng.uniform(-1, 1, shape) / (shape or (1,))[0] ** 0.5, self.dtype)
            )
        return self.weights[shape]

    def add_loss(self, term: str) -> None:
        self.op("add", self.sum, term, out=self.sum)

    def value(self, g: Group) -> tuple[str, int]:
        return self.pick(g.values[-3:] if self.draw.random() < 0.7 else g.values)

    def keep(self, g: Group, name: str, columns: int) -> None:
        g.values.append((name, columns))

    def with_columns(self, g: Group, columns: int) -> str:
        fitting = [n for n, c in g.values if c == columns]
        if fitting and self.draw.random() < 0.8:
            return self.pick(fitting)
        x, c = self.value(g)
        return self.op("matmul", x, self.weight(c, columns))

    def total(self, g: Group) -> None:
        """A scalar of the rows of a group, into the loss."""
        x, _ = self.value(g)
        kind = self.pick(("sum", "mean", "columns", "max", "entropy", "prod"))
        if kind == "entropy":
            logits = self.with_columns(g, SEGMENTS)
            labels = g.labels[0]
            each = self.op("softmax_with_cross_entropy", logits, self.op("unsqueeze", labels, axes=[1]))
            self.add_loss(self.op(self.pick(("reduce_sum", "reduce_mean")), each))
            return
        if kind == "columns":
            x = self.op("tanh", self.op(self.pick(("reduce_sum", "reduce_mean")), x, axes=[0]))
            self.add_loss(self.op("reduce_sum", x))
            return
        if kind == "max":
            x = self.op(self.pick(("reduce_max", "reduce_min")), x, axes=[1])
            self.add_loss(self.op("reduce_sum", self.op("square", x)))
            return
        if kind == "prod":
            x = self.op("scale", self.op("tanh", x), scale=0.1, bias=1.0)
            self.add_loss(self.op("reduce_sum", self.op("reduce_prod", x, axes=[0])))
            return
        x = self.op(self.pick(("square", "sin")), x)
        self.add_loss(self.op({"sum": "reduce_sum", "mean": "reduce_mean"}[kind], x))

    # --- statements in a group ---

    def fill(self, g: Group, count: int) -> None:
        for _ in range(count):
            names = [n[3:] for n in dir(self) if n.startswith("do_")] + ["choose"] * 4 + ["order"] * 3
            getattr(self, f"do_{self.pick(names)}")(g)

    def finish(self, g: Group) -> None:
        self.total(g)
        if g.outer is None or self.draw.random() < 0.4:
            self.total(g)

    def do_unary(self, g: Group) -> None:
        x, c = self.value(g)
        self.keep(g, self.op(self.pick(UNARY), x), c)

    def do_binary(self, g: Group) -> None:
        x, c = self.value(g)
        kind = self.pick(("same", "row", "column", "scalar", "mean", "weight"))
        if kind == "same":
            y = self.with_columns(g, c)
        elif kind == "row":
            y = self.weight(c)
        elif kind == "weight":
            y = self.weight()
        elif kind == "column":
            y = self.op(
                self.pick(("reduce_sum", "reduce_max", "reduce_mean")), self.value(g)[0], axes=[1], keepdims=True
            )
        elif kind == "mean":
            y = self.op(self.pick(("reduce_sum", "reduce_mean")), x, axes=[0], keepdims=self.draw.random() < 0.5)
            y = self.op("sin", y)
        else:
            y = self.op("reduce_mean", self.op("tanh", self.pick(g.values)[0]))
        self.keep(g, self.op(self.pick(BINARY), *self.pick(([x, y], [y, x]))), c)

    def do_product(self, g: Group) -> None:
        x, c = self.value(g)
        columns = self.pick(WIDTHS)
        out = self.op("matmul", x, self.weight(c, columns))
        if self.draw.random() < 0.5:
            out = self.op("add", out, self.weight(columns))
        self.keep(g, self.op(self.pick(("tanh", "relu", "sin")), out), columns)

    def do_softmax(self, g: Group) -> None:
        x, c = self.value(g)
        self.keep(g, self.op(self.pick(("softmax", "log_softmax")), x, axis=-1), c)

    def do_gram(self, g: Group) -> None:
        """A sum over the rows of the group: x^T y, and rows times it."""
        x, _ = self.value(g)
        y, d = self.value(g)
        gram = self.op("tanh", self.op("matmul", x, y, transpose_x=True))
        self.keep(g, self.op("matmul", x, gram), d)

    def do_attention(self, g: Group) -> None:
        x, c = self.value(g)
        y = self.with_columns(g, c)
        scores = self.op("matmul", x, y, transpose_y=True)
        shares = self.op("softmax", scores) if self.draw.random() < 0.7 else self.op("sin", scores)
        v, d = self.value(g)
        self.keep(g, self.op("tanh", self.op("matmul", shares, v)), d)

    def do_lookup(self, g: Group) -> None:
        kind = self.pick(("gather", "embedding", "one_hot"))
        if kind == "gather":
            self.keep(g, self.op("gather", self.table, self.pick(g.labels)), 3)
        elif kind == "embedding":
            self.keep(g, self.op("embedding", self.table, g.labels[0], is_sparse=self.draw.random() < 0.5), 3)
        else:
            hot = self.op("one_hot", g.labels[0], depth=SEGMENTS, dtype=self.dtype)
            self.keep(g, self.op("matmul", hot, self.table), 3)

    def do_segments(self, g: Group) -> None:
        x, c = self.value(g)
        kind = self.pick(("segment_sum", "segment_mean", "segment_max"))
        per = self.op(kind, x, g.labels[0], num_segments=SEGMENTS)
        self.keep(g, self.op("gather", self.op("tanh", per), g.labels[0]), c)

    def do_mask(self, g: Group) -> None:
        x, _ = self.value(g)
        column = self.op("reduce_sum", x, axes=[1])
        g.masks.append(self.op("greater_than", column, self.number(self.draw.choice((-9.0, 0.0123, 0.4, 9.0)))))

    def do_where(self, g: Group) -> None:
        x, c = self.value(g)
        y = self.with_columns(g, c)
        self.keep(g, self.op("where", self.op("unsqueeze", self.pick(g.masks), axes=[1]), x, y), c)

    def do_shape(self, g: Group) -> None:
        """Other shapes, and back."""
        x, c = self.value(g)
        kind = self.pick(("transpose", "flat", "concat", "slice", "stack", "cumsum", "pad", "split"))
        if kind == "transpose":
            x = self.op("transpose", self.op("sin", self.op("transpose", x)))
        elif kind == "flat":
            x = self.op("reshape", self.op("sin", self.op("reshape", x, shape=[-1])), shape=[-1, c])
        elif kind == "concat":
            y, d = self.value(g)
            x, c = self.op("concat", [x, y], axis=1), c + d
        elif kind == "slice":
            x, c = self.op("slice", x, axes=[1], starts=[c - 1], ends=[c]), 1
        elif kind == "stack":
            x, c = self.op("reduce_sum", self.op("stack", [x, self.with_columns(g, c)], axis=1), axes=[1]), c
        elif kind == "cumsum":
            x = self.op("cumsum", x, axis=self.pick((0, 1)))
        elif kind == "pad":
            x, c = self.op("pad_constant", x, paddings=[0, 0, 1, 0], value=0.5), c + 1
        else:
            y = self.op("concat", [x, x], axis=1)
            a, b = self.op("split", y, num=2, axis=1, out=[f"{y}a", f"{y}b"])
            x = self.op("mul", a, self.op("sin", b))
        if c <= 6:
            self.keep(g, x, c)

    def do_total(self, g: Group) -> None:
        self.total(g)

    def do_rows(self, g: Group) -> None:
        """Ops that combine rows by position."""
        x, c = self.value(g)
        kind = self.pick(("shift", "double", "sort", "first", "flip"))
        if kind == "double":
            both = self.op("concat", [x, self.op("sin", x)], axis=0)
            self.add_loss(self.op("reduce_mean", self.op("square", both)))
        elif kind == "sort":
            order = self.op("argsort", self.op("reduce_sum", x, axes=[1]), axis=0)
            self.keep(g, self.op("gather", x, order), c)
        elif kind == "first":
            some = self.op("slice", x, axes=[0], starts=[0], ends=[2])
            self.add_loss(self.op("reduce_sum", self.op("sin", some)))
        elif kind == "flip":
            self.keep(g, self.op("flip", x, axes=[0]), c)
        else:
            some = self.op("slice", x, axes=[0], starts=[1], ends=[999])
            self.add_loss(self.op("reduce_sum", self.op("sin", some)))

    def do_order(self, g: Group) -> None:
        """The order of the elements of each row, and elements at positions of it."""
        if self.dtype == "bfloat16":  # a rounding makes other elements equal
            return
        x, c = self.value(g)
        axis, out = self.pick((1, -1)), f"ordered{self.sketch.count}"
        kind = self.pick(("sort", "topk", "along", "kth", "median", "best"))
        if kind == "sort":
            self.keep(g, self.op("sort", x, axis=axis, descending=self.draw.random() < 0.5, out=[out, f"{out}i"])[0], c)
        elif kind == "topk":
            k = self.draw.randint(1, c)
            chosen, at = self.op("topk", x, k=k, axis=axis, largest=self.draw.random() < 0.5, out=[out, f"{out}i"])
            self.keep(g, self.op("mul", chosen, self.op("cast", at, dtype=self.dtype)), k)
        elif kind == "along":
            at = self.op("argsort", self.with_columns(g, c), axis=axis)
            self.keep(g, self.op("take_along_axis", self.op("sin", x), at, axis=axis), c)
        elif kind == "kth":
            k = self.draw.randint(1, c)
            one, _ = self.op("kthvalue", x, k=k, axis=axis, keepdims=True, out=[out, f"{out}i"])
            self.keep(g, self.op("mul", x, one), c)
        elif kind == "median":
            self.keep(g, self.op("median", x, axis=axis, keepdims=True), 1)
        else:
            at = self.op(self.pick(("argmax", "argmin")), x, axis=axis, keepdims=True)
            self.keep(g, self.op("take_along_axis", self.op("square", x), at, axis=axis), 1)

    # --- other rows ---

    def do_choose(self, g: Group) -> None:
        if self.depth > 1:
            return
        kinds = ["nonzero", "nonzero", "split", "compress", "select", "into", "where_flat"]
        kind = self.pick(kinds + ["unique"] * (g.outer is None and self.rows > 0))
        x, c = self.value(g)
        mask = self.pick(g.masks)
        if kind == "select":
            every = self.op("masked_select", x, self.op("unsqueeze", mask, axes=[1]))
            self.add_loss(self.op(self.pick(("reduce_sum", "reduce_mean")), self.op("sin", every)))
            return
        if kind == "into":
            source = self.op("masked_select", self.op("sin", x), self.op("unsqueeze", mask, axes=[1]))
            self.keep(g, self.op("masked_scatter", x, self.op("unsqueeze", mask, axes=[1]), source), c)
            return
        if kind == "split":
            self.parts(g, x, c, mask)
            return
        if kind == "unique":
            names = [f"distinct{self.sketch.count}{part}" for part in ("", "_number", "_count")]
            signs = self.op("sign", self.op("reduce_sum", x, axes=[1]))
            at, _, _ = self.op("unique_positions", self.pick([*g.labels, signs]), out=names)
        else:
            at = self.op("reshape", self.op("nonzero", mask), shape=[-1])
        inner = Group(g, at)
        if kind == "where_flat":
            inner.values.append((self.op("compress", x, mask, axis=0), c))
        else:
            inner.values.append((self.op(self.pick(("gather", "index_select")), x, at), c))
            y, d = self.value(g)
            inner.values.append((self.op("gather", y, at), d))
        inner.labels = [self.op("gather", g.labels[0], at)]
        inner.masks = [self.op("gather", self.pick(g.masks), at)]
        self.depth += 1
        self.fill(inner, self.draw.randint(1, 4))
        self.finish(inner)
        self.depth -= 1
        out, d = self.value(inner)
        back = self.with_columns(g, d)
        how = self.pick(("index_add", "index_add", "scatter", "put", "none"))
        if how == "index_add":
            self.keep(g, self.op("index_add", back, at, out), d)
        elif how == "scatter":
            self.keep(g, self.op("scatter", back, at, out, overwrite=self.draw.random() < 0.5), d)
        elif how == "put":
            where = self.op("unsqueeze", at, axes=[1])
            self.keep(g, self.op(self.pick(("scatter_nd_add", "scatter_nd_update")), back, where, out), d)

    def do_repeat(self, g: Group) -> None:
        """Each row as often as data say; the sums of the copies come back."""
        if self.depth > 1:
            return
        x, c = self.value(g)
        times = self.op("abs", self.pick(g.labels))
        at = self.op("repeat_positions", times)
        inner = Group(g, at)
        y, d = self.value(g)
        inner.values = [(self.op("repeat", x, times, axis=0), c), (self.op("gather", y, at), d)]
        inner.labels = [self.op("gather", g.labels[0], at)]
        inner.masks = [self.op("gather", self.pick(g.masks), at)]
        self.depth += 1
        self.fill(inner, self.draw.randint(1, 3))
        self.finish(inner)
        self.depth -= 1
        out, d = self.value(inner)
        if self.draw.random() < 0.7:
            self.keep(g, self.op("index_add", self.with_columns(g, d), at, out), d)

    def do_array(self, g: Group) -> None:
        """Rows as the elements of an array, and back."""
        x, c = self.value(g)
        self.sketch.count += 1
        array = f"array{self.sketch.count}"
        kind = self.pick(("stack", "concat", "split", "append"))
        if kind in ("concat", "split"):
            x = self.op("unsqueeze", x, axes=[1])
        self.op("array_unstack", x, out=array)
        like = self.op("fill_constant", shape=[0, c], value=0.0, dtype=self.dtype)
        if kind == "stack":
            self.keep(g, self.op("array_stack", array), c)
        elif kind == "append":
            row = self.op("reduce_sum", x, axes=[0])
            self.op("array_write", row, self.op("array_length", array), array, out=array)
            longer = self.op("array_stack", array)
            self.add_loss(self.op("reduce_mean", self.op("sin", longer)))
        else:
            rows = self.op("array_concat", array, like)
            if kind == "split":
                self.op("array_split_as", self.op("sin", rows), array, out=f"{array}s")
                rows = self.op("array_concat", f"{array}s", like)
            self.keep(g, rows, c)

    def parts(self, g: Group, x: str, c: int, mask: str) -> None:
        sides = []
        d = c
        columns = self.pick((c, c, 2))
        for name in self.op(
            "split_by_mask", x, mask, out=[f"{x}_yes{self.sketch.count}", f"{x}_no{self.sketch.count}"]
        ):
            inner = Group(g, "")
            inner.values = [(name, c)]
            self.depth += 1
            for _ in range(self.draw.randint(0, 3)):
                kind = self.pick((*ALONE, "total"))
                getattr(self, f"do_{kind}")(inner) if kind != "total" else self.add_loss(
                    self.op("reduce_sum", self.op("sin", self.value(inner)[0]))
                )
            self.depth -= 1
            sides.append(self.with_columns(inner, columns))
        d = columns
        self.keep(g, self.op("merge_by_mask", mask, *sides), d)

    # --- control ---

    def do_loop(self, g: Group) -> None:
        if self.depth > 1:
            return
        x, c = self.value(g)
        h = self.op("assign", x)
        self.depth += 1
        trips = self.trips if self.draw.random() < 0.5 else self.draw.randint(0, 3)
        with self.sketch.repeat(trips), self.inner(g) as inside:
            inside.values.append((h, c))
            self.fill(inside, self.draw.randint(1, 3))
            if self.draw.random() < 0.3:
                self.do_product(inside)
                self.do_sections(inside)
            self.op("tanh", self.with_columns(inside, c), out=h)
        self.depth -= 1
        self.keep(g, h, c)

    @contextmanager
    def inner(self, g: Group) -> Iterator[Group]:
        """A copy of a group whose names are known only inside a block."""
        yield Group(g.outer, g.at, list(g.masks), list(g.labels), list(g.values))

    def do_branch(self, g: Group) -> None:
        if self.depth > 1:
            return
        x, c = self.value(g)
        h = self.op("assign", x)
        self.depth += 1
        sides = []
        for _ in range(2):
            with self.sketch.block() as side, self.inner(g) as inside:
                self.fill(inside, self.draw.randint(1, 2))
                self.op("sin", self.with_columns(inside, c), out=h)
            sides.append(side)
        attrs = {"true_block": sides[0], "false_block": sides[1]}
        self.sketch.raw({"type": "if_else", "inputs": {"condition": [self.yes]}, "attrs": attrs})
        self.depth -= 1
        self.keep(g, h, c)

    def do_each_row(self, g: Group) -> None:
        """`if_else_rows`: other ops for the rows where the mask is true."""
        if self.depth > 1:
            return
        x, c = self.value(g)
        self.sketch.count += 1
        row, out = f"r{self.sketch.count}", f"t{self.sketch.count}"
        blocks = []
        self.depth += 1
        for _ in range(2):
            with self.sketch.block() as side:
                inner = Group(g)
                inner.values.append((row, c))
                for _ in range(self.draw.randint(0, 2)):
                    getattr(self, f"do_{self.pick(ALONE)}")(inner)
                self.op("sin", self.with_columns(inner, c), out=out)
            blocks.append(side)
        self.depth -= 1
        attrs = {"true_block": blocks[0], "false_block": blocks[1], "rows": [row]}
        slots = {"condition": [self.pick(g.masks)], "x": [x]}
        self.sketch.raw({"type": "if_else_rows", "inputs": slots, "outputs": {"out": [out]}, "attrs": attrs})
        self.keep(g, out, c)

    def do_scan(self, g: Group) -> None:
        """A scan over the rows."""
        if self.depth > 1 or (g.outer is None and not self.rows):
            return
        x, c = self.value(g)
        first = self.op("reduce_mean", self.op("tanh", x), axes=[0])
        self.sketch.count += 1
        state, row, out, last, every = (f"{n}{self.sketch.count}" for n in ("s", "e", "o", "l", "a"))
        with self.sketch.block() as body:
            mixed = self.op("matmul", self.op("unsqueeze", state, axes=[0]), self.weight(c, c))
            read = row
            if self.draw.random() < 0.5:  # a product that several trips share
                read = self.op("matmul", self.op("unsqueeze", row, axes=[0]), self.weight(c, c))
                read = self.op("squeeze", read, axes=[0])
            self.op("tanh", self.op("add", self.op("squeeze", mixed, axes=[0]), read), out=state)
            self.op("mul", state, row, out=out)
        attrs = {"sub_block": body, "states": [state], "elements": [row], "outputs": [out]}
        attrs["reverse"] = self.draw.random() < 0.4
        slots = {"initial": [first], "sequences": [x]}
        outputs = {"final": [last], "stacked": [every]}
        self.sketch.raw({"type": "scan", "inputs": slots, "outputs": outputs, "attrs": attrs})
        self.add_loss(self.op("reduce_sum", last))
        self.keep(g, every, c)

    def do_narrowing(self, g: Group) -> None:
        """A loop whose carried rows get fewer: in each trip, in a loop inside, or on one side of a branch."""
        if self.depth > 1:
            return
        x, c = self.value(g)
        h = self.op("assign", x)
        counted = self.op("assign", self.pick(g.labels))
        where = self.pick(("trip", "trip", "loop", "branch"))
        with self.sketch.repeat(self.pick((0, 1, 2, 3, self.trips))):
            if where == "loop":
                with self.sketch.repeat(self.draw.randint(0, 2)):
                    self.narrow(h, c, counted)
            elif where == "branch":
                sides = []
                for narrows in (True, False):
                    with self.sketch.block() as side:
                        self.narrow(h, c, counted) if narrows else self.op("sin", h, out=h)
                    sides.append(side)
                attrs = {"true_block": sides[0], "false_block": sides[1]}
                self.sketch.raw({"type": "if_else", "inputs": {"condition": [self.yes]}, "attrs": attrs})
            else:
                self.narrow(h, c, counted)
            if self.draw.random() < 0.5:
                self.add_loss(self.op("reduce_sum", self.op("sin", h)))
        self.add_loss(self.op("reduce_sum", self.op("square", h)))
        self.add_loss(self.op("reduce_sum", self.op("cast", counted, dtype=self.dtype)))

    def narrow(self, h: str, c: int, counted: str) -> None:
        """Choose some rows of h, and the same elements of `counted`."""
        column = self.op("reduce_sum", h, axes=[1])
        mask = self.op("greater_than", column, self.number(self.pick((-0.7, 0.1, 9.0))))
        at = self.op("reshape", self.op("nonzero", mask), shape=[-1])
        kept = self.op("gather", h, at)
        self.op("sin", self.op("matmul", kept, self.weight(c, c)), out=h)
        self.op("gather", counted, at, out=counted)

    def do_sections(self, g: Group) -> None:
        """An array of sections of rows, as many rows each as there are of a label; a loop changes some of them."""
        if self.depth > 1:
            return
        x, c = self.value(g)
        hot = self.op("one_hot", g.labels[0], depth=SEGMENTS, dtype="int64")
        counts = self.op("reduce_sum", hot, axes=[0])
        self.sketch.count += 1
        array, i = f"sections{self.sketch.count}", f"at{self.sketch.count}"
        within = [self.op("sin", x)] if self.draw.random() < 0.5 else []
        self.op("array_cut", x, counts, *within, out=array)
        how = self.pick(("none", "change", "change", "collect", "grow", "split"))
        if how in ("change", "collect", "grow"):
            made = f"{array}_made"
            if how == "grow":
                self.op("create_array", shape=[-1, c], dtype=self.dtype, out=made)
            else:
                self.op("assign", array, out=made)
            source = made if how == "change" else array
            self.sketch.const(0, dtype="int64", out=i)
            trips = SEGMENTS if how == "grow" else self.pick((1, SEGMENTS))
            self.depth += 1
            with self.sketch.repeat(trips):
                if self.draw.random() < 0.3:
                    sides = []
                    for _ in range(2):
                        with self.sketch.block() as side:
                            self.section(g, source, i, made, c)
                        sides.append(side)
                    attrs = {"true_block": sides[0], "false_block": sides[1]}
                    self.sketch.raw({"type": "if_else", "inputs": {"condition": [self.yes]}, "attrs": attrs})
                else:
                    self.section(g, source, i, made, c)
                self.op("increment", i, out=i, step=1)
            self.depth -= 1
            array = made
        elif how == "split":
            self.op("array_split_as", self.op("sin", x), array, out=f"{array}_like")
            array = f"{array}_like"
        if self.draw.random() < 0.3:
            one = self.op("array_read", array, self.sketch.const(self.pick((0, 2)), dtype="int64"))
            self.add_loss(self.op("reduce_sum", self.op("square", one)))
        if self.draw.random() < 0.7:
            rows = self.op("array_paste", array, self.with_columns(g, c))
        else:
            empty = self.op("fill_constant", shape=[0, c], value=0.0, dtype=self.dtype)
            rows = self.op("array_concat", array, *self.pick(([], [empty])))
            self.add_loss(self.op("reduce_mean", self.op("sin", rows)))
            return
        self.keep(g, rows, c)

    def section(self, g: Group, source: str, i: str, made: str, c: int) -> None:
        """Read a section, compute with its rows, and write as many rows."""
        inner = Group(g)
        inner.values = [(self.op("array_read", source, i), c)]
        for _ in range(self.draw.randint(0, 2)):
            getattr(self, f"do_{self.pick(ALONE)}")(inner)
        if self.draw.random() < 0.3:
            self.add_loss(self.op("reduce_sum", self.op("sin", self.value(inner)[0])))
        self.op("array_write", self.op("tanh", self.with_columns(inner, c)), i, made, out=made)

    def do_steps(self, g: Group) -> None:
        """A recurrent network over sequences of different lengths: the longest ones are the first rows."""
        if self.depth or g.outer is not None:
            return
        x, c = self.value(g)
        d = self.pick(WIDTHS)
        self.sketch.count += 1
        steps, t, h, made = (f"{n}{self.sketch.count}" for n in ("steps", "t", "h", "made"))
        self.op("sequence_to_array", x, self.lengths, out=steps)
        self.sketch.const(0.1, [3, d], dtype=self.dtype, out=h)
        self.sketch.const(0, dtype="int64", out=t)
        self.op("create_array", shape=[-1, d], dtype=self.dtype, out=made)
        longest = self.op("array_length", steps)
        with self.sketch.repeat(longest):
            self.op("shrink_rnn_memory", h, self.lengths, t, out=h)
            row = self.op("matmul", self.op("array_read", steps, t), self.weight(c, d))
            self.op("tanh", self.op("add", self.op("matmul", h, self.weight(d, d)), row), out=h)
            self.op("array_write", h, t, made, out=made)
            if self.draw.random() < 0.3:
                self.add_loss(self.op("reduce_mean", self.op("square", h)))
            self.op("increment", t, out=t, step=1)
        self.keep(g, self.op("array_to_sequence", made, self.lengths, x), d)

    def do_function(self, g: Group) -> None:
        """A function of rows of any number."""
        x, c = self.value(g)
        self.sketch.count += 1
        name, out = f"f{self.sketch.count}", f"t{self.sketch.count}"
        rows = [-1, c] if self.draw.random() < 0.7 or g.outer else [self.rows, c]
        var = {"name": "p", "shape": rows, "dtype": self.dtype, "role": "feed"}
        ops = [
            {"type": "sin", "inputs": {"x": ["p"]}, "outputs": {"out": ["a"]}, "attrs": {}},
            {
                "type": "reduce_mean",
                "inputs": {"x": ["a"]},
                "outputs": {"out": ["m"]},
                "attrs": {"axes": [0], "keepdims": True},
            },
            {"type": "sub", "inputs": {"x": ["a"], "y": ["m"]}, "outputs": {"out": ["y"]}, "attrs": {}},
        ]
        block = {"idx": 0, "parent_idx": -1, "vars": [var], "ops": ops}
        self.sketch.functions[name] = {"program": {"blocks": [block]}, "results": ["y"]}
        self.sketch.raw({"type": "call", "inputs": {"x": [x]}, "outputs": {"out": [out]}, "attrs": {"function": name}})
        self.keep(g, out, c)

    # --- sequences and sizes from data, of all rows ---

    def do_sequence(self, g: Group) -> None:
        if g.outer is not None:
            return
        x, c = self.value(g)
        n = self.lengths
        kind = self.pick(("pool", "softmax", "reverse", "expand", "pad", "conv", "concat", "mask", "slice"))
        if kind == "pool":
            how = self.pick(("sum", "mean", "sqrt", "max", "first", "last"))
            per = self.op("tanh", self.op("sequence_pool", x, n, pool_type=how))
            self.keep(g, self.op("sequence_expand", per, n), c)
        elif kind in ("softmax", "reverse"):
            self.keep(g, self.op(f"sequence_{kind}", x, n), c)
        elif kind == "expand":
            times = self.op(
                "cast",
                self.op("greater_than", n, self.op("fill_constant", shape=[], value=1, dtype="int64")),
                dtype="int64",
            )
            longer = self.op("sequence_expand", x, times, n)
            self.add_loss(self.op("reduce_sum", self.op("sin", longer)))
        elif kind == "pad":
            width = self.pick((-1, self.rows))
            padded = self.op("sequence_pad", x, n, pad_value=0.25, padded_length=width)
            self.keep(g, self.op("sequence_unpad", self.op("sin", padded), n), c)
        elif kind == "conv":
            self.keep(g, self.op("sequence_conv", x, n, self.weight(3 * c, 2), context_length=3), 2)
        elif kind == "concat":
            both, more = self.op(
                "sequence_concat",
                x,
                n,
                self.op("sin", x),
                n,
                out=[f"{x}c{self.sketch.count}", f"{x}n{self.sketch.count}"],
            )
            pooled = self.op("sequence_pool", both, more, pool_type="sum")
            self.add_loss(self.op("reduce_sum", self.op("sin", pooled)))
        elif kind == "mask":
            m = self.op("sequence_mask", n, maxlen=self.pick((-1, 3)), dtype=self.dtype)
            self.add_loss(self.op("mul", self.op("reduce_mean", x), self.op("reduce_sum", m)))
        else:
            some = self.op(
                "cast",
                self.op("greater_than", n, self.op("fill_constant", shape=[], value=1, dtype="int64")),
                dtype="int64",
            )
            cut, left = self.op(
                "sequence_slice", x, n, some, some, out=[f"{x}s{self.sketch.count}", f"{x}l{self.sketch.count}"]
            )
            self.add_loss(self.op("reduce_sum", self.op("sin", self.op("sequence_pool", cut, left, pool_type="sum"))))

    def do_by_data(self, g: Group) -> None:
        x, c = self.value(g)
        kind = self.pick(("slice", "select", "route", "reshape", "fill", "search", "expand", "range"))
        if kind == "slice":
            part = self.op("dynamic_slice", x, self.from_, self.until, self.one, axes=[0], shape=[-1, c])
            self.add_loss(self.op("reduce_sum", self.op("sin", part)))
        elif kind == "select":
            which = self.op("cast", self.yes, dtype="int64")
            self.keep(g, self.op("select_input", which, [x, self.with_columns(g, c)]), c)
        elif kind == "route":
            which = self.op("cast", self.yes, dtype="int64")
            a, b = self.op(
                "select_output", which, x, [x, x], out=[f"{x}a{self.sketch.count}", f"{x}b{self.sketch.count}"]
            )
            self.keep(g, self.op("sub", self.op("sin", a), b), c)
        elif kind == "reshape":
            sizes = self.op("shape", x)
            self.keep(g, self.op("dynamic_reshape", self.op("reshape", x, shape=[-1]), sizes, shape=[-1, c]), c)
        elif kind == "fill":
            sizes = self.op("shape", x)
            y = self.op("dynamic_fill", sizes, shape=[-1, c], value=0.5, dtype=self.dtype)
            self.add_loss(self.op("mul", self.op("reduce_mean", y), self.op("reduce_sum", x)))
        elif kind == "expand":
            sizes = self.op("concat", [self.until, self.one], axis=0)
            row = self.op("reduce_mean", x, axes=[0], keepdims=True)
            y = self.op("dynamic_expand", row, sizes, shape=[-1, c])
            self.add_loss(self.op("reduce_sum", self.op("sin", y)))
        elif kind == "range":
            ends = [self.op("reshape", each, shape=[]) for each in (self.from_, self.until, self.one)]
            numbers = self.op("cast", self.op("dynamic_range", *ends), dtype=self.dtype)
            self.add_loss(self.op("mul", self.op("reduce_sum", numbers), self.op("reduce_mean", self.op("tanh", x))))
        else:
            marks = self.op("fill_constant", shape=[2], value=0.1, dtype=self.dtype)
            at = self.op("searchsorted", marks, self.op("reduce_sum", x, axes=[1]))
            self.keep(g, self.op("gather", self.table, at), 3)
