"""Memory layout changes no result: machine code of every op and its gradient on transposed, reversed, strided and
broadcast views.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.ir import StackType, TensorType
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import ExecutionError
from core.ir.registry import as_tuple, lookup
from core.runtime.reference import execute
from core.wire import read
from tests.laws.agreement import both
from tests.laws.examples import CASES, OPS, arrays, examples_of
from tests.programs import Sketch

END = -(2**31)


def transposed(x: Value) -> Value:
    return lookup("transpose")(x, axes=tuple(reversed(range(x.rank))))


def sliced(x: Value, start: int, end: int, step: int) -> Value:
    """A slice of every axis from `start` to `end`."""
    axes = tuple(range(x.rank))
    return lookup("slice")(x, axes=axes, starts=(start,) * x.rank, ends=(end,) * x.rank, steps=(step,) * x.rank)


def spread(x: np.ndarray) -> np.ndarray:
    """The elements of `x` with unused numbers between them."""
    raw = np.full([2 * n for n in x.shape], 77).astype(x.dtype)
    raw[(slice(None, None, 2),) * x.ndim] = x
    return raw


Layout = tuple[Callable[[np.ndarray], np.ndarray], Callable[[Value, np.ndarray], Value], Callable[[Value], Value]]

LAYOUTS: dict[str, Layout] = {
    "by columns": (lambda x: np.ascontiguousarray(x.T), lambda v, x: transposed(v), transposed),
    "last first": (
        lambda x: x[(slice(None, None, -1),) * x.ndim].copy(),
        lambda v, x: sliced(v, -1, END, -1),
        transposed,
    ),
    "with gaps": (spread, lambda v, x: sliced(v, 0, 2**31 - 1, 2), lambda v: lookup("reduce_sum")(v)),
    "repeated": (
        lambda x: x[:1],
        lambda v, x: lookup("expand")(v, shape=x.shape),
        lambda v: lookup("reduce_sum")(v, axes=(0,)),
    ),
}
"""(array to pass, ops that restore the array from it, ops on results that give cotangents the same layout)."""


def sampled() -> Iterator[Any]:
    """(op, number of its example, layout). All but one per op are slow."""
    for name, i in CASES:
        if any(isinstance(x, list) for x in arrays(examples_of(OPS[name])[i])):
            continue
        for layout in LAYOUTS:
            yield pytest.param(name, i, layout, marks=[pytest.mark.slow] if i or layout != "repeated" else [])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "i", "layout"), list(sampled()))
def test_an_op_and_its_gradient_do_not_depend_on_memory_layout(name, i, layout):
    spec, example = OPS[name], examples_of(OPS[name])[i]
    store, restore, finish = LAYOUTS[layout]
    b, given, operands = BlockBuilder(), [], []
    for x in arrays(example):
        moves = x.ndim > 0 and x.size > 0
        given.append(store(x) if moves else x)
        value = b.param(TensorType(given[-1].shape, str(x.dtype)))
        operands.append(restore(value, x) if moves else value)
    results = as_tuple(b.emit(name, *operands, **example.attrs))
    if any(isinstance(r.type, StackType) for r in results):
        pytest.skip("lists of arrays")
    block = b.build(finish(r) if r.type.is_float and has_elements(r) else r for r in results)
    wrt = [p for p, x in zip(block.params, given, strict=True) if x.dtype.kind == "f"]
    if spec.differentiable and wrt and any(block.types[r].is_float for r in block.results):
        rng = np.random.default_rng(0)
        try:
            found = execute(block, given)
        except ExecutionError:  # the op does not accept repeated elements
            both(optimize(block), given)
            return
        for value, result in zip(found, block.results, strict=True):
            if block.types[result].is_float:
                given.append(rng.uniform(0.5, 1.5, np.shape(value)).astype(np.asarray(value).dtype))
        block = vjp(block, wrt)
    both(optimize(block), given)


def has_elements(x: Value) -> bool:
    return x.type.is_static and x.rank > 0 and 0 not in x.shape


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("carried", [False, True])
def test_a_result_whose_transpose_is_stored_first_has_the_right_layout(order, carried):
    s = Sketch()
    s.param("x", np.random.default_rng(0).standard_normal((3, 3, 3)))
    s.op("sin", "x", out="a")
    s.op("reshape", "x", out="turned", shape=[27])
    with s.repeat(2) if carried else contextlib.nullcontext():
        s.op("tanh", s.op("scale", "a", scale=1.5), out="a")
        s.op("reshape", s.op("transpose", "a", axes=list(order)), out="turned", shape=[27])
    s.total(s.op("mul", s.op("reshape", "a", shape=[27]), s.op("sin", "turned")))
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"), fetch=["a", "turned"])

    both(executable.interpreter.block, [s.values[v.name] for v in executable.inputs])
