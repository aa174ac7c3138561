"""Machine code agrees with the reference executor on every op and its gradient, and on random programs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.autodiff.adjoint import vjp
from core.compiler.compile import GradientQuery, compile_gradient, key_of, optimize
from core.ir import Block, StackType, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.ir.registry import Example
from core.runtime.native import native_interpreter
from core.runtime.reference import execute, interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.laws import test_ops
from tests.laws.test_ops import CASES, OPS, arrays, block_for, examples_of, floats, shortened
from tests.laws.test_random_programs import EVERY, EXAMPLES, PARTS, POLICIES, leaves, second_order
from tests.products import ROWS
from tests.rounding import ROUNDING
from tests.strategies import LEAVES, TABLE, programs


def same(found, wanted):
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for f, w in zip(found, wanted, strict=True):
            same(f, w)
        return
    if wanted is None:
        assert found is None
        return
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if wanted.dtype.kind == "f":
        tolerance = 1e-10 if wanted.dtype == np.float64 else 2e-5
        largest = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)  # the terms of sums that cancel
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * largest)
    else:
        np.testing.assert_array_equal(found, wanted)


def both(block, args, rounds=False):
    """rounds: whether results may differ by what rounded inputs move them, as those of a random program may."""
    wanted = refused = None
    with np.errstate(all="ignore"):
        try:
            wanted = interpreter_of(block)(Run(), *args)
        except ExecutionError as error:
            refused = error
        native = native_interpreter(block, ROUNDING)
        if refused is not None:
            with pytest.raises(ExecutionError) as caught:
                native(Run(), *args)
            assert caught.value.code == refused.code
            return
        found = native(Run(), *args)
        moving = moved_as_far(block, args, found, wanted) if rounds else set()
        for i, (f, w) in enumerate(zip(found, wanted, strict=True)):
            if i not in moving:
                same(f, w)


def moved_as_far(block: Block, args: list[Any], found: Any, wanted: Any) -> set[int]:
    """Positions of the floats that differ, but not farther than inputs move them that change by one unit in the last
    place.
    """
    far = []
    for i, (f, w) in enumerate(zip(found, wanted, strict=True)):
        if not isinstance(w, np.ndarray | np.floating) or w.dtype.kind != "f" or np.shape(f) != w.shape:
            continue
        try:
            same(f, w)
        except AssertionError:
            far.append(i)
    rng, moved = np.random.default_rng(0), dict.fromkeys(far, 0.0)
    for _ in range(4 if far else 0):
        results = interpreter_of(block)(Run(), *(_rounded(rng, each) for each in args))
        moved = {i: np.maximum(moved[i], np.abs(results[i] - wanted[i]).max()) for i in far}
    return {i for i in far if np.abs(found[i] - wanted[i]).max() <= ROUNDINGS * moved[i]}


ROUNDINGS = 16
"""How much farther the roundings inside of a program move its results than those of its inputs, at most."""


def _rounded(rng: np.random.Generator, value: Any) -> Any:
    """Floats that differ from those of `value` by one unit in the last place."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    return np.nextafter(value, rng.choice([-np.inf, np.inf], value.shape).astype(value.dtype))


def in_dtype(name: str, i: int, dtype: str) -> Example | None:
    """An example with its float64 arrays in `dtype`. None if it has no such arrays."""
    example = examples_of(OPS[name])[i]
    if dtype == "float64":
        return example
    attrs = {k: dtype if k == "dtype" and v == "float64" else v for k, v in example.attrs.items()}
    if attrs == example.attrs and all(x.dtype != "float64" for x in test_ops.leaves(example.inputs)):
        return None
    return Example(tuple(shortened(x) for x in arrays(example)), (), attrs)


def cotangent(rng: np.random.Generator, of: Any) -> Any:
    if isinstance(of, list):
        return [cotangent(rng, each) for each in of]
    return rng.uniform(0.5, 1.5, np.shape(of)).astype(np.asarray(of).dtype)


def has_lists(name: str, i: int) -> bool:
    """Whether an example takes or returns lists of arrays."""
    block = block_for(OPS[name], examples_of(OPS[name])[i])
    return any(isinstance(block.types[n], StackType) for n in (*block.params, *block.results))


def sampled() -> Iterator[Any]:
    """(op, number of its example, dtype). Only the first example of an op in the narrower dtype is not slow.

    `test_guarded.py` compares the first example in float64, unless it has lists of arrays.
    """
    for name, i in CASES:
        narrow = in_dtype(name, i, "float32") is not None
        for dtype in ("float64", "float32"):
            if in_dtype(name, i, dtype) is not None:
                fast = i == 0 and (dtype == "float32" or has_lists(name, i) or not narrow)
                yield pytest.param(name, i, dtype, marks=[] if fast else [pytest.mark.slow])


def step_of(name: str, i: int, dtype: str) -> tuple[Block, list[Any]]:
    """An op on an example, or its pullback if it has one, and the values of its operands."""
    example = in_dtype(name, i, dtype)
    assert example is not None
    spec, values = OPS[name], arrays(example)
    block = block_for(spec, example)
    wrt = [block.params[k] for k in floats(values)]
    if spec.differentiable and wrt:
        rng = np.random.default_rng(0)
        results = zip(execute(block, values), block.results, strict=True)
        values += [cotangent(rng, value) for value, name in results if block.types[name].is_float]
        block = vjp(block, wrt)
    return optimize(block), values


@pytest.mark.parametrize(("name", "i", "dtype"), list(sampled()))
def test_an_op_and_its_gradient_agree_with_the_reference_executor(name, i, dtype):
    both(*step_of(name, i, dtype))


def like(document: Any, dtype: str, width: int) -> Any:
    """A random program for vectors of another size and another dtype than float64."""
    if isinstance(document, dict):
        return {
            key: [*value[:-1], width] if key == "shape" and value[-1:] == [2] else like(value, dtype, width)
            for key, value in document.items()
        }
    if isinstance(document, list):
        return [like(each, dtype, width) for each in document]
    return dtype if document == "float64" else document


def values_like(seed: int, dtype: str, width: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    vectors = {name: rng.uniform(-1.2, 1.2, width) for name in LEAVES}
    rows = {"xs": 3, "nothing": 0, "open2": 2, "bare2": 0, "deep": ROWS, TABLE: 3}
    matrices = {name: rng.uniform(-1.0, 1.0, (n, width)) for name, n in rows.items()}
    values = {**leaves(seed), **vectors, **matrices}
    return {name: value.astype(dtype) if value.dtype == np.float64 else value for name, value in values.items()}


WIDTHS = (1, 2, 3, 5, 8, 16, 17, 33, 70)
"""Sizes around the lanes of a vector register, and rows of several registers."""


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_only_the_results_of_an_ill_conditioned_program_may_move_by_roundings(dtype):
    """The reciprocal of a small difference is ill-conditioned, and the sine of the same numbers is not."""
    b, eps = BlockBuilder(), float(np.finfo(dtype).eps)
    x, one = b.param(TensorType((3,), dtype)), b.constant(1.0, dtype)
    block = b.build([b.emit("div", one, b.emit("sub", x, one)), b.emit("sin", x)])
    args = [np.array([1 + 100 * eps, 1 + 90 * eps, 1 + 110 * eps], dtype)]
    inverse, sine = interpreter_of(block)(Run(), *args)
    wanted = [inverse, sine]

    assert moved_as_far(block, args, [inverse * 1.05, sine], wanted) == {0}
    assert moved_as_far(block, args, [inverse * 2, sine], wanted) == set()
    assert moved_as_far(block, args, [inverse * 1.05, sine * 1.001], wanted) == {0}
    assert moved_as_far(block, args, wanted, wanted) == set()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@settings(max_examples=-(-EXAMPLES // (4 * PARTS)), deadline=None, suppress_health_check=list(HealthCheck))
@given(document=programs(), seed=st.integers(0, 2**16), width=st.sampled_from(WIDTHS))
def test_a_random_program_agrees_with_the_reference_executor(part, dtype, document, seed, width):
    values = values_like(seed, dtype, width)
    program = read(like(document, dtype, width))
    draw = random.Random(seed)
    query = GradientQuery(targets=("loss",), loop_memory=draw.choice(POLICIES), **EVERY)
    known = {"shapes": {name: np.shape(value) for name, value in values.items()}} if draw.random() < 0.5 else {}
    for executable in (
        compile_gradient(program, query, fetch=["loss"], **known),
        second_order(program, memory=(draw.choice(POLICIES), draw.choice(POLICIES)), **known),
    ):
        args = [key_of(0, 0) if v.role == "key" else values[v.name] for v in executable.inputs]
        both(executable.interpreter.block, args, rounds=True)
