"""Agreement of machine code with the reference executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.ir import Block, StackType
from core.ir.errors import ExecutionError
from core.ir.registry import Example
from core.runtime.native import native_interpreter
from core.runtime.reference import execute, interpreter_of
from core.runtime.run import Run
from tests.laws.examples import OPS, arrays, block_for, examples_of, floats, shortened
from tests.laws.examples import leaves as arrays_in
from tests.laws.random_programs import leaves
from tests.products import ROWS
from tests.rounding import ROUNDING
from tests.strategies import LEAVES, TABLE


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
    if attrs == example.attrs and all(x.dtype != "float64" for x in arrays_in(example.inputs)):
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
