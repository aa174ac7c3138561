"""A size that only a run tells: an op gives what its type rule says, or the run ends with an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from core.ir import StackType, TensorType
from core.ir.builder import BlockBuilder, output_types
from core.ir.errors import CoreError, ExecutionError
from core.ir.registry import as_tuple
from core.ops.common.types import matches
from core.runtime.reference import execute
from tests.laws.test_ops import OPS, arrays, examples_of, type_of

REFUSALS = (CoreError, ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError, np.linalg.LinAlgError)
"""What becomes an error of the run where a kernel raises it."""


def other_sizes(values: list[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    """`values` with one size of one of them changed, and their types, in which that size is unknown."""
    for i, x in enumerate(values):
        for axis in range(0 if isinstance(x, list) else x.ndim):
            size = x.shape[axis]
            for other in {1, size - 1, size + 1} - {size, -1} if size else ():
                types = [type_of(each) for each in values]
                types[i] = TensorType((*x.shape[:axis], -1, *x.shape[axis + 1 :]), types[i].dtype)
                changed = np.take(x, np.arange(other) % size, axis)
                yield [*values[:i], changed, *values[i + 1 :]], types


@pytest.mark.parametrize("name", sorted(OPS))
def test_results_for_open_sizes_have_the_inferred_types(name):
    spec = OPS[name]
    for example in examples_of(spec):
        values = arrays(example)
        if any(isinstance(x, list) for x in values) or any(x is None for x in example.inputs):
            continue
        attrs = spec.complete(example.attrs)
        for given, types in other_sizes(values):
            try:
                inferred = output_types(spec, tuple(types), attrs)
            except CoreError:
                continue
            b = BlockBuilder()
            params = [b.param(t) for t in types]
            block = b.build(as_tuple(b.emit(name, *params, **example.attrs)))
            try:
                found = execute(block, given)
            except REFUSALS:
                continue
            for value, type in zip(found, inferred, strict=True):
                if not isinstance(type, StackType):
                    assert matches(type_of(value), type), [t.shape for t in types]


@pytest.mark.parametrize("name", ["sum_to", "split", "split_like"])
def test_an_open_size_that_does_not_fit_ends_the_run(name):
    b = BlockBuilder()
    x = b.param(TensorType((-1,), "float64"))
    if name == "sum_to":
        out = [b.emit("sum_to", x, shape=(2,))]
    elif name == "split":
        out = b.emit("split", x, num=2)
    else:
        out = b.emit("split_like", x, *(b.param(TensorType((1,), "float64")) for _ in range(2)))
    block = b.build(out)

    with pytest.raises(ExecutionError) as caught:
        execute(block, [np.arange(3.0), *(np.ones(1) for _ in block.params[1:])])

    assert caught.value.code == "shape_mismatch"
