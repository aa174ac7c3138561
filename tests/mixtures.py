"""Random blocks that mix attention, lookups, losses over labels, recurrent cells, convolutions, small products and
scores of rows of tables.

Every statement takes states [batch, time, width] and adds one, so any statement may follow any other one, also inside
the body of a loop over time (where time is 1).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from core.ops.common.types import as_dtype

__all__ = ["POLICIES", "Mixture", "mixture"]

POLICIES = ("store", "recompute", "sqrt", "binomial")
NODES, CLASSES = 7, 21


class Mixture:
    """A block under construction.

    values: operands for its parameters; wrt: names of those that have gradients.
    pool:   states; kept: further results.
    depth:  of loops around this block.
    scored: whether states are compared with rows of tables, too.
    rare, last, newest: draws of forms that were added later, so that the mixtures of old seeds keep their shapes.
    """

    def __init__(self, draw: random.Random, dtype: str, scored: bool = False) -> None:
        self.draw, self.dtype, self.scored = draw, dtype, scored
        self.rare = random.Random(str(draw.getstate()[1][:4]))
        self.last = random.Random(f"{draw.getstate()[1][:4]} last")
        self.newest = random.Random(f"{draw.getstate()[1][:4]} newest")
        self.rng = np.random.default_rng(draw.getrandbits(32))
        self.batch, self.time = draw.choice((1, 2, 2, 3)), draw.choice((1, 2, 5, 11, 19, 33))
        self.width = draw.choice((3, 4, 16, 17, 18, 20, 35, 36) if scored else (2, 4, 6, 16, 17, 18, 24, 34))
        self.b = BlockBuilder()
        self.values: list[np.ndarray] = []
        self.wrt: list[str] = []
        self.pool: list[Value] = []
        self.kept: list[Value] = []
        self.depth = 0

    # --- operands ------------------------------------------------------------------------------------------------

    def given(self, *shape: int, scale: float | None = None) -> Value:
        """A new parameter of the block with a gradient."""
        scale = 1.0 / max(1, shape[-1]) ** 0.5 if scale is None else scale
        value = self.fixed((self.rng.standard_normal(shape) * scale).astype(as_dtype(self.dtype)))
        self.wrt.append(value.name)
        return value

    def fixed(self, value: np.ndarray) -> Value:
        self.values.append(value)
        return self.b.param(TensorType(value.shape, value.dtype.name))

    def one(self) -> Value:
        return self.draw.choice(self.pool[-4:])

    def chance(self, p: float) -> bool:
        return self.draw.random() < p

    def emit(self, type: str, *inputs: Value | None, **attrs: Any) -> Any:
        return self.b.emit(type, *inputs, **attrs)

    def add(self, value: Value) -> None:
        how = self.draw.randrange(5)
        value = {
            0: lambda: self.emit("tanh", value),
            1: lambda: self.emit("tanh", value) + self.one(),
            2: lambda: value * 0.5 + self.one() * 0.5,
            3: lambda: self.emit("layer_norm", value, None, None, begin_norm_axis=2) if self.width > 2 else value,
            4: lambda: self.emit("relu", value) * 0.7,
        }[how]()
        self.pool.append(value)

    @property
    def flat(self) -> tuple[int, int]:
        return (self.batch * self.time, self.width)

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.batch, self.time, self.width)

    # --- statements ----------------------------------------------------------------------------------------------

    def attention(self) -> None:
        q, k, v = self.one(), self.one(), self.one()
        if self.chance(0.3):
            k = v = q
        form = self.draw.choice(("heads", "plain", "single"))
        heads = self.draw.choice([h for h in (1, 2, 3) if self.width % h == 0])
        n, t, d = self.shape
        if form == "heads":
            split = lambda x: self.emit(
                "transpose", self.emit("reshape", x, shape=(n, t, heads, d // heads)), axes=(0, 2, 1, 3)
            )
            q, k, v = split(q), split(k), split(v)
        elif form == "single":
            q, k, v = (self.emit("reshape", x, shape=self.flat) for x in (q, k, v))
        if self.chance(0.5):
            q = q * 0.4
        if self.chance(0.25):
            out = self.emit("scaled_dot_product_attention", q, k, v, causal=self.chance(0.5))
        else:
            if self.chance(0.5):
                scores = self.emit("matmul", q, k, transpose_y=True)
            else:
                axes = (*range(len(k.shape) - 2), len(k.shape) - 1, len(k.shape) - 2)
                scores = self.emit("matmul", q, self.emit("transpose", k, axes=axes))
            scores = self.masked(scores)
            p = self.emit("softmax", scores)
            if self.chance(0.2):
                p = self.emit("exp", self.emit("log_softmax", scores))
            if self.chance(0.3):
                p = self.emit("dropout", p, p=0.3, seed=self.draw.randrange(99))
            out = self.emit("matmul", p, v)
            if self.chance(0.2):
                out = out + self.emit("reduce_max", scores, axes=(-1,), keepdims=True) * 0.1
            if self.chance(0.2):
                out = out + self.emit("logsumexp", scores, axes=(-1,), keepdims=True) * 0.1
            if self.chance(0.2):  # sums over queries
                total = self.emit("reduce_sum", p, axes=(-2,), keepdims=True)
                axes = (*range(len(p.shape) - 2), len(p.shape) - 1, len(p.shape) - 2)
                out = out * self.emit("tanh", self.emit("transpose", total, axes=axes))
            if self.chance(0.15):
                self.kept.append(p)
            if self.chance(0.2):
                out = out + self.emit("matmul", p, self.emit("tanh", out))
            if self.chance(0.2):
                out = out + self.emit("matmul", p, q, transpose_x=True)
        if form == "heads":
            out = self.emit("transpose", out, axes=(0, 2, 1, 3))
        self.add(self.emit("reshape", out, shape=self.shape))

    def masked(self, scores: Value) -> Value:
        t = scores.shape[-1]
        how = self.draw.randrange(6)
        low = self.b.constant(-1e4, self.dtype)
        if how == 0:
            shape = (*scores.shape[:-2], 1, t) if self.chance(0.5) else (t,)
            return scores + self.fixed(np.where(self.rng.random(shape) < 0.3, -1e4, 0.25).astype(as_dtype(self.dtype)))
        if how == 1:
            seen = self.emit("triangle_mask_like", scores, diagonal=self.rare.choice((0, 0, 1, 3)))
            if self.rare.random() < 0.4:  # a band
                past = self.emit("triangle_mask_like", scores, diagonal=self.rare.choice((-1, -2, -4)))
                seen = self.emit("logical_and", seen, self.emit("logical_not", past))
            return self.emit("where", seen, scores, low)
        if how == 2:
            return self.emit("where", self.fixed(self.rng.random((t, t)) < 0.7), scores, low)
        if how == 3:
            return scores + self.given(*((1, t, t) if len(scores.shape) > 2 else (t, t)), scale=0.5)
        if how == 4:
            return self.emit("tanh", scores) * self.given(t, 1, scale=1.0)
        return scores

    def embedded(self) -> None:
        table = self.given(NODES, self.width, scale=1.0)
        ids = self.fixed(self.rng.integers(0, NODES, (self.batch, self.time)))
        self.add(self.emit("embedding", table, ids) * self.one())

    def scores(self) -> None:
        """Rows of a table for each state: their products with the state, and their sum with these as weights."""
        n, t, d = self.shape
        own = self.depth == 0 and self.chance(0.4)
        table = self.emit("reshape", self.one(), shape=self.flat) if own else self.given(NODES, d, scale=1.0)
        count, size = self.draw.choice((2, 3, 5)), table.shape[0]
        ids = self.fixed(self.rng.integers(-size, size, (n, t, count)).astype(self.draw.choice(("int32", "int64"))))
        rows = self.emit("gather", table, ids, axis=0)
        if self.chance(0.25):
            rows = rows * self.given(d, scale=1.0)
        state = self.emit("reshape", self.one(), shape=(n, t, *self.draw.choice(((1, d), (d, 1)))))
        row = state.shape[2] == 1
        if self.chance(0.5):
            weights = self.emit("matmul", rows, state, transpose_y=row)
        else:
            weights = self.emit("matmul", state, rows, transpose_x=not row, transpose_y=True)
        row = weights.shape[2] == 1
        if self.chance(0.2):
            self.kept.append(weights)
        weights = self.emit("softmax", weights, axis=-1 if row else -2) if self.chance(0.5) else weights * 0.1
        if self.chance(0.5):
            made = self.emit("matmul", weights, rows, transpose_x=not row)
        else:
            made = self.emit("matmul", rows, weights, transpose_x=True, transpose_y=row)
        made = self.emit("reshape", made, shape=self.shape)
        if self.chance(0.25):
            made = made + self.emit("reduce_max", rows, axes=(2,))
        self.add(made)

    def edges(self) -> None:
        """Rows gathered along edges, and added up at the nodes that they lead to."""
        n, count = self.flat[0], self.draw.choice((1, 2, 9, 40))
        x, y = (self.emit("reshape", self.one(), shape=self.flat) for _ in "xy")
        source, target = (self.fixed(self.rng.integers(-n if s else 0, n, count)) for s in (True, False))
        if self.chance(0.5):
            source = self.emit("cast", source, dtype="int32")
        rows = self.emit("gather", x, source, axis=0)
        if self.chance(0.5):
            rows = rows + self.emit("gather", y, target, axis=0)
        if self.chance(0.4):
            rows = self.emit("relu", rows)
        if self.chance(0.3):
            weight = self.emit("softmax", self.emit("reduce_sum", rows, axes=(1,)), axis=0)
            rows = rows * self.emit("unsqueeze", weight, axes=(1,))
        if self.chance(0.3):
            rows = self.emit("matmul", rows, self.given(self.width, self.width))
        if self.chance(0.15):
            self.kept.append(rows)
        kind = self.draw.choice(("segment_sum", "segment_sum", "segment_mean", "segment_max", "scatter_add_like"))
        if kind == "scatter_add_like":
            made = self.emit(kind, rows, target, y, axis=0)
        else:
            made = self.emit(kind, rows, target, num_segments=n)
        self.add(self.emit("reshape", made, shape=self.shape))

    def dense(self) -> None:
        x, wide = self.one(), self.draw.choice((1, 3, self.width, 70))
        if self.chance(0.5):
            x = self.emit("reshape", x, shape=self.flat)
        turned = self.chance(0.5)
        w = self.given(*((wide, self.width) if turned else (self.width, wide)))
        h = self.emit("matmul", x, w, transpose_y=turned)
        if self.chance(0.7):
            h = h + self.given(wide)
        h = self.emit(self.draw.choice(("relu", "tanh", "gelu", "sigmoid")), h)
        if self.chance(0.2):
            h = self.emit("dropout", h, p=0.4, seed=self.draw.randrange(99))
        if turned and self.chance(0.5):
            out = self.emit("matmul", h, w)
        elif wide == 1 and self.chance(0.5):
            out = h * x
        else:
            out = self.emit("matmul", h, self.given(wide, self.width))
        self.add(self.emit("reshape", out, shape=self.shape))

    def pooled(self) -> None:
        """One row for each sequence, times a weight; a product of one row; a Gram matrix."""
        x = self.one()
        mean = self.emit("reduce_mean", x, axes=(1,), keepdims=True)
        made = self.emit("matmul", mean, self.given(self.width, self.width))
        if self.chance(0.4):
            gram = self.emit("matmul", x, self.one(), transpose_x=True) * (1.0 / self.time)
            made = made + self.emit("matmul", x, gram)
        if self.chance(0.4):
            vector = self.given(self.width)
            scores = self.emit("softmax", self.emit("matmul", x, vector), axis=1)
            made = made * self.emit("unsqueeze", scores, axes=(2,))
        self.add(made + x)

    def labelled(self) -> None:
        w = self.given(self.width, CLASSES)
        rows = self.chance(0.5)
        x = self.emit("reshape", self.one(), shape=self.flat) if rows else self.one()
        shape = self.flat[:1] if rows else self.shape[:2]
        logits = self.emit("matmul", x, w)
        if self.chance(0.5):
            logits = logits + self.given(CLASSES)
        labels = self.fixed(np.where(self.rng.random(shape) < 0.2, -100, self.rng.integers(0, CLASSES, shape)))
        attrs: dict[str, Any] = {"label_smoothing": 0.1} if self.chance(0.4) else {}
        reduction = self.draw.choice(("none", "mean", "sum"))
        loss = self.emit("softmax_with_cross_entropy", logits, labels, reduction=reduction, **attrs)
        if self.chance(0.3):
            loss = loss + self.emit("mean", self.emit("square", self.emit("logsumexp", logits, axes=(-1,))))
        if reduction == "none":
            loss = self.emit("reshape", loss, shape=(*self.shape[:2], 1))
        self.add(self.one() * (loss * 0.2))
        if self.chance(0.3):
            p = self.emit("softmax", logits)
            self.add(self.emit("reshape", self.emit("matmul", p, w, transpose_y=True), shape=self.shape))

    def recurrent(self) -> None:
        x = self.emit("transpose", self.one(), axes=(1, 0, 2))
        cell = self.draw.choice(("lstm", "gru"))
        gates, states = (4, 2) if cell == "lstm" else (3, 1)
        given = [self.given(self.batch, self.width) for _ in range(states)]
        weights = [self.given(gates * self.width, self.width) for _ in range(2)]
        biases = [self.given(gates * self.width) if self.chance(0.6) else None for _ in range(2)]
        if self.chance(0.3):
            weights[1] = weights[0]
        out, last, *_ = self.emit(cell, x, *given, *weights, *biases, reverse=self.chance(0.4))
        out = self.emit("transpose", out, axes=(1, 0, 2))
        self.add(out * self.emit("unsqueeze", last, axes=(1,)) if self.chance(0.4) else out)

    def convolved(self) -> None:
        x = self.one()
        groups = self.draw.choice([g for g in (1, 1, 2, self.width) if self.width % g == 0])
        taps = self.draw.choice((1, 3))
        n, t, d = self.shape
        if self.chance(0.5):
            turned = self.emit("transpose", x, axes=(0, 2, 1))
            w = self.given(d, d // groups, taps)
            bias = self.given(d) if self.chance(0.5) else None
            made = self.emit("conv1d", turned, w, bias, padding="same", groups=groups)
        else:
            image = self.emit("reshape", x, shape=(n, 1, t, d))
            mid = self.draw.choice((1, 3, 8, 16))
            w, v = self.given(mid, 1, 3, 3, scale=0.3), self.given(1, mid, taps, 3, scale=0.2)
            h = self.emit("conv2d", image, w, self.given(mid), padding="same")
            h = self.emit("relu", h)
            if mid > 1 and self.chance(0.5):
                h = self.emit("conv2d", h, self.given(mid, mid, 1, taps, scale=0.2), None, padding="same")
            made = self.emit("conv2d", h, v, None, padding="same")
            self.add(self.emit("reshape", made, shape=self.shape))
            return
        self.add(self.emit("transpose", made, axes=(0, 2, 1)))

    def looped(self) -> None:
        """A loop over time whose body mixes further statements; sequences may have lengths."""
        inner = Mixture.__new__(Mixture)
        inner.draw, inner.rare, inner.dtype, inner.rng = self.draw, self.rare, self.dtype, self.rng
        inner.last, inner.newest = self.last, self.newest
        inner.scored = self.scored
        inner.batch, inner.time, inner.width, inner.depth = self.batch, 1, self.width, self.depth + 1
        inner.b, inner.values, inner.pool, inner.kept = BlockBuilder(), [], [], []
        inner.wrt = []
        small = TensorType((self.batch, 1, self.width), self.dtype)
        lengths = self.chance(0.5)
        carried = [inner.b.param(small) for _ in range(2)]
        row = inner.b.param(small)
        number = len(inner.b.params)
        fine = inner.b.param(TensorType((self.batch, 1, 1), "bool")) if lengths else None
        inner.pool = [row, *carried]
        for _ in range(self.draw.choice((0, 1, 1, 2))):
            inner.statement()
        kind = self.draw.choice(("lstm_cell", "gru_cell", "rnn_cell", "none"))
        squeeze = lambda x: inner.emit("reshape", x, shape=(self.batch, self.width))
        unsqueeze = lambda x: inner.emit("reshape", x, shape=small.shape)
        h, c = carried
        if kind != "none":
            gates = {"lstm_cell": 4, "gru_cell": 3, "rnn_cell": 1}[kind]
            weights = [inner.given(gates * self.width, self.width) for _ in range(2)]
            biases = [inner.given(gates * self.width) if self.chance(0.5) else None for _ in range(2)]
            states = [squeeze(h), squeeze(c)] if kind == "lstm_cell" else [squeeze(h)]
            made = inner.emit(kind, squeeze(inner.one() if self.chance(0.5) else row), *states, *weights, *biases)
            made = list(made) if isinstance(made, tuple) else [made]
            new = [unsqueeze(x) for x in made]
            new = new if len(new) == 2 else [new[0], inner.emit("tanh", c + inner.one())]
        else:
            new = [inner.emit("tanh", inner.one() + h * 0.5), c * 0.5 + inner.one() * 0.3]
        if fine is not None:
            new = [inner.emit("where", fine, x, old) for x, old in zip(new, carried, strict=True)]
        record = inner.one() if self.chance(0.3) else new[0]
        body = inner.b.build([*new, record])
        elements = [row.name, *([fine.name] if fine is not None else [])]
        captured = [p for p in body.params if p not in elements and p not in [v.name for v in carried]]
        body = replace(body, params=(*(v.name for v in carried), *captured, *elements))
        values = dict(zip(inner.b.params[number + lengths :], inner.values, strict=True))
        operands = []
        for name in captured:
            value = self.fixed(values[name])
            if name in inner.wrt:
                self.wrt.append(value.name)
            operands.append(value)
        x = self.emit("transpose", self.one(), axes=(1, 0, 2))
        stacks = [self.emit("array_unstack", self.emit("unsqueeze", x, axes=(2,)))]
        if lengths:
            size = self.rng.integers(0, self.time + 1, self.batch)
            fits = np.arange(self.time)[:, None] < size
            stacks.append(self.emit("array_unstack", self.fixed(fits[:, :, None, None])))
        start = [self.given(*small.shape) for _ in range(2)]
        outs = self.emit(
            "loop", *start, *operands, *stacks, sub_block=body, carried=2, captured=len(operands), condition=False,
            reverse=self.chance(0.4), memory=self.draw.choice(POLICIES),
        )  # fmt: skip
        h, c, seen = outs
        whole = self.emit("reshape", self.emit("array_stack", seen), shape=(self.time, self.batch, self.width))
        whole = self.emit("transpose", whole, axes=(1, 0, 2))
        self.add(whole + h if self.chance(0.5) else whole * c)

    def normalised(self) -> None:
        """Deviations from a mean over some axes and their variance, with other readers of each of them."""
        x, pick = self.one(), self.rare
        axes: tuple[int, ...] = pick.choice(((0, 2), (0, 1), (0, 1, 2), (1, 2), (2,)))
        n, t, d = self.shape
        shape = pick.choice((self.shape, (n, 2, t, d // 2), (n, 2, t * (d // 2)))) if d % 2 == 0 else self.shape
        if shape != self.shape:
            x, axes = self.emit("reshape", x, shape=shape), tuple(i for i in range(len(shape)) if i != 1)
        if pick.random() < 0.3:
            x = self.emit("relu", x)
        mean = self.emit("reduce_mean", x, axes=axes, keepdims=True)
        apart = x - mean
        variance = self.emit("reduce_mean", self.emit("square", apart), axes=axes, keepdims=True)
        made = apart * self.emit("rsqrt", self.emit("scale", variance, scale=1.0, bias=0.1))
        if pick.random() < 0.5:
            made = made * self.given(*mean.shape, scale=1.0) + self.given(*mean.shape)
        if pick.random() < 0.3:
            total = self.emit("reduce_sum", self.emit("tanh", variance) * apart, axes=axes, keepdims=True)
            made = made + total + self.emit("reduce_sum", apart, axes=axes, keepdims=True)
        if pick.random() < 0.3:
            made = made + self.emit("tanh", mean)
        made = self.emit("reshape", made, shape=self.shape)
        self.pool.append(self.emit("relu", made + self.one()) if pick.random() < 0.3 else made)

    def windowed(self) -> None:
        """Windows of time, which may overlap, read by a product, a running sum, a maximum or a transform."""
        x, pick, t = self.one(), self.last, self.time
        length, step = pick.randint(1, t), pick.choice((1, 1, 2, 3))
        count = (t - length) // step + 1
        starts = self.emit("range", start=0.0, end=float(count * step), step=float(step), dtype="int64")
        along = self.emit("range", start=0.0, end=float(length), dtype="int64")
        at = self.emit("unsqueeze", starts, axes=(1,)) + self.emit("unsqueeze", along, axes=(0,))
        frames = self.emit("gather", x, at, axis=1)  # [batch, count, length, width]
        how = pick.randrange(5)
        if how == 0:
            made = self.emit("matmul", self.given(1, length), frames)
        elif how == 1:
            made = self.emit("cumsum", frames, axis=2) * (1.0 / length)
        elif how == 2:
            made = frames - self.emit("reduce_max", frames, axes=(2,), keepdims=True)
        elif how == 3:
            made = self.emit("matmul", frames, frames, transpose_x=True) * (1.0 / length)
        else:
            made = self.emit("rfft", frames, axis=2, norm="ortho")
            made = self.emit("reduce_sum", self.emit("square", made), axes=(4,))
        self.add(x + self.emit("unsqueeze", self.emit("reduce_mean", made, axes=(1, 2)), axes=(1,)))

    def filtered(self) -> None:
        """A product of frequencies with weights, along time or along the width."""
        x, pick = self.one(), self.last
        axis = pick.choice((1, 2))
        size = self.shape[axis]
        found = self.emit("rfft", x, axis=axis, norm="ortho")
        found = found * self.given(*found.shape[1:], scale=1.0)
        self.add(self.emit("irfft", found, n=size, axis=axis, norm="ortho"))

    def mixed_channels(self) -> None:
        """Two products over the channels of an image, which are not its last axis in memory."""
        pick, (n, t, d) = self.newest, self.shape
        x = pick.choice(self.pool[-4:])
        channels = pick.choice([c for c in (1, 2, 3, 4, 6, 8) if d % c == 0])
        image = self.emit("reshape", x, shape=(n, channels, t, d // channels))
        order = pick.choice(((0, 2, 3, 1), (0, 2, 3, 1), (2, 0, 3, 1), (2, 3, 0, 1), (3, 2, 0, 1)))
        wide = pick.choice((1, 3, 2 * channels, 64, 70))
        h = self.emit("matmul", self.emit("transpose", image, axes=order), self.given(channels, wide))
        h = self.emit(pick.choice(("relu", "tanh", "gelu")), h + self.given(wide) if pick.random() < 0.5 else h)
        out = self.emit("matmul", h, self.given(wide, channels))
        back = tuple(order.index(i) for i in range(4))
        out = self.emit("reshape", self.emit("transpose", out, axes=back), shape=self.shape)
        self.pool.append(self.emit("tanh", out) if pick.random() < 0.5 else x + out)

    def elementwise(self) -> None:
        x, y = self.one(), self.one()
        self.add(
            self.draw.choice(
                (
                    lambda: self.emit("softmax", x * y, axis=self.draw.choice((1, 2))),
                    lambda: self.emit("where", self.emit("greater_than", x, y), x * y, self.emit("sin", y)),
                    lambda: x * self.given(self.width) + self.given(self.time, 1),
                    lambda: self.emit("flip", x, axes=(1,)) * y,
                    lambda: x - self.emit("reduce_max", y, axes=(1,), keepdims=True),
                )
            )()
        )

    def statement(self) -> None:
        kinds: list[tuple[int, Callable[[], None]]] = [
            (4, self.attention), (2, self.embedded), (3, self.edges), (3, self.dense), (2, self.pooled),
            (2, self.labelled), (1, self.recurrent), (2, self.convolved), (2, self.elementwise),
            (2 if self.depth == 0 else 0, self.looped), (12 if self.scored else 0, self.scores),
        ]  # fmt: skip
        if self.depth:
            kinds = [(w, f) for w, f in kinds if f != self.recurrent]
        make = self.draw.choices([f for _, f in kinds], [w for w, _ in kinds])[0]
        make()
        if self.rare.random() < 0.2:
            self.normalised()
        if self.last.random() < 0.2:
            self.windowed()
        if self.last.random() < 0.1:
            self.filtered()
        if self.newest.random() < 0.12:
            self.mixed_channels()


def mixture(seed: int, dtype: str, statements: int, scored: bool = False) -> tuple[Block, list[np.ndarray], list[str]]:
    """A block, operands for it, and the parameters that have gradients. scored: see `Mixture`."""
    m = Mixture(random.Random(seed), dtype, scored)
    m.pool = [m.given(*m.shape, scale=1.0)]
    for _ in range(statements):
        m.statement()
    kept = m.kept if m.chance(0.5) else []
    results = [m.pool[-1], *kept]
    if m.chance(0.5):
        results[0] = m.emit("mean", m.emit("square", results[0]))
    return m.b.build(results), m.values, m.wrt
