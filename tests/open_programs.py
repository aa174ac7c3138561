"""Random training programs on batches of sequences: the number of sequences and their length are open.

Every statement takes states [batch, time, width] and adds one, so any statement may follow any other one.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from core.ir import Program, TensorType, Variable
from core.ir.builder import BlockBuilder, Value
from tests.open_blocks import States
from tests.open_statements import CLASSES, STATEMENTS, WORDS

__all__ = ["OpenProgram"]


class OpenProgram(States):
    """A program: `program`, its loss, its parameters' and states' `values`, and names to fetch.

    known: the number of sequences and their length, if the program tells them.

    A feed of the pool has as many steps as the others or one, which `spreads` decides for each run.
    """

    def __init__(self, seed: int, dtype: str, statements: int) -> None:
        self.draw, self.rng = random.Random(seed), np.random.default_rng(seed)
        self.depth, self.statements = 0, STATEMENTS
        self.dtype, self.width = dtype, self.draw.choice((1, 3, 4, 16, 17))
        self.b = BlockBuilder()
        self.variables: list[Variable] = []
        self.values: dict[str, np.ndarray] = {}
        self.fetched: list[str] = []
        self.known = self.draw.choice(((None, None), (None, None), (None, 6), (None, 6), (5, None)))
        open_shape = tuple(-1 if n is None else n for n in self.known)
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
            self.statement()
        self.loss = self.total()
        results = [name for name, type in self.b.types.items() if isinstance(type, TensorType) and -1 in type.shape]
        self.fetched = self.draw.sample(results, min(2, len(results)))
        self.program = Program(self.b.build([]), tuple(self.variables))

    def leaf(self, role: Any, name: str, type: TensorType) -> Value:
        value = self.b.param(type, name)
        self.variables.append(Variable(name, type, role))
        return value

    def given(self, *shape: int, role: str = "parameter", scale: float | None = None) -> Value:
        name = f"{role[0]}{len(self.values)}"
        scale = 1 / max(1, shape[0] if shape else 1) ** 0.5 if scale is None else scale
        made = self.rng.standard_normal(shape) * scale
        self.values[name] = (np.abs(made) + 0.5 if role == "state" else made).astype(self.dtype)
        return self.leaf(role, name, TensorType(shape, self.dtype))

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
        """Feeds of `batch` sequences of `time` steps, but for known ones. spreads: whether one has a single step."""
        batch, time = (n if known is None else known for n, known in zip((batch, time), self.known, strict=True))
        rng = np.random.default_rng((batch, time, seed))
        return {
            "x": rng.standard_normal((batch, time, self.width)).astype(self.dtype),
            "words": rng.integers(0, WORDS, (batch, time)),
            "lengths": np.diff(np.sort(rng.integers(0, batch + 1, 2)), prepend=0, append=batch),
            "mask": rng.random((batch, time)) < 0.6,
            "other": rng.standard_normal((batch, 1 if spreads and self.known[1] is None else time, self.width)).astype(
                self.dtype
            ),
        }
