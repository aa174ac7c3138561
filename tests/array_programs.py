"""Random programs on tensor arrays that grow: appends, overwrites, copies, exchanges, in loops and branches."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np

from tests.programs import Sketch

__all__ = ["array_program"]

ARRAYS = ("A", "B", "C")
VECTORS = ("h", "k")
SIMPLE = ("append", "append", "read", "read", "overwrite", "copy", "swap", "fresh", "add", "split")
NESTED = ("loop", "loop", "loop", "branch", "branch")
MOST = 64
"""Elements that an array has at most at the end."""


def array_program(seed: int, dtype: str = "float64", width: int = 2, rooms: int = 3) -> Sketch:
    """A program with parameters h, k [width] and the scalar `loss`; every array has at least one element.

    rooms: depth of nested loops and branches.
    """
    draw = random.Random(seed)
    s = Sketch()
    for i, name in enumerate(VECTORS):
        s.param(f"{name}0", np.random.default_rng(seed + i).uniform(-1, 1, width), dtype)
        s.op("assign", f"{name}0", out=name)
    s.const(0, (), "int64", out="zero")
    for name in ARRAYS:
        _fresh(s, draw, name, dtype, width)
    _statements(s, draw, dtype, width, rooms)
    parts = [s.op("array_join", name, shape=[width], dtype=dtype, count=MOST) for name in draw.sample(ARRAYS, 2)]
    total = s.op("sum", [s.op("reduce_sum", s.op("sin", each)) for each in (*parts, *VECTORS)])
    s.op("assign", total, out="loss")
    return s


def _statements(s: Sketch, draw: random.Random, dtype: str, width: int, rooms: int) -> None:
    for _ in range(draw.randint(1, 4)):
        kind = draw.choice(SIMPLE + NESTED if rooms else SIMPLE)
        a, b = draw.sample(ARRAYS, 2)
        h = draw.choice(VECTORS)
        if kind == "append":
            s.op("array_write", s.op("scale", h, scale=0.5, bias=0.25), s.op("array_length", a), a, out=a)
        elif kind == "overwrite":
            s.op("array_write", h, "zero", a, out=a)
        elif kind == "read":
            at = "zero" if draw.random() < 0.5 else s.op("increment", s.op("array_length", a), step=-1)
            s.op("tanh", s.op("add", h, s.op("array_read", a, at)), out=h)
        elif kind == "copy":
            s.op("assign", a, out=b)
        elif kind == "swap":
            kept = s.op("assign", a)
            s.op("assign", b, out=a)
            s.op("assign", kept, out=b)
        elif kind == "fresh":
            _fresh(s, draw, a, dtype, width)
        elif kind == "add":
            s.op("sum", [a, b] if draw.random() < 0.7 else [a, a, b], out=a)
        elif kind == "split":
            s.op("array_unstack", s.op("stack", [h, "h0", "k"], axis=0), out=a)
        elif kind == "loop":
            with s.repeat(draw.randint(0, 3)):
                _statements(s, draw, dtype, width, rooms - 1)
        else:
            _branch(s, draw, dtype, width, rooms)


def _fresh(s: Sketch, draw: random.Random, name: str, dtype: str, width: int) -> None:
    s.op("create_array", out=name, shape=[width], dtype=dtype)
    s.op("array_write", draw.choice(VECTORS), "zero", name, out=name)


def _branch(s: Sketch, draw: random.Random, dtype: str, width: int, rooms: int) -> None:
    go = s.op("greater_than", s.op("reduce_sum", draw.choice(VECTORS)), s.const(0.0, (), dtype))
    sides: list[int | None] = []
    for _ in range(2):
        with _side(s, draw) as side:
            if side is not None:
                _statements(s, draw, dtype, width, rooms - 1)
        sides.append(side)
    s.branch(go, *sides)


@contextlib.contextmanager
def _side(s: Sketch, draw: random.Random) -> Iterator[int | None]:
    if draw.random() < 0.3:
        yield None
    else:
        with s.block() as side:
            yield side
