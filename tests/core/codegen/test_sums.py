"""Long sums in float32 are as precise as short ones: a partial sum is put aside before it absorbs new terms."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.codegen.column_sums import BLOCK
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
    "three columns": ((1_000_003, 3), (0,)),
    "columns that end in the middle of a vector": ((400_001, 21), (0,)),
    "long columns": ((20_000, 700), (0,)),
    "columns of several matrices": ((3, 300_001, 5), (1,)),
    "rows of many columns": ((100_000, 4, 6), (0, 2)),
}


@pytest.mark.sampled(1)
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

    count = np.prod([shape[axis] for axis in axes or range(len(shape))])
    np.testing.assert_allclose(found, float(number) * count, rtol=3 * BLOCK * 2**-24)
