"""Statements on all rows: sequences of different lengths, and sizes from data."""

from __future__ import annotations

from tests.chosen.parts import Group, Parts

__all__ = ["Sequences"]


class Sequences(Parts):
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
