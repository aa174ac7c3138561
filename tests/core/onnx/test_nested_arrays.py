"""Stacks of stacks in ONNX models, which write them as tensors of elements and lengths."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from core.ir import TensorType
from core.ir.builder import BlockBuilder
from tests.core.onnx.exported import compare, names_of, of_block


@pytest.mark.sampled(1, each="ragged")
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("orders", [(1, 1), (1, 2), (2, 1)])
def test_a_stack_of_stacks_is_filled_at_the_places_of_another(orders, ragged):
    """Its inner stacks are shorter, longer or missing. Arrays at the same place have the same shape."""
    for count, wanted in itertools.product((1, 2, 4, 6), repeat=2):
        b, values = BlockBuilder(), []

        def nested(n, order, b=b, values=values):
            array = b.emit("create_array", shape=(-1 if ragged else 2, 2), dtype="float64")
            places = [(k, j) for k in range(n) for j in range(math.comb(k + order, order))][:n]
            for i, (k, j) in enumerate(places):
                values.append(np.full((1 + (k + j) % 3 if ragged else 2, 2), 1.0 + len(values)))
                x = b.param(TensorType(values[-1].shape, "float64"))
                array = b.emit("array_write", x, b.constant(i, "int64"), array)
            return b.emit("array_chunks", array, order=order)

        filled = b.emit("array_fill", nested(count, orders[0]), nested(wanted, orders[1]))
        flat = b.emit("array_flatten", filled)
        block = b.build([b.emit("array_read", flat, b.constant(i, "int64")) for i in range(wanted)])

        compare(of_block(block), names_of(block.results), dict(zip(block.params, values, strict=True)), 0.0)
