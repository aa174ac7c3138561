"""The predicted memory of an op is an upper bound of the bytes that its kernel allocates, on large operands."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import core.ops  # noqa: F401  (fills the registry)
from core.cost.scratch import WORDS, actual_type, needed_bytes, sizes_of_run
from core.ir import StackType, TensorType
from core.ir.builder import output_types
from core.ir.errors import CoreError
from core.ir.registry import REGISTRY, Example, OpSpec, as_tuple
from core.ops.common.types import byte_size
from core.runtime.reference import execute
from tests.laws.examples import OPS, block_for

ELEMENTS = 40_000
"""Elements of an enlarged operand: its bytes exceed those of Python's objects."""

SLACK = 200_000
"""Bytes of Python's objects, of the buffers of ufuncs, and of modules that a kernel imports at its first call."""

FEW = sorted(
    {*WORDS, "correlate", "conv2d", "einsum", "matmul", "solve", "svd", "segment_max", "cumsum", "gather"}
    & REGISTRY.keys()
)
PRIMITIVES = sorted(name for name, spec in REGISTRY.items() if spec.kind == "primitive" and spec.example_rule)

Case = tuple[list[Any], dict[str, Any]]


def enlarged(example: Example) -> Iterator[Case]:
    """The example with one of its sizes multiplied wherever it occurs: in operands, and in attributes too or not."""
    arrays = [None if each is None else np.asarray(each) for each in example.inputs]
    sizes = {n for a in arrays if a is not None for n in a.shape if n > 1}
    sizes |= {
        n for value in example.attrs.values() if isinstance(value, tuple) for n in value if type(n) is int and n > 1
    }
    times = max(2, ELEMENTS // max([1, *(a.size for a in arrays if a is not None)]))
    for size in sorted(sizes):
        for attrs in ({name: _times(value, size, times) for name, value in example.attrs.items()}, example.attrs):
            yield [None if a is None else _tiled(a, size, times) for a in arrays], attrs


def _tiled(array: np.ndarray, size: int, times: int) -> np.ndarray:
    repeats = [times if n == size else 1 for n in array.shape]
    return np.tile(array, repeats) if array.ndim and array.size * math.prod(repeats) <= 4 * ELEMENTS else array


def _times(value: Any, size: int, times: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_times(each, size, times) for each in value)
    return value * times if type(value) is int and value == size else value


def measured(spec: OpSpec, case: Case) -> tuple[int, int] | None:
    """(predicted bytes, bytes that the kernel allocates); None if the operands do not fit the op or are small."""
    inputs, attrs = case
    types = tuple(None if a is None else actual_type(a) for a in inputs)
    try:
        attrs = spec.complete(attrs)
        outputs = output_types(spec, types, attrs)
        if not all(type.is_static and math.prod(type.shape) <= 10 * ELEMENTS for type in outputs) or len(outputs) > 100:
            return None  # thousands of views are objects of Python
        if sum(a.nbytes for a in inputs if a is not None) + sum(map(byte_size, outputs)) < SLACK:
            return None
        with np.errstate(all="ignore"):
            spec.body(np, *inputs, **attrs)  # imports happen at the first call
            tracemalloc.start()
            as_tuple(spec.body(np, *inputs, **attrs))
            peak = tracemalloc.get_traced_memory()[1]
    except (CoreError, ValueError, TypeError, IndexError, OverflowError, np.linalg.LinAlgError):
        return None
    finally:
        tracemalloc.stop()
    return needed_bytes(spec.name, types, outputs), peak


def in_both_precisions(case: Case) -> Iterator[Case]:
    inputs, attrs = case
    yield case
    yield [a.astype("float32") if a is not None and a.dtype == np.float64 else a for a in inputs], attrs


def check(name: str, most: int) -> int:
    """Check up to `most` enlarged examples; returns how many fit."""
    spec, found = REGISTRY[name], 0
    assert spec.example_rule is not None
    for example in spec.example_rule():
        if any(isinstance(each, list) for each in example.inputs):  # tensor arrays hold no new memory
            continue
        for case in (each for large in enlarged(example) for each in in_both_precisions(large)):
            if found >= most:
                return found
            sizes = measured(spec, case)
            if sizes is None:
                continue
            found += 1
            predicted, peak = sizes
            shapes = [None if a is None else (a.shape, str(a.dtype)) for a in case[0]]
            assert peak <= predicted + SLACK, f"{name}{shapes}: {peak} bytes, predicted {predicted}"
    return found


@pytest.mark.parametrize("name", FEW)
def test_the_largest_temporary_arrays_are_predicted(name):
    check(name, most=2)


def arrays(value: Any) -> Any:
    return [arrays(each) for each in value] if isinstance(value, list) else None if value is None else np.asarray(value)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(4))
def test_the_sizes_of_a_run_are_known_before_it(part):
    for name in PRIMITIVES[part::4]:
        spec = REGISTRY[name]
        for example in spec.example_rule():
            inputs, attrs = [arrays(each) for each in example.inputs], spec.complete(example.attrs)
            _, largest = sizes_of_run(name, inputs, attrs)
            if largest and example.outputs:
                known = [np.asarray(each).size for each in example.outputs if not isinstance(each, list)]
                assert largest >= max(known, default=0), (name, example)


def test_a_stack_may_lack_elements():
    stack = [None, np.zeros((2, 3)), None]

    assert actual_type(stack) == StackType(TensorType((2, 3), "float64"))
    assert sizes_of_run("array_length", [stack], {})[1] == 8


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIMITIVES)
def test_the_temporary_arrays_of_every_kernel_are_predicted(name):
    check(name, most=12)


@pytest.mark.slow
def test_most_kernels_have_an_example_that_can_be_enlarged():
    assert sum(check(name, most=1) for name in PRIMITIVES) > 150


@pytest.mark.parametrize("name", ["segment_sum", "segment_max", "segment_min", "segment_prod"])
def test_a_segment_op_allocates_nothing_for_rows_without_elements(name):
    rows, ids = np.zeros((0, 0)), np.zeros(0, "int64")
    block = block_for(OPS[name], Example((rows, ids), (), {"num_segments": 2**40}))

    (found,) = execute(block, [rows, ids])

    assert found.shape == (2**40, 0)


@pytest.mark.parametrize(("op", "before"), [("array_take", [[], np.array(3)]), ("array_paste", [[]])])
def test_zeros_for_the_missing_elements_of_an_empty_tensor_array_are_predicted(op, before):
    """An empty array does not show the type of its elements."""
    like = np.zeros((1000, 100))

    needed, largest = sizes_of_run(op, [*before, like], {})

    assert largest == like.nbytes and needed >= like.nbytes
