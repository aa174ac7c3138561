"""How an array lies in memory changes no result: every op, and its gradient, on views of any kind as machine code."""

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
from tests.laws.test_native import both
from tests.laws.test_ops import CASES, OPS, arrays, examples_of
from tests.programs import Sketch

END = -(2**31)


def turned(x: Value) -> Value:
    return lookup("transpose")(x, axes=tuple(reversed(range(x.rank))))


def sliced(x: Value, start: int, end: int, step: int) -> Value:
    """Every axis from `start` to `end`."""
    axes = tuple(range(x.rank))
    return lookup("slice")(x, axes=axes, starts=(start,) * x.rank, ends=(end,) * x.rank, steps=(step,) * x.rank)


def spread(x: np.ndarray) -> np.ndarray:
    """Each element of `x` among numbers that nobody should read."""
    raw = np.full([2 * n for n in x.shape], 77).astype(x.dtype)
    raw[(slice(None, None, 2),) * x.ndim] = x
    return raw


Lie = tuple[Callable[[np.ndarray], np.ndarray], Callable[[Value, np.ndarray], Value], Callable[[Value], Value]]

LIES: dict[str, Lie] = {
    "by columns": (lambda x: np.ascontiguousarray(x.T), lambda v, x: turned(v), turned),
    "last first": (lambda x: x[(slice(None, None, -1),) * x.ndim].copy(), lambda v, x: sliced(v, -1, END, -1), turned),
    "with gaps": (spread, lambda v, x: sliced(v, 0, 2**31 - 1, 2), lambda v: lookup("reduce_sum")(v)),
    "repeated": (
        lambda x: x[:1],
        lambda v, x: lookup("expand")(v, shape=x.shape),
        lambda v: lookup("reduce_sum")(v, axes=(0,)),
    ),
}
"""What is given for an array, what makes the array of it, and what is done to results, so that cotangents lie so."""


def sampled() -> Iterator[Any]:
    """(op, number of its example, lie); all but one for an op are slow."""
    for name, i in CASES:
        if any(isinstance(x, list) for x in arrays(examples_of(OPS[name])[i])):
            continue
        for lie in LIES:
            yield pytest.param(name, i, lie, marks=[pytest.mark.slow] if i or lie != "repeated" else [])


@pytest.mark.parametrize(("name", "i", "lie"), list(sampled()))
def test_an_op_and_its_gradient_on_arrays_that_lie_in_any_way(name, i, lie):
    spec, example = OPS[name], examples_of(OPS[name])[i]
    give, take, leave = LIES[lie]
    b, given, operands = BlockBuilder(), [], []
    for x in arrays(example):
        moves = x.ndim > 0 and x.size > 0
        given.append(give(x) if moves else x)
        value = b.param(TensorType(given[-1].shape, str(x.dtype)))
        operands.append(take(value, x) if moves else value)
    results = as_tuple(b.emit(name, *operands, **example.attrs))
    if any(isinstance(r.type, StackType) for r in results):
        pytest.skip("lists of arrays")
    block = b.build(leave(r) if r.type.is_float and has_elements(r) else r for r in results)
    wrt = [p for p, x in zip(block.params, given, strict=True) if x.dtype.kind == "f"]
    if spec.differentiable and wrt and any(block.types[r].is_float for r in block.results):
        rng = np.random.default_rng(0)
        try:
            found = execute(block, given)
        except ExecutionError:  # what is repeated is no longer what the op takes
            both(optimize(block), given)
            return
        for value, result in zip(found, block.results, strict=True):
            if block.types[result].is_float:
                given.append(rng.uniform(0.5, 1.5, np.shape(value)).astype(np.asarray(value).dtype))
        block = vjp(block, wrt)
    both(optimize(block), given)


def has_elements(x: Value) -> bool:
    return x.type.is_static and x.rank > 0 and 0 not in x.shape


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("carried", [False, True])
def test_a_result_whose_transpose_is_stored_first_lies_as_it_should(order, carried):
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
