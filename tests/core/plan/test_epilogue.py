"""Elementwise ops and sums after a product run on its tiles: equal results, and no further reads or writes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.workloads import mlp
from core.autodiff.adjoint import vjp
from core.codegen import backend, packed_gemm, parallel
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, Optimizer, compile_gradient, compile_training, key_of, optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.plan import plan_block, refine
from core.plan.epilogue import fuse_epilogues
from core.plan.instructions import Gemm, Rows
from core.runtime.native import native_interpreter
from core.runtime.reference import execute, interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.laws.agreement import both
from tests.laws.examples import CASES, OPS, arrays, block_for, examples_of
from tests.laws.random_programs import ALL, EXAMPLES, leaves
from tests.strategies import programs


@pytest.fixture(params=[1, 3], ids=["alone", "shared"])
def threads(request, monkeypatch):
    monkeypatch.setattr(parallel, "LONG", 1)
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
    monkeypatch.setattr(backend, "thread_count", lambda: request.param)


def products(block) -> list[Gemm]:
    return [i for i in plan_block(block, CPU_TARGET).body.instructions if isinstance(i, Gemm)]


def dense(rows: int, inner: int, columns: int, dtype: str, axes: tuple[int, ...] | None = (0,)):
    """relu(x y + b), the mask of its positive elements, and its sums over `axes`. axes: None means without sums."""
    b = BlockBuilder()
    x, y = b.param(TensorType((rows, inner), dtype)), b.param(TensorType((inner, columns), dtype))
    bias = b.param(TensorType((columns,), dtype))
    z = b.emit("add", b.emit("matmul", x, y), bias)
    h = b.emit("relu", z)
    positive = b.emit("greater_than", z, b.constant(0.0, dtype))
    return b.build([h, positive, *([b.emit("reduce_sum", h, axes=axes)] if axes is not None else [])])


def values(block) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(block.types[p].shape).astype(block.types[p].dtype) for p in block.params]


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(64, 8, 64), (70, 520, 130), (300, 40, 72), (601, 20, 64)])
def test_a_product_with_an_epilogue_equals_the_separate_kernels(rows, inner, columns, dtype, threads, monkeypatch):
    block = dense(rows, inner, columns, dtype)
    args = values(block)

    fused = native_interpreter(block, CPU)(Run(), *args)

    assert [g.then is not None for g in products(block)] == [True]
    monkeypatch.setattr(refine, "fuse_epilogues", lambda instructions, *_: tuple(instructions))
    apart = native_interpreter(block, CPU)(Run(), *args)
    assert [g.then is not None for g in products(block)] == [False]
    np.testing.assert_array_equal(fused[0], apart[0])
    np.testing.assert_array_equal(fused[1], apart[1])
    tolerance = 1e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(fused[2], apart[2], rtol=tolerance, atol=tolerance)
    for found, wanted in zip(fused, interpreter_of(block)(Run(), *args), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=tolerance * 10, atol=tolerance * 10)


def test_sums_do_not_depend_on_the_number_of_threads(monkeypatch):
    block = dense(601, 20, 64, "float32")
    args = values(block)
    found = []
    for count in (1, 2, 5):
        monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
        monkeypatch.setattr(backend, "thread_count", lambda count=count: count)
        found.append(native_interpreter(block, CPU)(Run(), *args))

    for each in found[1:]:
        for one, other in zip(each, found[0], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("axes", [(1,), (0, 1)])
def test_a_sum_over_more_than_columns_is_a_separate_pass(axes, threads):
    block = dense(70, 9, 65, "float64", axes)
    args = values(block)

    assert [g.then for g in products(block)] == [None]
    for found, wanted in zip(
        native_interpreter(block, CPU)(Run(), *args), interpreter_of(block)(Run(), *args), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-11)


def test_a_product_whose_result_another_op_reads_first_has_no_epilogue():
    b = BlockBuilder()
    x, y = (b.param(TensorType((64, 64), "float32")) for _ in range(2))
    xy = b.emit("matmul", x, y)
    other = b.emit("matmul", xy, y)
    block = b.build([other, b.emit("tanh", xy)])

    first, _ = products(block)

    assert first.then is None


@pytest.mark.parametrize("strides", [(64, 3), (0, 0)])
def test_a_product_whose_operand_cannot_be_packed_has_no_epilogue(strides, monkeypatch):
    monkeypatch.setattr(refine, "fuse_epilogues", lambda instructions, *_: tuple(instructions))
    product, rows = plan_block(dense(64, 2, 64, "float32"), CPU_TARGET).body.instructions
    assert isinstance(product, Gemm)

    gaps = replace(product, b=replace(product.b, strides=strides))

    assert fuse_epilogues([gaps, rows], CPU_TARGET.products) == (gaps, rows)
    (fused,) = fuse_epilogues([product, rows], CPU_TARGET.products)
    assert isinstance(fused, Gemm)
    assert fused.then is not None


def test_a_requested_product_is_stored():
    b = BlockBuilder()
    x, y = (b.param(TensorType((64, 64), "float32")) for _ in range(2))
    xy = b.emit("matmul", x, y)
    block = b.build([xy, b.emit("tanh", xy)])
    args = values(block)

    (product,) = products(block)

    assert product.then is not None
    assert product.kept
    found = native_interpreter(block, CPU)(Run(), *args)
    np.testing.assert_allclose(found[0], args[0] @ args[1], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found[1], native_interpreter(b.build([b.emit("tanh", xy)]), CPU)(Run(), *args)[0])


def test_an_op_that_reads_two_products_runs_after_both():
    b = BlockBuilder()
    x, y, z = (b.param(TensorType((64, 64), "float32")) for _ in range(3))
    block = b.build([b.emit("add", b.emit("matmul", x, y), b.emit("matmul", y, z))])
    args = values(block)

    first, second = products(block)

    assert (first.then, second.then is not None) == (None, True)
    np.testing.assert_allclose(
        native_interpreter(block, CPU)(Run(), *args)[0], args[0] @ args[1] + args[1] @ args[2], rtol=1e-4, atol=1e-4
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "rmsprop"])
@pytest.mark.parametrize("gives_gradients", [True, False])
def test_a_training_step_equals_that_of_the_reference_executor(optimizer, gives_gradients, threads):
    w = mlp("mlp", 70, (80, 130, 96, 10))
    executable = compile_training(
        read(w.program), GradientQuery(loss="loss"), Optimizer(optimizer, {"learning_rate": 0.01}),
        gives_gradients=gives_gradients,
    )  # fmt: skip
    given = {**w.feeds, **w.parameters, **executable.initial_state()}

    found, wanted = executable.compiled().step(given), executable.step(given)

    assert bool(found.gradients) is gives_gradients
    for place in ("gradients", "parameters", "optimizer_state"):
        assert getattr(found, place).keys() == getattr(wanted, place).keys()
        for name, value in getattr(wanted, place).items():
            np.testing.assert_allclose(getattr(found, place)[name], value, rtol=2e-3, atol=2e-5)
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-5)


def test_an_update_is_the_epilogue_of_its_product_and_the_gradient_is_not_stored():
    w = mlp("mlp", 70, (80, 130, 96, 10))
    executable = compile_training(
        read(w.program), GradientQuery(loss="loss"), Optimizer("sgd", {"learning_rate": 0.01}), gives_gradients=False
    )
    block = executable.interpreter.block

    body = plan_block(block, CPU_TARGET).body.instructions

    large = [i for i in body if isinstance(i, Gemm) and min(i.c.shape) >= 64]
    assert len(large) == 6
    assert all(i.then is not None and not i.kept for i in large)
    assert sum(isinstance(i, Rows) and "sub" in i.ops and i.kernel.rows * i.kernel.inner > 1000 for i in body) == 0


@pytest.fixture
def all_are_large(monkeypatch):
    monkeypatch.setattr(packed_gemm, "PACKED", 1)


MADE_OF_PRODUCTS = ("matmul", "einsum", "addmm", "bmm", "scaled_dot_product_attention", "bilinear_tensor_product")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "i"), [case for case in CASES if case[0] in MADE_OF_PRODUCTS])
def test_epilogues_of_small_products_equal_the_reference_executor(name, i, all_are_large, threads):
    example = examples_of(OPS[name])[i]
    block, args = block_for(OPS[name], example), arrays(example)
    wrt = [p for p in block.params if block.types[p].is_float]
    results = execute(block, args)
    both(optimize(vjp(block, wrt)), [*args, *(np.ones_like(r) for r in results)])


@settings(max_examples=EXAMPLES // 10, deadline=None, suppress_health_check=list(HealthCheck))
@given(document=programs(), seed=st.integers(0, 2**16))
def test_epilogues_in_random_programs_equal_the_reference_executor(document, seed, all_are_large):
    given = leaves(seed)
    executable = compile_gradient(read(document), GradientQuery(targets=("loss",), **ALL), fetch=["loss"])
    both(
        executable.interpreter.block,
        [key_of(0, 0) if v.role == "key" else given[v.name] for v in executable.inputs],
    )
