"""A step of machine code stops on request, in loops and between kernels."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import blas, polling
from core.codegen.backend import CPU
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.passes import optimize
from core.passes.expand import expand_composites
from core.plan import plan_block
from core.runtime import region as native_region
from core.runtime.control_words import STOP
from core.runtime.run import Run, RunLimits


def products(count: int) -> Block:
    """A chain of `count` products, and the first row of each."""
    b = BlockBuilder()
    x = at = b.param(TensorType((32, 32), "float64"))
    rows = []
    for _ in range(count):
        at = b.emit("tanh", b.emit("matmul", at, x))
        rows.append(at)
    return b.build(rows)


def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Request a stop of every step before it starts."""

    @contextmanager
    def at_once(control, run):
        control[STOP] = 1
        yield

    monkeypatch.setattr(native_region, "watched", at_once)


def stops() -> Run:
    return Run(limits=RunLimits(should_stop=lambda: True))


def test_straight_code_stops_between_kernels(monkeypatch):
    monkeypatch.setattr(polling, "POLL_WORK", 100_000)
    region = CPU.compile(plan_block(products(8), CPU.target))
    asked(monkeypatch)
    given = np.eye(32)

    with pytest.raises(ExecutionError) as caught:
        region(stops(), given)
    assert caught.value.code == "canceled"
    assert len(region(Run(), given)) == 8  # this step has no stop request


def test_a_short_step_does_not_check_for_a_stop(monkeypatch):
    region = CPU.compile(plan_block(products(2), CPU.target))
    asked(monkeypatch)
    assert not region.polls
    region(stops(), np.eye(32))


@pytest.mark.parametrize("side", [True, False])
def test_straight_code_in_a_branch_stops_too(monkeypatch, side):
    monkeypatch.setattr(polling, "POLL_WORK", 100_000)
    b = BlockBuilder()
    flag, x = b.param(TensorType((), "bool")), b.param(TensorType((32, 32), "float64"))
    block = b.build(b.emit("if_else", flag, x, true_block=products(3), false_block=products(3)))
    region = CPU.compile(plan_block(block, CPU.target))
    asked(monkeypatch)

    with pytest.raises(ExecutionError) as caught:
        region(stops(), np.asarray(side), np.eye(32))
    assert caught.value.code == "canceled"


def mixed(dtype: str = "float32") -> Block:
    """Kernels of every kind: products that are packed, unpacked, batched and by the BLAS, convolutions, and others."""
    b = BlockBuilder()
    x, image, index = (
        b.param(TensorType((96, 80), dtype)),
        b.param(TensorType((2, 3, 12, 12), dtype)),
        b.param(TensorType((50,), "int64")),
    )
    filters = b.emit(
        "reshape",
        b.emit("slice", b.emit("slice", x, axes=(0,), starts=(0,), ends=(9,)), axes=(1,), starts=(0,), ends=(24,)),
        shape=(8, 3, 3, 3),
    )
    row = b.emit("reshape", x, shape=(96 * 80,))
    results = [
        b.emit("matmul", x, x, transpose_y=True),
        b.emit("matmul", b.emit("slice", x, axes=(0,), starts=(0,), ends=(9,)), x, transpose_y=True),
        b.emit("matmul", b.emit("slice", x, axes=(1,), starts=(0,), ends=(9,)), x, transpose_x=True),
        b.emit("matmul", b.emit("reshape", x, shape=(8, 12, 80)), b.emit("reshape", x, shape=(8, 80, 12))),
        b.emit("conv2d", image, filters),
        b.emit("max_pool2d", image, kernel_size=(3, 3), strides=(2, 2))[0],
        b.emit("softmax", x),
        b.emit("reduce_sum", b.emit("tanh", row)),
        b.emit("transpose", x),
        b.emit("gather", x, index),
    ]
    return b.build(results)


def arguments() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    floats = [rng.standard_normal(shape).astype("float32") for shape in ((96, 80), (2, 3, 12, 12))]
    return [*floats, rng.integers(0, 96, 50)]


def compiled(block: Block):
    return CPU.compile(plan_block(optimize(expand_composites(block)), CPU.target))


@pytest.mark.parametrize("pass_", ["forward", pytest.param("backward", marks=pytest.mark.slow)])
def test_polling_does_not_change_a_bit(monkeypatch, pass_):
    block, args = mixed(), arguments()
    if pass_ == "backward":
        block = vjp(block, block.params[:2])
        args += [np.ones(block.types[name].shape, "float32") for name in block.params[3:]]
    expected = compiled(block)(Run(), *args)
    monkeypatch.setattr(polling, "POLL_WORK", -1)
    region = compiled(block)

    found = region(Run(limits=RunLimits(should_stop=lambda: False)), *args)

    assert region.polls
    assert [x.tobytes() for x in found] == [x.tobytes() for x in expected]


def test_a_product_by_the_blas_is_right_in_pieces(monkeypatch):
    monkeypatch.setattr(polling, "POLL_WORK", -1)
    monkeypatch.setattr(blas, "PIECE", 1)
    monkeypatch.setattr(blas, "COLUMNS", 7)
    rng = np.random.default_rng(0)
    for m, n, k in ((9, 100, 70), (70, 9, 90), (100, 1, 300)):
        x, y = rng.standard_normal((m, k)), rng.standard_normal((n, k))
        b = BlockBuilder()
        block = b.build(
            [b.emit("matmul", b.param(TensorType((m, k), "float64")), b.param(TensorType((n, k), "float64")),
                    transpose_y=True)]
        )  # fmt: skip
        (found,) = compiled(block)(Run(), x, y)
        np.testing.assert_allclose(found, np.einsum("ik,jk->ij", x, y), rtol=1e-12, atol=1e-12)


def test_a_step_that_was_cut_short_never_returns_its_results(monkeypatch):
    monkeypatch.setattr(polling, "POLL_WORK", -1)
    region = compiled(mixed())
    asked(monkeypatch)

    with pytest.raises(ExecutionError) as caught:
        region(Run(limits=RunLimits(should_stop=lambda: False)), *arguments())  # it changed its mind

    assert caught.value.code == "canceled"
