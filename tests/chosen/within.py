"""Statements on the rows of one group."""

from __future__ import annotations

from tests.chosen.parts import SEGMENTS, WIDTHS, Group, Parts

__all__ = ["WithinGroup"]

UNARY = ("sin", "tanh", "relu", "sigmoid", "abs", "square", "neg", "assign", "stop_gradient")
BINARY = ("add", "sub", "mul", "maximum", "minimum")


class WithinGroup(Parts):
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
