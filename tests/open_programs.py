"""Random training programs on batches of sequences: the number of sequences and their length are open.

Every statement takes states [batch, time, width] and adds one, so any statement may follow any other one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from core.ir import Program, TensorType, Variable
from core.ir.builder import BlockBuilder, Value

__all__ = ["OpenProgram"]

WORDS, CLASSES = 9, 5


class OpenProgram:
    """A program: `program`, its loss, its parameters' and states' `values`, and names to fetch.

    A feed of the pool has as many steps as the others or one, which `spreads` decides for each run.
    """

    def __init__(self, seed: int, dtype: str, statements: int) -> None:
        self.draw, self.rng = random.Random(seed), np.random.default_rng(seed)
        self.dtype, self.width = dtype, self.draw.choice((1, 3, 4, 16, 17))
        self.b = BlockBuilder()
        self.variables: list[Variable] = []
        self.values: dict[str, np.ndarray] = {}
        self.fetched: list[str] = []
        open_shape = (-1, -1)
        self.x = self.leaf("feed", "x", TensorType((*open_shape, self.width), dtype))
        self.words = self.leaf("feed", "words", TensorType(open_shape, "int64"))
        self.lengths = self.leaf("feed", "lengths", TensorType((-1,), "int64"))
        self.mask = self.leaf("feed", "mask", TensorType(open_shape, "bool"))
        self.other = self.leaf("feed", "other", TensorType((*open_shape, self.width), dtype))
        self.key = self.leaf("key", "key", TensorType((), "int64"))
        self.pool = [self.x]
        self.kinds: list[str] = []
        if self.draw.random() < 0.4:
            self.pool.append(self.emit("add", self.x, self.other) * self.given(self.width))
        else:
            self.pool.append(self.dense(self.x))
        for _ in range(statements):
            make = self.draw.choice(STATEMENTS)
            self.kinds.append(make.__name__)
            made = make(self)
            self.pool.append(self.emit("tanh", made) if self.draw.random() < 0.5 else made * 0.5 + self.one() * 0.3)
        self.loss = self.total()
        results = [name for name, type in self.b.types.items() if isinstance(type, TensorType) and -1 in type.shape]
        self.fetched = self.draw.sample(results, min(2, len(results)))
        self.program = Program(self.b.build([]), tuple(self.variables))

    # --- operands ------------------------------------------------------------------------------------------------

    def leaf(self, role: Any, name: str, type: TensorType) -> Value:
        value = self.b.param(type, name)
        self.variables.append(Variable(name, type, role))
        return value

    def given(self, *shape: int, role: str = "parameter", scale: float | None = None) -> Value:
        """A new parameter."""
        name = f"{role[0]}{len(self.values)}"
        scale = 1 / max(1, shape[0] if shape else 1) ** 0.5 if scale is None else scale
        self.values[name] = (self.rng.standard_normal(shape) * scale).astype(self.dtype)
        return self.leaf(role, name, TensorType(shape, self.dtype))

    def one(self) -> Value:
        return self.draw.choice(self.pool[-3:])

    def emit(self, type: str, *inputs: Value | None, **attrs: Any) -> Any:
        return self.b.emit(type, *inputs, **attrs)

    def dense(self, x: Value, width: int | None = None) -> Value:
        made: Value = self.emit("matmul", x, self.given(self.width, width or self.width))
        return made

    def total(self) -> str:
        x = self.one()
        how = self.draw.randrange(4)
        if how == 0:
            return self.emit("mse_loss", x, self.x).name
        if how == 1:
            label = self.emit(
                "unsqueeze", self.emit("mod", self.words, self.emit("full_like", self.words, value=5)), axes=(2,)
            )
            return self.emit("mean", self.emit("softmax_with_cross_entropy", self.dense(x, CLASSES), label)).name
        if how == 2:
            flag = self.emit("unsqueeze", self.emit("cast", self.mask, dtype=self.dtype), axes=(2,))
            return self.emit("reduce_sum", self.emit("square", x) * flag).name
        return (self.emit("reduce_sum", self.emit("sin", x)) * 0.1).name

    def feeds(self, batch: int, time: int, spreads: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
        """Feeds of `batch` sequences of `time` steps. spreads: whether one of them has a single step."""
        rng = np.random.default_rng((batch, time, seed))
        return {
            "x": rng.standard_normal((batch, time, self.width)).astype(self.dtype),
            "words": rng.integers(0, WORDS, (batch, time)),
            "lengths": np.diff(np.sort(rng.integers(0, batch + 1, 2)), prepend=0, append=batch),
            "mask": rng.random((batch, time)) < 0.6,
            "other": rng.standard_normal((batch, 1 if spreads else time, self.width)).astype(self.dtype),
        }


# --- statements --------------------------------------------------------------------------------------------------


def dense(p: OpenProgram) -> Value:
    return p.dense(p.one()) + p.given(p.width)


def flattened(p: OpenProgram) -> Value:
    x = p.one()
    flat = p.emit("reshape", x, shape=(-1, p.width))
    if p.draw.random() < 0.5:
        flat = p.emit("softmax", flat, axis=p.draw.choice((0, 1)))
    flat = p.emit("matmul", flat, p.given(p.width, p.width))
    return p.emit("reshape_as", flat, x)


def attended(p: OpenProgram) -> Value:
    q, k = p.one(), p.one()
    scores = p.emit("matmul", q, k, transpose_y=True)
    if p.draw.random() < 0.5:
        flag = p.emit("unsqueeze", p.mask, axes=(1,))
        scores = p.emit("where", flag, scores, p.emit("full_like", scores, value=-50.0))
    shares = p.emit("softmax", scores)
    if p.draw.random() < 0.4:
        shares = p.emit("dropout", shares, p.key, p=0.3)
    return p.emit("matmul", shares, k)


def attention(p: OpenProgram) -> Value:
    return p.emit("scaled_dot_product_attention", p.one(), p.one(), p.one(), causal=p.draw.random() < 0.5)


def embedded(p: OpenProgram) -> Value:
    return p.one() + p.emit("embedding", p.given(WORDS, p.width), p.words)


def bag(p: OpenProgram) -> Value:
    """How often each word comes, as a row for each step."""
    table = p.given(WORDS, p.width)
    found = p.emit("one_hot", p.words, depth=WORDS, dtype=p.dtype)
    share = p.emit("softmax", p.emit("matmul", p.one(), table, transpose_y=True))
    return p.emit("matmul", share * found, table)


def dropped(p: OpenProgram) -> Value:
    how = p.draw.randrange(3)
    if how == 0:
        return p.emit("dropout", p.one(), p.key, p=0.5, seed=p.draw.randrange(9))
    x = p.one()
    noise = p.emit(("gaussian_random_like", "uniform_random_like")[how - 1], x, p.key, seed=p.draw.randrange(9))
    return x + noise * 0.3


def statistics(p: OpenProgram) -> Value:
    x, axes = p.one(), p.draw.choice(((0,), (1,), (0, 1), (0, 1, 2), (2,)))
    how = p.draw.choice(("reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "logsumexp", "var"))
    made = p.emit(how, x, axes=axes, keepdims=True)
    return x * p.emit("tanh", made)


def normed(p: OpenProgram) -> Value:
    how = p.draw.randrange(3)
    if how == 0:
        return p.emit("layer_norm", p.one(), p.given(p.width), p.given(p.width), begin_norm_axis=2)
    if how == 1:
        return p.emit("rms_norm", p.one(), p.given(p.width))
    x = p.emit("transpose", p.one(), axes=(0, 2, 1))
    states = [p.given(p.width, role="state", scale=0.1), p.given(p.width, role="state", scale=0.1)]
    p.values[states[1].name] = np.abs(p.values[states[1].name]) + 1
    y, *_ = p.emit("batch_norm", x, p.given(p.width), p.given(p.width), *states)
    return p.emit("transpose", y, axes=(0, 2, 1))


def running(p: OpenProgram) -> Value:
    x, axis = p.one(), p.draw.choice((0, 1, 2))
    how = p.draw.choice(("cumsum", "cummax", "cumprod", "logcumsumexp", "flip", "shift"))
    if how == "flip":
        return p.emit("flip", x, axes=(axis,))
    if how == "shift":
        return x - p.emit("roll", x, shifts=(1,), axes=(axis,))
    made = p.emit(how, p.emit("tanh", x), axis=axis)
    return made[0] if isinstance(made, tuple) else made


def ordered(p: OpenProgram) -> Value:
    x = p.one()
    how, axis = p.draw.randrange(3), p.draw.choice((0, 1, 2))
    if how == 0:
        return p.emit("sort", x, axis=axis)[0]
    if how == 1:
        best = p.emit("argmax", x, axis=axis, keepdims=True)
        return x * p.emit("cast", best, dtype=p.dtype) * 0.1
    return p.emit("take_along_axis", x, p.emit("argsort", p.one(), axis=axis), axis=axis)


def sequences(p: OpenProgram) -> Value:
    """Rows of the batch that belong together."""
    how, x = p.draw.randrange(3), p.one()
    if how == 0:
        return p.emit("sequence_softmax", x, p.lengths)
    if how == 1:
        return p.emit("sequence_reverse", x, p.lengths)
    kind = p.draw.choice(("sum", "mean", "max", "first", "last"))
    return x * p.emit("reduce_mean", p.emit("sequence_pool", x, p.lengths, pool_type=kind), axes=(0,), keepdims=True)


def gathered(p: OpenProgram) -> Value:
    """Rows that feeds number, or that data choose."""
    x, how = p.one(), p.draw.randrange(3)
    if how == 0:
        at = p.emit("mod", p.words, p.emit("full_like", p.words, value=1))
        return x + p.emit("take_along_axis", x, p.emit("unsqueeze", at, axes=(2,)), axis=1)
    if how == 1:
        flat = p.emit("reshape", x, shape=(-1, p.width))
        ids = p.emit("reshape", p.words, shape=(-1,))
        sums = p.emit(p.draw.choice(("segment_sum", "segment_max")), flat, ids, p.given(WORDS, p.width))
        return x * p.emit("embedding", p.emit("tanh", sums), p.words)
    chosen = p.emit("masked_select", x, p.emit("expand_as", p.emit("unsqueeze", p.mask, axes=(2,)), x))
    return x + p.emit("reduce_sum", p.emit("square", chosen)) * 0.01


def joined(p: OpenProgram) -> Value:
    axis = p.draw.choice((0, 1, 2))
    parts = [p.one(), p.one()]
    both = p.emit("concat", *parts, axis=axis)
    if axis == 2:
        return p.emit("matmul", both, p.given(2 * p.width, p.width))
    return p.one() * p.emit("reduce_mean", both, axes=(axis,), keepdims=True)


def recurrent(p: OpenProgram) -> Value:
    x = p.emit("transpose", p.one(), axes=(1, 0, 2))
    h = (
        p.emit("reduce_mean", p.one(), axes=(1,))
        if p.draw.random() < 0.3
        else p.emit("tanh", p.emit("reduce_sum", p.x, axes=(1,)))
    )
    out, _ = p.emit(
        "gru",
        x,
        h,
        p.given(3 * p.width, p.width),
        p.given(3 * p.width, p.width),
        None,
        None,
        reverse=p.draw.random() < 0.4,
    )
    return p.emit("transpose", out, axes=(1, 0, 2))


def convolved(p: OpenProgram) -> Value:
    x = p.emit("transpose", p.one(), axes=(0, 2, 1))
    apart, filter = p.draw.choice((1, 2)), p.given(p.width, p.width, 3, scale=0.3)
    y = p.emit("conv1d", x, filter, None, padding="explicit", paddings=(apart,), dilations=(apart,))
    return p.emit("transpose", y, axes=(0, 2, 1))


def strided(p: OpenProgram) -> Value:
    """Windows that are fewer than the steps."""
    x = p.emit("transpose", p.one(), axes=(0, 2, 1))
    filter = p.given(p.width, p.width, 3, scale=0.3)
    y = p.emit("conv1d", x, filter, None, padding="explicit", paddings=(1,), strides=(p.draw.choice((2, 3)),))
    return p.one() * p.emit("tanh", p.emit("unsqueeze", p.emit("reduce_sum", y, axes=(1, 2)), axes=(1, 2)))


def pooled(p: OpenProgram) -> Value:
    x = p.emit("transpose", p.one(), axes=(0, 2, 1))
    how, around = p.draw.choice(("max_pool1d", "avg_pool1d")), {"strides": (1,), "paddings": (1,)}
    y = p.emit(how, x, kernel_size=(3,), **around)
    return p.emit("transpose", y[0] if isinstance(y, tuple) else y, axes=(0, 2, 1))


def compared(p: OpenProgram) -> Value:
    x, y = p.one(), p.one()
    return p.emit("where", p.emit("greater_than", x, y), x * y, p.emit("sin", y))


def masked(p: OpenProgram) -> Value:
    flag = p.emit("unsqueeze", p.mask, axes=(2,))
    return p.emit("where", flag, p.one(), p.one() * p.given())


def spread(p: OpenProgram) -> Value:
    return p.one() * p.other


STATEMENTS: tuple[Callable[[OpenProgram], Value], ...] = (
    dense, flattened, attended, attention, embedded, bag, dropped, statistics, normed, running, ordered, sequences,
    gathered, joined, recurrent, convolved, strided, pooled, compared, masked, spread,
)  # fmt: skip
