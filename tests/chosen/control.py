"""Statements with blocks: loops, branches, scans and functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.chosen.parts import ALONE, SEGMENTS, WIDTHS, Group, Parts

__all__ = ["Control"]


class Control(Parts):
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
