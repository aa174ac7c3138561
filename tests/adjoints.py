"""The derivative of one value with respect to another in a straight-line program, written as further ops of it.

It shares no code with the core. Each rule appends what is due to the inputs of an op, by ops that `tests.oracle` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

__all__ = ["NoRule", "slope"]

Op = dict[str, Any]


class NoRule(Exception):
    """An op on the path has no rule here."""


class Recorder(Protocol):
    """A straight-line program under construction. values: of each cell."""

    values: dict[str, Any]
    ops: list[Op]

    def computed(self, type: str, *cells: str, **attrs: Any) -> str: ...


def slope(r: Recorder, target: str, source: str) -> str:
    """The cell of d sum(target) / d source. Raises NoRule."""
    active, path = {source}, []
    for op in r.ops:
        read = [name for listed in op["inputs"].values() for name in listed]
        if active & set(read) and op["type"] != "stop_gradient":
            active |= set(op["outputs"]["out"])
            path.append((op, read))
    due: dict[str, str] = {}
    if target in active:
        due[target] = constant(r, np.ones(r.values[target].shape))
    for op, read in reversed(path):
        (out,) = op["outputs"]["out"]
        if out not in due or r.values[out].dtype.kind != "f":
            continue
        if op["type"] not in RULES:
            raise NoRule(op["type"])
        for name, part in zip(read, RULES[op["type"]](r, op, due[out], out, read), strict=True):
            if name in active:
                due[name] = part() if name not in due else r.computed("add", due[name], part())
    return due.get(source) or constant(r, np.zeros(r.values[source].shape))


def constant(r: Recorder, value: np.ndarray) -> str:
    return r.computed("assign_value", values=value.ravel().tolist(), shape=list(value.shape), dtype="float64")


Part = Callable[[], str]
Rule = Callable[[Recorder, Op, str, str, list[str]], list[Part]]


def to_shape(r: Recorder, cell: str, like: str) -> str:
    """Sum what a broadcast has repeated."""
    shape, wanted = r.values[cell].shape, r.values[like].shape
    if shape == wanted:
        return cell
    extra = len(shape) - len(wanted)
    ones = [i + extra for i, size in enumerate(wanted) if size == 1 and shape[i + extra] != 1]
    summed = r.computed("reduce_sum", cell, axes=[*range(extra), *ones])
    return r.computed("unsqueeze", summed, axes=[i - extra for i in ones]) if ones else summed


def times(r: Recorder, x: str, y: str) -> str:
    return r.computed("mul", x, y)


def factor(slope_of: Callable[[Recorder, str, str], str]) -> Rule:
    """The rule of an elementwise op of one input; slope_of(recorder, input, output) computes its slope."""
    return lambda r, op, ct, out, read: [lambda: times(r, ct, slope_of(r, read[0], out))]


def mul(r: Recorder, op: Op, ct: str, out: str, read: list[str]) -> list[Part]:
    x, y = read
    return [lambda: to_shape(r, times(r, ct, y), x), lambda: to_shape(r, times(r, ct, x), y)]


def maximum(r: Recorder, op: Op, ct: str, out: str, read: list[str]) -> list[Part]:
    """Equal operands share what is due."""
    x, y = read
    first = (np.sign(r.values[x] - r.values[y]) + 1) / 2

    def part(share: np.ndarray, like: str) -> str:
        return to_shape(r, times(r, ct, constant(r, share)), like)

    return [lambda: part(first, x), lambda: part(1 - first, y)]


def reduce_sum(r: Recorder, op: Op, ct: str, out: str, read: list[str]) -> list[Part]:
    (x,), axes = read, op["attrs"].get("axes")

    def part() -> str:
        spread = r.computed("unsqueeze", ct, axes=axes) if axes else ct
        return times(r, spread, constant(r, np.ones(r.values[x].shape)))

    return [part]


def rows_of(r: Recorder, cell: str, start: int, end: int) -> str:
    return r.computed("slice", cell, axes=[0], starts=[start], ends=[end])


def concat(r: Recorder, op: Op, ct: str, out: str, read: list[str]) -> list[Part]:
    ends = np.cumsum([r.values[x].shape[0] for x in read]).tolist()
    return [lambda a=a, b=b: rows_of(r, ct, a, b) for a, b in zip([0, *ends], ends, strict=False)]


def stack(r: Recorder, op: Op, ct: str, out: str, read: list[str]) -> list[Part]:
    return [lambda i=i: r.computed("squeeze", rows_of(r, ct, i, i + 1), axes=[0]) for i in range(len(read))]


def slice_(r: Recorder, op: Op, ct: str, out: str, read: list[str]) -> list[Part]:
    shape = r.values[read[0]].shape
    start, end = op["attrs"]["starts"][0], min(op["attrs"]["ends"][0], shape[0])

    def part() -> str:
        around = [constant(r, np.zeros((size, *shape[1:]))) for size in (start, shape[0] - end)]
        return r.computed("concat", around[0], ct, around[1], axis=0)

    return [part]


def negative(r: Recorder, cell: str) -> str:
    return r.computed("scale", cell, scale=-1.0, bias=0.0)


def one_less(r: Recorder, cell: str) -> str:
    return r.computed("scale", cell, scale=-1.0, bias=1.0)


RULES: dict[str, Rule] = {
    "add": lambda r, op, ct, out, read: [lambda x=x: to_shape(r, ct, x) for x in read],
    "sub": lambda r, op, ct, out, read: [
        lambda: to_shape(r, ct, read[0]), lambda: to_shape(r, negative(r, ct), read[1]),
    ],
    "mul": mul,
    "maximum": maximum,
    "assign": lambda r, op, ct, out, read: [lambda: ct],
    "scale": lambda r, op, ct, out, read: [lambda: r.computed("scale", ct, scale=op["attrs"]["scale"], bias=0.0)],
    "tanh": factor(lambda r, x, y: one_less(r, r.computed("square", y))),
    "sin": factor(lambda r, x, y: r.computed("cos", x)),
    "cos": factor(lambda r, x, y: negative(r, r.computed("sin", x))),
    "sigmoid": factor(lambda r, x, y: times(r, y, one_less(r, y))),
    "softplus": factor(lambda r, x, y: r.computed("sigmoid", x)),
    "square": factor(lambda r, x, y: r.computed("scale", x, scale=2.0, bias=0.0)),
    "sqrt": factor(lambda r, x, y: r.computed("div", constant(r, np.full(r.values[y].shape, 0.5)), y)),
    "reduce_sum": reduce_sum,
    "squeeze": lambda r, op, ct, out, read: [lambda: r.computed("unsqueeze", ct, axes=op["attrs"]["axes"])],
    "unsqueeze": lambda r, op, ct, out, read: [lambda: r.computed("squeeze", ct, axes=op["attrs"]["axes"])],
    "concat": concat,
    "stack": stack,
    "slice": slice_,
}  # fmt: skip
"""Op -> the parts of what is due to each of its inputs."""
