"""Long sums in float32 are as precise as short ones: the kernel flushes a partial sum before it absorbs new terms."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.codegen.operands import MOST_ADDITIONS
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.registry import lookup
from core.runtime.native import native_interpreter
from core.runtime.run import Run

SHAPES = {
    "one row": ((1_000_003,), None),
    "long rows": ((100, 8192), None),
    "short rows": ((200_000, 8), None),
    "the sum of each row": ((3, 400_000), (1,)),
    "rows that end in the middle of a vector": ((2, 300_007), (1,)),
}


@pytest.mark.parametrize(("shape", "axes"), SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("chain", [0, 9])
def test_a_sum_of_equal_numbers_is_their_product_with_the_count(shape, axes, chain):
    """The worst case: all roundings of such a sum err in the same direction. After a chain of functions, the kernel
    computes several vectors of a row at once."""
    b = BlockBuilder()
    x = b.param(TensorType(shape, "float32"))
    y = x
    for _ in range(chain):
        y = lookup("sqrt")(lookup("square")(y))
    block = optimize(b.build([lookup("reduce_sum")(y, axes=axes)]))
    number = np.float32(0.1)

    (found,) = native_interpreter(block, CPU)(Run(), np.full(shape, number))

    count = shape[-1] if axes else np.prod(shape)
    np.testing.assert_allclose(found, float(number) * count, rtol=2 * MOST_ADDITIONS * 2**-24)
