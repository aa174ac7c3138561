"""Cheap values that other passes compute again: equal gradients, and fewer arrays in memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend, parallel
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.instructions import Gemm, Rows
from core.runtime.native import native_interpreter
from core.runtime.reference import execute
from core.runtime.run import Run

SHAPE = (6, 4, 5, 8)


def normalised(kind: str, dtype: str, residual: bool = False, shape: tuple[int, ...] = SHAPE) -> Block:
    """A normalisation, a relu, and an addition in between if `residual`."""
    b = BlockBuilder()
    x = b.param(TensorType(shape, dtype))
    scale, bias = (b.param(TensorType((shape[-1 if kind == "layer_norm" else 1],), dtype)) for _ in range(2))
    if kind == "batch_norm":
        statistics = [b.emit("fill_constant", shape=(shape[1],), value=float(i), dtype=dtype) for i in (0, 1)]
        out, _, _ = b.emit("batch_norm", x, scale, bias, *statistics)
    else:
        more = {"group_norm": {"groups": 2}, "layer_norm": {"begin_norm_axis": -1}}.get(kind, {})
        out = b.emit(kind, x, scale, bias, **more)
    if residual:
        out = b.emit("add", out, b.param(TensorType(shape, dtype)))
    return b.build([b.emit("relu", out)])


def arguments(block: Block, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(block.types[p].shape).astype(as_dtype(block.types[p].dtype)) for p in block.params]


def stored(block: Block, elements: int) -> int:
    """The arrays of at least so many elements that passes over memory write."""
    passes = [i for i in plan_block(optimize(block), CPU_TARGET).body.instructions if isinstance(i, Rows)]
    return sum(
        instr.kind == "store" and math.prod(each.kernel.outer) * each.kernel.inner >= elements
        for each in passes
        for instr in each.kernel.code
        if instr.full
    )


@pytest.mark.sampled(2, each="kind")
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("kind", ["batch_norm", "instance_norm", "group_norm", "layer_norm"])
def test_gradients_of_normalisations_equal_those_of_the_reference(kind, residual, order):
    block = normalised(kind, "float64", residual)
    for _ in range(order):
        block = vjp(block)
    block = optimize(block)
    args = arguments(block)

    found = native_interpreter(block, CPU)(Run(), *args)

    for one, other in zip(found, execute(block, args), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("dtype", "near"), [("float32", 1e-5), ("bfloat16", 0.1), ("float16", 0.02)])
def test_gradients_of_a_batch_norm_hold_in_every_dtype(dtype, near):
    exact = optimize(vjp(normalised("batch_norm", "float64")))
    block = optimize(vjp(normalised("batch_norm", dtype)))
    args = arguments(block, 1)

    found = native_interpreter(block, CPU)(Run(), *args)

    for one, other in zip(found, execute(exact, [a.astype("float64") for a in args]), strict=True):
        allowed = near * np.abs(other).max()
        np.testing.assert_allclose(np.asarray(one).astype("float64"), other, rtol=0, atol=allowed)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_pass_shared_by_threads_computes_them_again_too(threads, monkeypatch):
    monkeypatch.setattr(parallel, "LONG", 1)
    monkeypatch.setattr(backend, "thread_count", lambda: threads)
    block = optimize(vjp(normalised("batch_norm", "float64", residual=True)))
    args = arguments(block, 2)

    for one, other in zip(native_interpreter(block, CPU)(Run(), *args), execute(block, args), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_a_batch_norm_with_its_relu_and_backward_pass_stores_no_array_but_its_results():
    block = vjp(normalised("batch_norm", "float32", shape=(8, 16, 12, 12)))

    assert stored(block, 8 * 16 * 12 * 12) == 2  # the relu, and the gradient of x


def test_the_result_of_a_product_is_not_kept_to_compute_a_bias_again():
    """The product's epilogue adds the bias, so the result without it is in registers only."""
    b = BlockBuilder()
    x, w, bias = (b.param(TensorType(shape, "float32")) for shape in ((256, 256), (256, 256), (256,)))
    y = b.emit("add", b.emit("matmul", x, w), bias)
    total = b.emit("reduce_sum", b.emit("square", y), axes=(0,), keepdims=True)
    block = optimize(b.build([b.emit("mul", y, total)]))

    products = [i for i in plan_block(block, CPU_TARGET).body.instructions if isinstance(i, Gemm)]

    assert products[0].then is not None
    assert not products[0].kept


def test_a_mask_is_stored_if_its_operand_is_not_read_otherwise():
    """An element of the mask is one byte; of the array that it would be computed from, four."""
    b = BlockBuilder()
    x, k, ct = (b.param(TensorType(shape, "float32")) for shape in ((4, 8, 16, 16), (8, 8, 3, 3), (4, 8, 16, 16)))
    like = b.emit("correlate", x, k, paddings=(1, 1, 1, 1))
    shifted = b.emit("scale", like, scale=1.0, bias=0.5)
    out = b.emit("relu", shifted)
    mask = b.emit("greater_than", shifted, b.emit("fill_constant", shape=(), value=0.0, dtype="float32"))
    again = b.emit("correlate", out, k, paddings=(1, 1, 1, 1))
    block = optimize(b.build([b.emit("where", mask, b.emit("mul", again, ct), again)]))
    instructions = plan_block(block, CPU_TARGET).body.instructions
    stores = [o.dtype for i in instructions if isinstance(i, Rows) for o in i.kernel.operands if o.written]

    assert "bool" in stores
    args = arguments(block)
    (found,), (expected,) = native_interpreter(block, CPU)(Run(), *args), execute(block, args)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(2, 20), (3, 1, 20), (2, 3, 20)])
def test_a_pass_over_a_row_of_several_axes_does_not_compute_again_what_varies_along_some_of_them(shape):
    """The second pass sums all elements as one row, along which the means of the first pass are no single walk."""
    b = BlockBuilder()
    x = b.param(TensorType(shape, "float64"))
    centred = x - b.emit("reduce_mean", x, axes=(-1,), keepdims=True)
    bounded = b.emit("tanh", centred)
    scaled = bounded * b.emit("reduce_sum", bounded * x, axes=None, keepdims=True)
    squares = b.emit("reduce_sum", b.emit("square", scaled), axes=None, keepdims=True)
    block = optimize(b.build([scaled * squares + centred]))
    args = arguments(block)

    (found,), (expected,) = native_interpreter(block, CPU)(Run(), *args), execute(block, args)

    np.testing.assert_allclose(found, expected, rtol=1e-9)


def after_a_sum(dtype: str, other: bool = False) -> Block:
    """Layer normalisation of a sum that another product reads, too, as in a transformer.

    other: the sum is scaled before it is normalised, and nothing else reads the scaled one.
    """
    b = BlockBuilder()
    x, more, w, v = (b.param(TensorType(shape, dtype)) for shape in ((64, 96), (64, 96), (96, 96), (96, 96)))
    scale, bias = (b.param(TensorType((96,), dtype)) for _ in range(2))
    added = b.emit("add", x, more)
    given = b.emit("softplus", added) if other else added
    out = b.emit("layer_norm", given, scale, bias, begin_norm_axis=1)
    return b.build([b.emit("add", b.emit("matmul", out, w), b.emit("matmul", added, v))])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("other", [False, True])
def test_a_backward_pass_computes_a_layer_norm_again(other, dtype):
    exact = optimize(vjp(after_a_sum("float64", other)))
    block = optimize(vjp(after_a_sum(dtype, other)))
    args = arguments(block, 3)

    found = native_interpreter(block, CPU)(Run(), *args)

    near = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 0.1}[dtype]
    for one, wanted in zip(found, execute(exact, [a.astype("float64") for a in args]), strict=True):
        allowed = near * np.abs(wanted).max()
        np.testing.assert_allclose(np.asarray(one).astype("float64"), wanted, rtol=0, atol=allowed)


def test_the_backward_pass_of_a_layer_norm_reads_its_operand_only():
    """Of each row two sums are stored, and no deviations, nor what they are scaled to."""
    kernels = [
        each.kernel
        for each in plan_block(optimize(vjp(after_a_sum("float32"))), CPU_TARGET).body.instructions
        if isinstance(each, Rows)
    ]
    forward = next(each for each in kernels if any(i.op == "rsqrt" for i in each.code))

    large = [i for i in forward.code if i.kind == "store" and i.full]
    assert len(large) == 2  # the sum and the result, which products read


def test_a_value_that_several_ops_compute_is_one_value_of_a_pass():
    """Each of the two products widens its operand, which is stored once."""
    b = BlockBuilder()
    x, w, v = (b.param(TensorType(shape, "bfloat16")) for shape in ((64, 96), (96, 96), (96, 96)))
    y = b.emit("tanh", x)
    block = optimize(b.build([b.emit("matmul", y, w), b.emit("matmul", y, v)]))

    kernels = [i.kernel for i in plan_block(block, CPU_TARGET).body.instructions if isinstance(i, Rows)]

    (made,) = [each for each in kernels if any(i.op == "tanh" for i in each.code)]
    assert [i.kind for i in made.code].count("store") == 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_pass_widens_the_parameters_of_a_norm_that_it_computes(dtype):
    block = optimize(normalised("layer_norm", dtype, shape=(40, 30)))

    (each,) = plan_block(block, CPU_TARGET).body.instructions

    assert isinstance(each, Rows)
    assert not any(instr.kind == "store" and instr.dtype != dtype for instr in each.kernel.code)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["product", "tanh", "sum", "scaled"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_pass_never_widens_an_array_written_after_it(kind, dtype):
    b = BlockBuilder()
    x, small, matrix = (b.param(TensorType(shape, dtype)) for shape in ((40, 30), (1, 30), (30, 30)))
    centred = x - b.emit("reduce_mean", x, axes=(1,), keepdims=True)
    if kind == "product":
        later = b.emit("matmul", small, matrix)
    elif kind == "sum":
        later = b.emit("reduce_sum", matrix, axes=(0,), keepdims=True)
    elif kind == "scaled":
        later = small * b.emit("reduce_sum", small, axes=(0, 1), keepdims=True)
    else:
        later = b.emit("tanh", small)
    wide = [b.emit("cast", each, dtype="float32") for each in (centred, later)]
    block = optimize(b.build([b.emit("mul", *wide), later]))
    values = arguments(block)

    found = native_interpreter(block, CPU)(Run(), *values)

    for one, other in zip(found, execute(block, values), strict=True):
        np.testing.assert_allclose(one.astype("float32"), other.astype("float32"), rtol=2**-6, atol=2**-6)
