"""Pooling on an emulated GPU: windows with padding and rests, chosen elements, and positions that are data."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.device.gpu import DEVICE_TARGET
from core.device.ptx import cubin_of, has_linker, ptx_of
from core.device.step import write_device_step
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.plan import plan_block
from core.plan.instructions import Kernel
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.core.codegen import test_windows
from tests.core.codegen.test_windows import pooled, pools, scattering, values_for, with_gradient
from tests.device.agreement import SCOPES, agree
from tests.device.barriers import races_without
from tests.device.emulator import EmulatedBackend, compiler
from tests.device.test_convolutions import LAUNCHES
from tests.device.test_products import APART

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")


def on_device(block: Block, values: list[np.ndarray]) -> None:
    """The block agrees with the reference executor, on a launch that its values choose."""
    seed = random.Random(repr([v.shape for v in values])).randrange(1 << 16)
    blocks, threads = LAUNCHES[seed % 4]
    agree(block, values, EmulatedBackend(blocks, threads, seed=seed, rules=SCOPES[1 + seed % 2]))


@pytest.fixture
def emulated(monkeypatch):
    """The checks of `test_windows`, on an emulated GPU."""
    monkeypatch.setattr(test_windows, "agree", on_device)


def kinds(block: Block) -> set[str]:
    return {i.kind for i in plan_block(optimize(block), DEVICE_TARGET).body.instructions if isinstance(i, Kernel)}


QUIET = list(HealthCheck)


@settings(max_examples=12, deadline=None, suppress_health_check=QUIET, derandomize=True)
@given(case=pools(longest=14), seed=st.integers(0, 99))
def test_pools_and_their_gradients_agree_with_the_reference_executor(emulated, case, seed):
    test_windows.check_pools(case, seed)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=QUIET)
@given(case=pools(longest=30), seed=st.integers(0, 99))
def test_many_pools_and_their_gradients_agree_with_the_reference_executor(emulated, case, seed):
    test_windows.check_pools(case, seed)


OVERLAPPING = {"kernel_size": (3, 2), "strides": (2, 1), "paddings": (1, 1, 1, 0), "ceil_mode": True}


@pytest.mark.parametrize(("op", "adjoint"), [("max_pool", "chosen_cover"), ("window_sum", "cover")])
def test_sums_over_windows_have_the_bits_of_the_cpu(op, adjoint):
    """Elements of windows, and the windows that have chosen an element, are added in the same order."""
    block = with_gradient(pooled(op, TensorType((2, 3, 9, 14), "float32"), OVERLAPPING, slice(1)))
    assert kinds(block) == {"pool", adjoint}
    values = values_for(block)

    found = native_interpreter(block, EmulatedBackend(3, 64, rules=APART))(Run(), *values)

    wanted = native_interpreter(block, CPU)(Run(), *values)
    exact = slice(None) if op == "max_pool" else slice(1)  # a CPU adds up elements of the filter, as a convolution
    assert [x.tobytes() for x in found[exact]] == [x.tobytes() for x in wanted[exact]]


def test_a_window_of_more_elements_than_a_byte_counts_finds_its_maximum():
    type = TensorType((1, 2, 600), "float32")
    x = np.zeros(type.shape, "float32")
    x[0, :, [5, 290, 599]] = 2
    block = with_gradient(pooled("max_pool", type, {"kernel_size": (300,), "strides": (100,)}, slice(1)))
    assert "chosen_cover" in kinds(block)

    on_device(block, [x, *values_for(block)[1:]])


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_elements_of_integers_are_put_where_a_pooling_of_floats_found_its_maxima(dtype):
    b = BlockBuilder()
    x = b.param(TensorType((2, 3, 9, 14), "float32"))
    out, index = b.emit("max_pool", x, **OVERLAPPING)
    given, like = b.param(TensorType(out.shape, dtype)), b.param(TensorType(x.shape, dtype))
    block = b.build([b.emit("unpool_like", given, index, like)])
    assert "chosen_cover" in kinds(block)
    rng = np.random.default_rng(0)
    image = rng.permutation(2 * 3 * 9 * 14).reshape(x.shape).astype("float32")
    values = [image, rng.integers(0, 9, out.shape).astype(dtype), np.zeros(x.shape, dtype)]

    on_device(block, values)
    test_windows.agree(block, values)


@pytest.mark.parametrize("counts", [3, 40])
def test_nan_is_the_maximum_at_any_position(emulated, counts):
    test_windows.test_nan_is_the_maximum_at_any_position(counts)


@pytest.mark.parametrize("op", ["pick", "unpool_like"])
@pytest.mark.parametrize("position", [-12, 12, -13])
def test_a_position_is_checked_before_it_is_used(emulated, op, position):
    test_windows.test_a_position_is_checked_before_it_is_used(op, position)


def test_gradients_of_windows_inside_a_loop_agree_with_the_reference_executor(emulated):
    test_windows.test_gradients_of_windows_inside_a_loop_equal_the_reference_executor()


def test_the_barrier_of_an_unpooling_that_is_taken_out_is_a_race():
    block = scattering("unpool_like", (9, 10), (50,))
    values = [np.ones(block.types[p].shape, "float32") for p in block.params]
    values[1] = np.random.default_rng(0).integers(0, 90, values[1].shape)

    assert races_without("(?:block_)?barrier", block, values, EmulatedBackend(1, 64, rules=APART)) == [True]


@pytest.mark.skipif(not has_linker(), reason="no nvJitLink")
@pytest.mark.parametrize("kernel", [3, 7])
def test_pools_of_real_sizes_become_machine_code_without_spilled_registers(kernel):
    type = TensorType((32, 64, 112, 112), "float32")
    block = with_gradient(pooled("max_pool", type, {"kernel_size": (kernel, kernel), "strides": (2, 2)}, slice(1)))
    code = write_device_step(plan_block(block, DEVICE_TARGET), 132, 256, APART)

    assert cubin_of(ptx_of(code, "sm_90"), "sm_90").spilled == 0
