"""Transposes of matrices by tiles, on an emulated GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.device.gpu import DEVICE_TARGET
from core.device.spread import SPREAD
from core.device.step import write_device_step
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.plan import plan_block
from core.plan.geometry import Transposition
from core.plan.instructions import Instructions, Kernel
from core.plan.plan import Plan
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.device.emulator import Emulated, EmulatedBackend, compiler
from tests.device.test_products import APART

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")


def turning(rows: int, columns: int, gap: int, dtype: str) -> Plan:
    """The first columns of a matrix are turned, the other ones lie in gaps between its rows."""
    b = BlockBuilder()
    x = b.param(TensorType((rows, columns + gap), dtype))
    part = b.emit("slice", x, axes=(1,), starts=(0,), ends=(columns,))
    block = b.build([b.emit("transpose", part, axes=(1, 0))])
    plan = plan_block(block, DEVICE_TARGET)
    spec = Transposition(rows, columns, columns + gap, dtype)
    return replace(plan, body=Instructions((Kernel("turn", spec, (plan.params[0], plan.results[0])),)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
@pytest.mark.parametrize(("rows", "columns", "gap"), [(1, 1, 0), (32, 32, 3), (33, 65, 1), (70, 31, 0)])
def test_a_turned_matrix_has_the_bits_of_its_transpose(rows, columns, gap, dtype):
    plan, backend = turning(rows, columns, gap, dtype), EmulatedBackend(2, 64, rules=APART)
    rng = np.random.default_rng(rows)
    x = rng.integers(0, 256, (rows, (columns + gap) * np.dtype(dtype).itemsize)).astype("uint8").view(dtype)
    native = native_interpreter(plan.block, backend)
    (region,) = backend.compiled
    region.plan, region.emulated = plan, Emulated(write_device_step(plan, 2, 64, APART), watches=True)

    (found,) = native(Run(), x)

    assert found.tobytes() == np.ascontiguousarray(x[:, :columns].T).tobytes()


def test_each_tile_of_a_large_matrix_has_a_block():
    few, many = (write_device_step(turning(n, n, 0, "float32"), 132, 256, APART).launches for n in (300, 4096))

    assert [each.grid for each in (*few, *many)] == [132, SPREAD * 132]
