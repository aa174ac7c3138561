"""Statements that choose rows of a group, repeat them, or take them apart."""

from __future__ import annotations

from tests.chosen.parts import ALONE, Group, Parts

__all__ = ["OtherRows"]


class OtherRows(Parts):
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
