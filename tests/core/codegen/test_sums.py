"""Long sums in float32 lose no more than short ones: what was summed is put aside before it swallows what is added."""

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
    "rows that are summed each": ((3, 400_000), (1,)),
    "rows that end in the middle of a vector": ((2, 300_007), (1,)),
}


@pytest.mark.parametrize(("shape", "axes"), SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("chain", [0, 9])
def test_equal_numbers_add_up_to_their_number_of_times(shape, axes, chain):
    """The worst case: each rounding of such a sum errs the same way as the one before. Behind a chain of functions,
    several pieces of a row are computed side by side."""
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
