"""Large products as calls of a library: what it takes, what it computes, and how graphs have its calls."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from core.device import cublaslt
from core.device.backend import DeviceBackend
from core.device.cublaslt import check_products
from core.device.gpu import DEVICE_TARGET
from core.device.multiplication import RESULTS, Multiplication
from core.device.rules import RULES
from core.device.step import write_device_step
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.plan import plan_block
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.device.driver import EmulatedDriver
from tests.device.emulator import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

ALL = replace(RULES, library=True, product_flops=0)
"""Every product is a call of the library, if that takes its arrays."""

DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
UNITS = {"float32": 2**-23, "float64": 2**-52, "float16": 2**-10, "bfloat16": 2**-7}


def region_of(block, driver):
    native = native_interpreter(block, DeviceBackend(driver, driver.make, blocks=2, block=64, rules=ALL))
    assert native.region is not None
    return native.region


def numbers(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turns", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((5, 7), (7, 3)), ((1, 6), (6, 4)), ((4, 5), (5, 1)), ((3, 4, 5), (3, 5, 2)),
        ((2, 3, 4, 5), (2, 3, 5, 2)),
    ],
)  # fmt: skip
def test_the_library_computes_products_of_any_layout(dtype, turns, x, y):
    x, y = ((*s[:-2], s[-1], s[-2]) if turn else s for s, turn in zip((x, y), turns, strict=True))
    b = BlockBuilder()
    one, other = (b.param(TensorType(s, dtype)) for s in (x, y))
    # more than a product: arrays of the caller as operands, arrays of the arena as operands and result
    made = b.emit("matmul", one, other, transpose_x=turns[0], transpose_y=turns[1])
    block = b.build([made, b.emit("matmul", b.emit("neg", one), other, transpose_x=turns[0], transpose_y=turns[1])])
    driver = EmulatedDriver(multiplies=True)
    region = region_of(block, driver)
    given = [numbers(x, dtype, 1), numbers(y, dtype, 2)]

    found, negative = region(Run(), *given)

    left, right = (np.swapaxes(v, -1, -2) if turn else v for v, turn in zip(given, turns, strict=True))
    wide = left.astype(np.float64) @ right.astype(np.float64)
    bound = UNITS[dtype] * (np.abs(left).astype(np.float64) @ np.abs(right).astype(np.float64))
    assert np.all(np.abs(found.astype(np.float64) - wide) <= bound)
    if dtype not in ("float32", "float64"):  # rounded once, by the library
        assert np.array_equal(found, wide.astype(np.float32).astype(DTYPES[dtype]))
    assert np.array_equal(found, -negative)
    assert driver.library.products == len(region.code.products) == 2
    assert {each.result for each in region.code.products} == {dtype}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tf32_is_asked_for_products_of_float32_numbers_only(dtype):
    code = write_device_step(plan_block(layer(dtype), DEVICE_TARGET), 2, 64, replace(ALL, tf32=True))

    assert [each.tf32 for each in code.products] == [dtype == "float32"] * 2


def layer(dtype="float32", size=12):
    """Two layers; the bias of the first one is added to nothing else's operand, that of the second one to a result."""
    b = BlockBuilder()
    x, w, v = (b.param(TensorType((size, size), dtype)) for _ in range(3))
    bias, other = (b.param(TensorType((size,), dtype)) for _ in range(2))
    h = b.emit("add", b.emit("matmul", b.emit("tanh", x), w), bias)
    return b.build([b.emit("add", b.emit("matmul", h, v), other)])


def values_of(block, seed=0):
    return [numbers(each.shape, each.dtype, seed + i) for i, each in enumerate(block.param_types)]


def test_the_library_adds_a_bias_to_a_product_that_nothing_else_reads():
    block, driver = layer(), EmulatedDriver(multiplies=True)
    region = region_of(block, driver)
    given = values_of(block)

    (found,) = region(Run(), *given)

    (wanted,) = interpreter_of(block)(Run(), *given)
    # the first sum takes the place of an operand, so that it is computed behind the product
    assert [each.bias is not None for each in region.code.products] == [False, True]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_16_bit_numbers_are_rounded_before_a_bias_is_added(dtype):
    code = write_device_step(plan_block(layer(dtype), DEVICE_TARGET), 2, 64, ALL)

    assert code.products
    assert all(each.bias is None for each in code.products)


def test_a_bias_is_not_added_to_a_product_that_another_op_reads():
    b = BlockBuilder()
    x, w = (b.param(TensorType((8, 8), "float32")) for _ in range(2))
    bias = b.param(TensorType((8,), "float32"))
    made = b.emit("matmul", b.emit("tanh", x), w)
    block = b.build([b.emit("add", made, bias), b.emit("exp", b.emit("matmul", made, w))])
    driver = EmulatedDriver(multiplies=True)
    region = region_of(block, driver)
    given = values_of(block)

    found = region(Run(), *given)

    for one, want in zip(found, interpreter_of(block)(Run(), *given), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-5, atol=1e-5)
    assert all(each.bias is None for each in region.code.products)


def test_each_set_of_addresses_has_a_graph_of_its_own_and_few_are_kept():
    block, driver = layer(), EmulatedDriver(multiplies=True)
    region = region_of(block, driver)
    sets = [[*values_of(block, seed), np.zeros((12, 12), "float32")] for seed in range(7)]
    arrays = region.bind(sets[0])
    turns = [0, 1, 0, 1, 0, 1, 2, 3, 4, 5, 6, 0, 0]

    for turn in turns:
        sets[turn][-1][:] = 0
        arrays.set_all(sets[turn])
        region.run(arrays, Run())
        (wanted,) = interpreter_of(block)(Run(), *sets[turn][:-1])
        np.testing.assert_allclose(sets[turn][-1], wanted, rtol=1e-5, atol=1e-5)

    assert region.captured == 3  # of 0 and 1, and of 0 once more after it was dropped
    assert driver.library.products == 2 * len(turns)
    assert len(arrays.graphs) == 4


def test_an_operand_that_begins_inside_of_an_array_has_an_algorithm_for_its_alignment():
    b = BlockBuilder()
    x, y = b.param(TensorType((3, 5, 7), "float32")), b.param(TensorType((7, 2), "float32"))
    part = b.emit("squeeze", b.emit("slice", x, axes=[0], starts=[1], ends=[2]), axes=[0])
    block, driver = b.build([b.emit("matmul", part, y)]), EmulatedDriver(multiplies=True)
    region = region_of(block, driver)
    x, y = values_of(block)

    for _ in range(3):
        (found,) = region(Run(), x, y)

    np.testing.assert_allclose(found, x[1] @ y, rtol=1e-5, atol=1e-6)
    assert [each.right.place.offset % 16 for each in region.code.products] == [12]
    assert driver.library.searches == 1  # when it is compiled: arrays begin where vectors can be read


@pytest.mark.parametrize("start", [1, 2, 3, 4])
def test_a_bias_that_begins_inside_of_an_array_has_an_algorithm_for_its_alignment(start):
    b = BlockBuilder()
    x, w = (b.param(TensorType((8, 8), "float32")) for _ in range(2))
    bias = b.emit("slice", b.param(TensorType((12,), "float32")), axes=[0], starts=[start], ends=[start + 8])
    block = b.build([b.emit("add", b.emit("matmul", x, w), bias)])
    driver = EmulatedDriver(multiplies=True)
    region = region_of(block, driver)
    x, w, bias = values_of(block)

    for _ in range(3):
        (found,) = region(Run(), x, w, bias)

    np.testing.assert_allclose(found, x @ w + bias[start : start + 8], rtol=1e-5, atol=1e-5)
    assert [each.bias.offset for each in region.code.products] == [4 * start]
    assert driver.library.searches == 1


def test_matrices_in_descending_order_stay_with_the_generated_code():
    b = BlockBuilder()
    x, y = b.param(TensorType((3, 4, 5), "float32")), b.param(TensorType((3, 5, 2), "float32"))
    turned = b.emit("slice", x, axes=[0], starts=[2], ends=[-4], steps=[-1])
    block = b.build([b.emit("matmul", turned, y)])
    driver = EmulatedDriver(multiplies=True)
    region = region_of(block, driver)
    x, y = values_of(block)

    (found,) = region(Run(), x, y)

    np.testing.assert_allclose(found, x[::-1] @ y, rtol=1e-5, atol=1e-5)
    assert not region.code.products


def test_a_product_that_the_library_refuses_is_refused_when_the_step_is_compiled():
    driver = EmulatedDriver(multiplies=True)
    driver.library.refuses = True

    with pytest.raises(ExecutionError) as caught:
        region_of(layer(), driver)

    assert caught.value.code == "compiler_failed"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("dtype", "result"), [(one, each) for one, results in RESULTS.items() for each in results])
def test_a_library_with_wrong_results_is_found_out(dtype, result, monkeypatch):
    monkeypatch.setattr(cublaslt, "RESULTS", {dtype: (result,)})
    driver = EmulatedDriver(multiplies=True)
    check_products(driver)
    driver.library.error = 1.0

    with pytest.raises(RuntimeError, match=f"wrong {result} products of {dtype} numbers"):
        check_products(driver)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_library_that_cuts_off_bits_of_its_results_is_found_out(dtype, monkeypatch):
    monkeypatch.setattr(cublaslt, "RESULTS", {dtype: (dtype,)})
    driver = EmulatedDriver(multiplies=True)
    driver.library.cuts = True

    with pytest.raises(RuntimeError, match=f"wrong {dtype} products of {dtype} numbers"):
        check_products(driver)


def test_overlapping_and_scattered_arrays_stay_with_the_generated_code():
    b = BlockBuilder()
    x = b.param(TensorType((6, 8), "float32"))
    y = b.param(TensorType((4, 5), "float32"))
    every_other = b.emit("slice", x, axes=[1], starts=[0], ends=[8], steps=[2])
    block = b.build([b.emit("matmul", every_other, y)])
    code = write_device_step(plan_block(block, DEVICE_TARGET), 2, 64, ALL)

    assert all(not isinstance(each, Multiplication) or each.right.leading >= each.right.rows for each in code.work)
    driver = EmulatedDriver(multiplies=True)
    given = [numbers((6, 8), "float32"), numbers((4, 5), "float32", 1)]
    (found,) = region_of(block, driver)(Run(), *given)
    np.testing.assert_allclose(found, given[0][:, ::2] @ given[1], rtol=1e-5, atol=1e-6)
