"""Random programs that cross the statements of `indexing_programs` with other features: tables, scans, tensor arrays,
functions, rows of two blocks, choices, derivatives, noise, losses and normalisations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests import indexing_programs
from tests.indexing_programs import MEMORY, POOL, STATEMENTS, written
from tests.programs import Sketch

__all__ = ["TABLE", "crossed_program"]

TABLE = "table"
"""A parameter of as many rows of as many columns as the matrices have."""


class _Writer(indexing_programs.Writer):
    """Writes statements of both files. inside: whether it writes the block of a function or of rows."""

    inside = False

    def statement(self) -> None:
        own = [each for each in CROSSED if not (self.inside and each in OUTSIDE)]
        axis = self.pick(0, 1, -1, -2)
        write = self.draw.choice(own if self.draw.random() < 0.5 else STATEMENTS)
        self.op(self.pick("tanh", "sin"), write(self, self.one(), self.one(), axis), out=self.one())

    def matrix(self) -> list[int]:
        return [self.rows, self.columns]


def _looked_up(w: _Writer, x: str, y: str, axis: int) -> str:
    """Rows of the table, or of a matrix computed from it."""
    table = w.pick(TABLE, TABLE, x)
    padding = w.pick(None, None, 0, -1)
    more = {} if padding is None else {"padding_idx": padding}
    return w.op("add", y, w.op("embedding", table, w.positions(), is_sparse=w.pick(True, True, False), **more))


def _bags(w: _Writer, x: str, y: str, axis: int) -> str:
    ids = w.op("stack", [w.positions(), w.positions()], axis=-1)
    return w.op("mul", y, w.op("embedding_bag", TABLE, ids, mode=w.pick("sum", "mean", "max")))


def _table_product(w: _Writer, x: str, y: str, axis: int) -> str:
    return w.op("mul", x, TABLE)


def _scan(w: _Writer, x: str, y: str, axis: int) -> str:
    """The rows of x, forwards or backwards, with the greatest of the states so far."""
    k = w.sketch.count
    state, best, element, left = f"h{k}", f"m{k}", f"el{k}", f"o{k}"
    row = w.op("reduce_sum", y, axes=[0])
    with w.sketch.block() as body:
        mixed = w.op("add", w.op("mul", state, element), w.op("roll", best, shifts=[1], axes=[0]))
        w.op("tanh", mixed, out=left)
        w.op("maximum", best, w.op("scale", left, scale=0.7, bias=0.01), out=best)
        w.op("sin", w.op("sub", left, w.op("reduce_mean", best)), out=state)
    final, stacked = [f"f{k}", f"g{k}"], f"s{k}"
    w.sketch.construct(
        "scan",
        {"initial": [row, row], "sequences": [x]},
        {"final": final, "stacked": [stacked]},
        sub_block=body,
        states=[state, best],
        elements=[element],
        outputs=[left],
        reverse=w.pick(True, False),
        memory=w.pick(*MEMORY),
    )
    return w.op("add", stacked, w.op("mul", *final))


def _array(w: _Writer, x: str, y: str, axis: int) -> str:
    """Rows that a loop appends to an array. It may read earlier ones at computed positions, and write there."""
    k = w.sketch.count
    array, row, i = f"arr{k}", f"row{k}", f"at{k}"
    w.sketch.construct("create_array", {}, {"out": [array]}, shape=[w.columns], dtype="float64")
    w.op("reduce_sum", y, axes=[0], out=row)
    w.op("assign", w.whole(0), out=i)
    order = w.pick(None, w.positions())
    with w.sketch.repeat(w.rows):
        element = w.op("squeeze", w.op("gather", x, w.op("unsqueeze", i, axes=[0]), axis=0), axes=[0])
        w.op("tanh", w.op("add", row, element), out=row)
        _write(w, array, i, row)
        if order is not None:
            at = w.op("mod", w.op("gather", order, i), w.op("add", i, w.whole(1)))
            w.op("mul", row, w.op("cos", w.op("array_read", array, at)), out=row)
            if w.draw.random() < 0.4:
                _write(w, array, at, w.op("sin", row))
        w.op("increment", i, out=i, step=1)
    w.sketch.blocks[w.sketch.at]["ops"][-1]["attrs"]["memory"] = w.pick(*MEMORY)
    return w.op("add", w.op("array_stack", array), row)


def _write(w: _Writer, array: str, index: str, x: str) -> None:
    w.sketch.construct("array_write", {"x": [x], "index": [index], "array": [array]}, {"out": [array]})


def _function(w: _Writer, x: str, y: str, axis: int) -> str:
    inner = _Writer(w.draw.randrange(2**32))
    inner.inside, inner.rows, inner.columns, inner.budget = True, w.rows, w.columns, w.draw.randint(1, 3)
    leaves = [{"name": n, "dtype": "float64", "shape": w.matrix(), "role": "feed"} for n in ("p", "q")]
    inner.sketch.blocks[0]["vars"] += leaves
    for name, start in zip(POOL, ("p", "q", "p", "q"), strict=True):
        inner.op(inner.pick("assign", "sin"), start, out=name)
    inner.fill(1)
    inner.op("mul", inner.one(), inner.one(), out="first")
    inner.op("sub", inner.one(), inner.one(), out="second")
    name = f"fn{w.sketch.count}"
    w.sketch.functions[name] = {"program": {"blocks": inner.sketch.blocks}, "results": ["first", "second"]}
    outs = [f"r{w.sketch.count}", f"q{w.sketch.count}"]
    w.sketch.construct("call", {"x": [x, y]}, {"out": outs}, function=name)
    return w.op(w.pick("add", "mul"), *outs)


def _by_rows(w: _Writer, x: str, y: str, axis: int) -> str:
    """Rows whose sum is positive go through one block, the others through another."""
    k = w.sketch.count
    flags = w.op("greater_than", w.op("reduce_sum", x, axes=[1]), w.const(w.pick(0.0213, 50.0, -50.0)))
    sides = []
    for _ in range(2):
        with w.sketch.block() as side:
            total = w.op("reduce_sum", f"row{k}", axes=[1], keepdims=True)
            sorted_ = w.op("sort", f"row{k}", axis=1, descending=w.pick(True, False))
            w.op(w.pick("add", "mul"), sorted_, w.op("sin", total), out=f"by{k}")
        sides.append(side)
    w.sketch.construct(
        "if_else_rows",
        {"condition": [flags], "x": [x]},
        {"out": [f"by{k}"]},
        true_block=sides[0],
        false_block=sides[1],
        rows=[f"row{k}"],
    )
    return w.op("add", y, f"by{k}")


def _chosen(w: _Writer, x: str, y: str, axis: int) -> str:
    """A block chosen by the position of the greatest sum of rows."""
    k = w.sketch.count
    index = w.op("argmax", w.op("reduce_sum", x, axes=[1]), axis=0)
    w.op("assign", x, out=f"ch{k}")
    sides = []
    for _ in range(w.pick(2, 3)):
        with w.sketch.block() as side:
            found = w.draw.choice(STATEMENTS)(w, x, y, axis)
            w.op(w.pick("tanh", "sin"), w.op("add", found, f"ch{k}"), out=f"ch{k}")
        sides.append(side)
    *branches, default = sides
    w.sketch.construct("switch_case", {"index": [index]}, {}, branches=branches, default_block=default)
    return w.op("add", y, f"ch{k}")


def _derivative(w: _Writer, x: str, y: str, axis: int) -> str:
    copy = w.op("assign", x)
    found = w.draw.choice(STATEMENTS)(w, copy, y, axis)
    target = w.op("sin", w.op("mul", found, copy))
    w.sketch.construct("gradients", {"targets": [target], "inputs": [copy]}, {"out": [f"slope{w.sketch.count}"]})
    return f"slope{w.sketch.count}"


def _dropped(w: _Writer, x: str, y: str, axis: int) -> str:
    attrs = {"p": w.pick(0.25, 0.5), "seed": w.draw.randint(0, 99), "stream": w.draw.randint(1, 99)}
    return w.op("add", y, w.op("dropout", x, **attrs))


def _noise(w: _Writer, x: str, y: str, axis: int) -> str:
    kind = w.pick("gaussian_random_like", "uniform_random_like")
    return w.op("mul", y, w.op("sin", w.op("add", x, w.op(kind, x, stream=w.draw.randint(1, 99)))))


def _normalised(w: _Writer, x: str, y: str, axis: int) -> str:
    found = w.pick(
        lambda: w.op("layer_norm", x, begin_norm_axis=1, epsilon=0.3),
        lambda: w.op("rms_norm", x, epsilon=0.3),
        lambda: w.op("l2_normalize", w.op("scale", w.op("square", x), bias=0.5), axis=axis),
        lambda: w.op("var", x, axes=[axis], keepdims=True, ddof=0),
    )
    return w.op("mul", y, found())


def _labels(w: _Writer, x: str, y: str, axis: int) -> str:
    labels = w.op("unsqueeze", w.within(w.positions(), w.columns), axes=[1])
    loss = w.op("softmax_with_cross_entropy", x, labels, ignore_index=w.pick(-100, 0))
    return w.op("mul", y, w.op("reduce_mean", loss))


CROSSED: tuple[Callable[[Any, str, str, int], str], ...] = (
    *(_looked_up, _looked_up, _bags, _table_product, _scan, _array, _function, _by_rows, _chosen, _derivative),
    *(_dropped, _noise, _normalised, _labels),
)
OUTSIDE = (_looked_up, _bags, _table_product, _function, _dropped, _noise)
"""Statements that a function cannot contain: they read parameters or draw numbers."""


def crossed_program(seed: int) -> Sketch:
    """A program of `seed` with parameters w, v and the table, a feed x, and a scalar `loss`."""
    return written(_Writer(seed), seed, ("w", "v", TABLE))
