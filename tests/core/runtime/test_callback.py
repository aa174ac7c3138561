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


def leading() -> Block:
    """Positions of the largest of chosen integers so far: along an open size there is no machine code for them."""
    b = BlockBuilder()
    x, mask = b.param(TensorType((ROWS,), "int64")), b.param(TensorType((ROWS,), "bool"))
    at = b.emit("reshape", b.emit("nonzero", mask), shape=(-1,))
    return b.build([b.emit("running_argmax", b.emit("gather", x, at), axis=0)])


@pytest.mark.parametrize("word", [None, ERROR, STOP])
def test_results_of_open_sizes_are_empty_after_a_failure(word):
    """The rest of a run that fails still reads lengths: one that is not written may be any number."""
    [each] = plan_block(leading(), CPU_TARGET).interpreted
    assert isinstance(each, Interpreted)
    control = (ctypes.c_int64 * 8)()
    if word is not None:
        control[word] = 7
    arrays = [np.full(v.shape, 99, as_dtype(v.dtype)) for v in each.arrays]
    given, result, before, after = arrays
    given[:3], before[...] = [1, 5, 2], 3
    addresses = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))

    callback = Callback([each], control)
    callback._call(0, addresses)

    callback.check()
    assert int(after) == (3 if word is None else 0)
    assert result.tolist() == ([0, 1, 1, 0, 0, 0] if word is None else [0] * ROWS)
