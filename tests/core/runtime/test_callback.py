"""The function that machine code calls for an op without machine code, when the run has failed already."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from core.codegen.cpu_target import CPU_TARGET
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.instructions import Interpreted
from core.runtime.callback import Callback
from core.runtime.control_words import ERROR, STOP

ROWS = 6


def placed() -> Block:
    """Places of chosen integers among sorted ones: of an open number of them there is no machine code for this."""
    b = BlockBuilder()
    x, mask = b.param(TensorType((ROWS,), "int64")), b.param(TensorType((ROWS,), "bool"))
    at = b.emit("reshape", b.emit("nonzero", mask), shape=(-1,))
    return b.build([b.emit("searchsorted", x, b.emit("gather", x, at))])


@pytest.mark.parametrize("word", [None, ERROR, STOP])
def test_results_of_open_sizes_are_empty_after_a_failure(word):
    """The rest of a run that fails still reads lengths: one that is not written may be any number."""
    [each] = plan_block(placed(), CPU_TARGET).interpreted
    assert isinstance(each, Interpreted)
    control = (ctypes.c_int64 * 8)()
    if word is not None:
        control[word] = 7
    arrays = [np.full(v.shape, 99, as_dtype(v.dtype)) for v in each.arrays]
    among, given, result, before, after = arrays
    among[...], given[:3], before[...] = range(ROWS), [1, 5, 2], 3
    addresses = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))

    callback = Callback([each], control)
    callback._call(0, addresses)

    callback.check()
    assert int(after) == (3 if word is None else 0)
    assert result.tolist() == ([1, 5, 2, 0, 0, 0] if word is None else [0] * ROWS)
