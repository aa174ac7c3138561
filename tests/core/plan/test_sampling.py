"""Positions drawn with given probabilities: machine code draws those that the kernel of the op draws."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.ir import TensorType
from core.ops.common.types import as_dtype
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.core.plan.agreement import agree, with_ops


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(("shape", "count"), [((1,), 1), ((5,), 3), ((2, 3, 17), 9), ((40, 64), 1), ((3, 129), 129)])
def test_positions_are_drawn_from_rows_of_any_length(shape, count, dtype):
    rng = np.random.default_rng(count)
    types = {"p": TensorType(shape, dtype), "k": TensorType((), "int64")}
    attrs = {"num_samples": count, "seed": 3, "stream": 5}
    block = with_ops(types, ("multinomial", "pk", attrs), ("multinomial", "pk", {**attrs, "replacement": True}))
    p = rng.random(shape).astype(as_dtype(dtype)) + as_dtype(dtype).type(0.01)
    few = np.where(rng.random(shape) < 0.5, p, as_dtype(dtype).type(0))

    agree(block, [p, np.array(7)], [p, np.array(-1)], [few, np.array(8)], [p * as_dtype(dtype).type(1e30), np.array(9)])


@pytest.mark.parametrize("replacement", [False, True])
def test_no_position_without_a_probability_is_drawn(replacement):
    types = {"p": TensorType((400, 37), "float64"), "k": TensorType((), "int64")}
    block = with_ops(types, ("multinomial", "pk", {"num_samples": 5, "replacement": replacement}))
    rng = np.random.default_rng(0)
    p = rng.random((400, 37)) * (rng.permuted(np.tile(np.arange(37) % 4 == 0, (400, 1)), axis=1))

    draw = native_interpreter(block, CPU)
    for given in ([p, np.array(1)], [p * 1e-300, np.array(2)]):
        (found,) = draw(Run(), *given)
        assert (np.take_along_axis(p, found, 1) > 0).all()
        if not replacement:
            assert (np.diff(np.sort(found, axis=1)) > 0).all()


@pytest.mark.parametrize(
    ("weights", "count", "replacement"),
    [([1.0, -1.0], 1, True), ([1.0, np.inf], 1, True), ([np.nan, 1.0], 1, False), ([0.0, 0.0], 3, True),
     ([0.0, 2.0], 2, False), ([-1.0, 0.0], 2, False)],
)  # fmt: skip
def test_invalid_weights_are_refused(weights, count, replacement):
    types = {"p": TensorType((2, 2), "float32"), "k": TensorType((), "int64")}
    block = with_ops(types, ("multinomial", "pk", {"num_samples": count, "replacement": replacement}))

    agree(block, [np.array([[0.5, 0.5], weights], "float32"), np.array(7)])
