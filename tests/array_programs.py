"""Random programs on tensor arrays that grow: appends, overwrites, copies, exchanges, in loops and branches.

With `runs` some arrays are empty, arrays are split into runs and joined to more rows than they have elements.
"""

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
RUNS = ("rows", "pad", "flatten", "run", "regroup", "add_runs", "sections", "scan", "take")
"""Statements about empty arrays and arrays of arrays, whose cotangents may have fewer or more elements."""
NESTED = ("loop", "loop", "loop", "branch", "branch")
MOST = 64
"""Elements that an array has at most at the end."""
POLICIES = ("store", "recompute", "sqrt", "binomial")


def array_program(seed: int, dtype: str = "float64", width: int = 2, rooms: int = 3, runs: bool = False) -> Sketch:
    """A program with parameters h0, k0 [width] and the scalar `loss`. Without `runs`, no array is empty.

    rooms: depth of nested loops and branches.
    """
    if runs:
        return _RunProgram(seed, rooms).sketch
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


class _RunProgram:
    """A program on arrays A, B and C of vectors of two elements."""

    def __init__(self, seed: int, rooms: int) -> None:
        self.draw = draw = random.Random(seed)
        self.sketch = s = Sketch()
        rng = np.random.default_rng(seed)
        for name, rows in (("h0", ()), ("k0", ()), ("x0", (draw.choice((0, 1, 3, 5)),))):
            s.param(name, rng.uniform(-1, 1, (*rows, 2)))
        for name in VECTORS:
            s.op("assign", f"{name}0", out=name)
        s.const(0, (), "int64", out="zero")
        s.const(0.0, (0,), out="nothing")
        for name in ARRAYS[:2]:
            s.op("create_array", out=name, shape=[2], dtype="float64")
            if draw.random() < 0.7:
                s.op("array_write", "h", "zero", name, out=name)
        s.op("array_unstack", "x0", out=ARRAYS[2])
        self.statements(rooms)
        parts = [self.rows_of(name) for name in draw.sample(ARRAYS, 2)]
        parts += [*VECTORS, "h0", "k0", "x0"]
        s.op("assign", s.op("sum", [s.op("reduce_sum", s.op("sin", each)) for each in parts]), out="loss")

    def number(self, most: int) -> str:
        return self.sketch.const(self.draw.randint(0, most), (), "int64")

    def rows_of(self, array: str) -> str:
        """All elements of an array, often with further rows of zeros."""
        s, shape = self.sketch, {"shape": [2], "dtype": "float64"}
        count = self.draw.choice(({"count": MOST}, {"count": MOST}, {}))
        like = [s.const(0.0, (MOST, 2))] if not count and self.draw.random() < 0.4 else []
        return s.op("array_join", array, *like, **shape, **count)

    def mix(self, value: str) -> None:
        h = self.draw.choice(VECTORS)
        self.sketch.op("tanh", self.sketch.op("add", h, value), out=h)

    def statements(self, rooms: int) -> None:
        kinds = ("append", "copy", "add", *RUNS) + (NESTED if rooms else ())
        for _ in range(self.draw.randint(1, 4)):
            kind = self.draw.choice(kinds)
            a, b = self.draw.sample(ARRAYS, 2)
            if kind in ("loop", "branch", "scan"):
                getattr(self, kind)(rooms)
            elif kind in ("run", "sections"):
                getattr(self, kind)(a, b)
            else:
                self.simple(kind, a, b)

    def simple(self, kind: str, a: str, b: str) -> None:
        s, order = self.sketch, self.draw.randint(1, 2)
        if kind == "append":
            s.op("array_write", s.op("scale", "h", scale=0.5, bias=0.25), s.op("array_length", a), a, out=a)
        elif kind == "copy":
            s.op("assign", a, out=b)
        elif kind == "add":
            s.op("sum", [a, b], out=a)
        elif kind == "take":
            self.mix(s.op("array_take", a, self.number(4), "h"))
        elif kind == "rows":
            s.op("array_unstack", s.op("mul", "x0", "h"), out=a)
        elif kind == "pad":
            self.mix(s.op("reduce_sum", s.op("sin", self.rows_of(a))))
        elif kind == "flatten":
            s.op("array_flatten", s.op("array_chunks", a, order=order), out=b)
        elif kind == "regroup":
            runs = s.op("array_chunks", a, order=order)
            again = s.op("array_regroup", s.op("array_flatten", runs), s.op("assign", runs))
            s.op("array_flatten", again, out=b)
        else:
            runs = [s.op("array_chunks", each, order=1) for each in (a, b)]
            s.op("array_flatten", s.op("sum", runs), out=a)

    def run(self, a: str, b: str) -> None:
        """Read the first or last run of an array as an array, if there is one."""
        s = self.sketch
        runs = s.op("array_chunks", a, order=self.draw.randint(1, 2))
        s.op("array_write", "h", "zero", a, out=a)
        count = s.op("array_length", runs)
        with s.block() as side:
            last = s.op("increment", count, step=-1)
            s.op("array_read", runs, self.draw.choice(("zero", last)), out=b)
            self.mix(s.op("array_take", b, self.number(2), "h"))
        s.branch(s.op("greater_than", count, self.number(2)), side, None)

    def sections(self, a: str, b: str) -> None:
        s = self.sketch
        s.op("array_split_as", s.op("sin", s.op("array_concat", a, "nothing")), a, out=b)

    def loop(self, rooms: int) -> None:
        with self.sketch.repeat(self.draw.randint(0, 3)):
            self.statements(rooms - 1)
        self.sketch.blocks[self.sketch.at]["ops"][-1]["attrs"]["memory"] = self.draw.choice(POLICIES)

    def branch(self, rooms: int) -> None:
        s = self.sketch
        go = s.op("greater_than", s.op("reduce_sum", "h"), s.const(self.draw.uniform(-0.5, 0.5)))
        sides: list[int | None] = [None, None]
        for i in range(2):
            if self.draw.random() < 0.7:
                with s.block() as sides[i]:
                    self.statements(rooms - 1)
        s.branch(go, *sides)

    def scan(self, rooms: int) -> None:
        s = self.sketch
        s.count += 1
        state, element, output, final, stacked = (f"{each}_{s.count}" for each in ("s", "e", "o", "f", "r"))
        with s.block() as body:
            s.op("tanh", s.op("add", state, element), out=state)
            self.mix(state)
            if rooms:
                self.statements(rooms - 1)
            s.op("mul", "h", element, out=output)
        names = {"states": [state], "elements": [element], "outputs": [output]}
        how = {"reverse": self.draw.random() < 0.4, "memory": self.draw.choice(POLICIES), "sub_block": body}
        slots = {"initial": ["h"], "sequences": ["x0"]}, {"final": [final], "stacked": [stacked]}
        s.construct("scan", *slots, **names, **how)
        self.mix(final)
        self.mix(s.op("reduce_sum", stacked))
        s.op("array_unstack", stacked, out=self.draw.choice(ARRAYS))
