"""Elementwise ops after a batch of products run on their tiles: equal results, and no further reads or writes."""

from __future__ import annotations

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend, parallel
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from core.plan import plan_block, refine
from core.plan.instructions import Gemm, Rows
from core.plan.work import work_of
from core.runtime.native import native_interpreter
from core.runtime.reference import execute
from core.runtime.run import Run
from tests.laws.agreement import both
from tests.walls import before_a_wall


@pytest.fixture(params=[1, 3], ids=["alone", "shared"], autouse=True)
def threads(request, monkeypatch):
    monkeypatch.setattr(parallel, "LONG", 1)
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
    monkeypatch.setattr(backend, "thread_count", lambda: request.param)


class Batch:
    """A batch of products under construction: x [batch..., m, k] times y [batch..., k, n], and its arrays."""

    def __init__(self, batch: tuple[int, ...], m: int, k: int, n: int, dtype: str = "float32") -> None:
        self.b, self.dtype, self.shape = BlockBuilder(), dtype, (*batch, m, n)
        self.rng = np.random.default_rng(m + k + n)
        self.arrays: list[np.ndarray] = []
        self.product = self.b.emit("matmul", self.given((*batch, m, k)), self.given((*batch, k, n)))

    def given(self, shape: tuple[int, ...]) -> Value:
        """A parameter whose elements end where memory ends."""
        nbytes = int(np.prod(shape)) * np.dtype(self.dtype).itemsize
        array = before_a_wall(nbytes)[-nbytes:].view(self.dtype).reshape(shape)
        array[...] = self.rng.standard_normal(shape)
        self.arrays.append(array)
        return self.b.param(TensorType(shape, self.dtype))

    def block(self, *results: Value) -> Block:
        return optimize(self.b.build(list(results)))

    def agree(self, *results: Value) -> list[Gemm]:
        """Compare machine code with the reference, and with itself without epilogues; the products."""
        block = self.block(*results)
        found = native_interpreter(block, CPU)(Run(), *self.arrays)
        near = 1e-4 if self.dtype == "float32" else 1e-12
        for one, wanted in zip(found, execute(block, self.arrays), strict=True):
            if wanted.dtype == bool:  # of values near 0
                assert np.mean(one != wanted) < 1e-3
            else:
                np.testing.assert_allclose(one, wanted, rtol=near, atol=near * max(np.abs(wanted).max(), 1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(refine, "fuse_epilogues", lambda instructions, *_: tuple(instructions))
            apart = native_interpreter(block, CPU)(Run(), *self.arrays)
        for one, other in zip(found, apart, strict=True):
            np.testing.assert_array_equal(one, other)
        return [i for i in plan_block(block, CPU_TARGET).body.instructions if isinstance(i, Gemm)]


SIZES = [((3,), 64, 8, 64), ((2, 3), 70, 30, 130), ((5,), 300, 520, 72), ((1, 4), 65, 17, 64)]


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("batch", "m", "k", "n"), SIZES)
def test_a_batch_with_an_epilogue_equals_the_separate_kernels(batch, m, k, n, dtype):
    t = Batch(batch, m, k, n, dtype)
    z = t.b.emit("add", t.product, t.given((*batch, 1, n)))
    h = t.b.emit("relu", t.b.emit("mul", z, t.given((m, 1))))

    (product,) = t.agree(h, t.b.emit("greater_than", h, t.b.constant(0.0, dtype)))

    assert product.then is not None
    assert product.then.ops == ("add", "mul", "relu", "greater_than")
    assert not product.kept
    in_blocks = CPU_TARGET.products.stores_result(product)
    assert product.c.root.place == ("arena" if in_blocks else "none")


def test_a_result_that_others_read_is_stored():
    t = Batch((3,), 64, 8, 64)
    h = t.b.emit("relu", t.product)

    (product,) = t.agree(h, t.b.emit("cumsum", t.product, axis=0))

    assert product.then is not None
    assert product.kept


@pytest.mark.sampled(1)
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1, 2)])
def test_sums_are_no_part_of_the_epilogue_of_a_batch(axes):
    """Several products would add to one sum."""
    t = Batch((3,), 64, 8, 64)
    total = t.b.emit("reduce_sum", t.b.emit("square", t.product), axes=axes)

    (product,) = t.agree(total)

    assert product.then is None


def test_a_transposed_result_is_written_by_the_products():
    t = Batch((2, 3), 64, 8, 80)
    by_rows = t.b.emit("transpose", t.b.emit("exp", t.product), axes=(2, 0, 1, 3))

    t.agree(by_rows)


def test_small_products_have_no_epilogue():
    t = Batch((3,), 8, 8, 8)

    (product,) = t.agree(t.b.emit("relu", t.product))

    assert product.then is None


def test_two_operands_that_both_are_products_take_turns():
    t = Batch((3,), 64, 8, 64)
    other = t.b.emit("matmul", t.given((3, 64, 9)), t.given((3, 9, 64)))

    products = t.agree(t.b.emit("mul", t.product, other))

    assert sorted(each.then is not None for each in products) == [False, True]


def test_the_work_of_an_epilogue_counts_for_each_product():
    t = Batch((3,), 64, 8, 64)
    block = t.block(t.b.emit("mul", t.product, t.given((64, 64))))

    (product,) = [i for i in plan_block(block, CPU_TARGET).body.instructions if isinstance(i, Gemm)]

    work = work_of(product)
    assert work.flops == 3 * (2 * 64 * 64 * 8 + 64 * 64)
    assert work.nbytes == 4 * (2 * 3 * 64 * 8 + 64 * 64 + 3 * 64 * 64)


def test_a_batch_whose_reader_transposes_its_results_has_no_epilogue():
    t = Batch((3,), 64, 8, 64)

    (product,) = t.agree(t.b.emit("sub", t.product, t.b.emit("transpose", t.product, axes=(0, 2, 1))))

    assert product.then is None


OPS = ("add", "sub", "mul", "maximum", "minimum")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(60))
def test_random_work_on_batches_agrees(seed):
    r = np.random.default_rng(seed)
    batch, m, k, n = SIZES[int(r.integers(len(SIZES)))]
    t = Batch(batch, m, k, n, str(r.choice(["float32", "float64"])))
    values = [t.product]
    for _ in range(int(r.integers(1, 7))):
        x = values[int(r.integers(len(values)))]
        if r.random() < 0.4:
            values.append(t.b.emit(str(r.choice(["relu", "tanh", "neg", "square"])), x))
        elif r.random() < 0.5:
            values.append(t.b.emit(str(r.choice(OPS)), x, values[int(r.integers(len(values)))]))
        else:
            shape = tuple(size if r.random() < 0.6 else 1 for size in t.shape)
            values.append(t.b.emit(str(r.choice(OPS)), x, t.given(shape)))
    more = [v for v in values[1:-1] if r.random() < 0.3]
    more += [t.b.emit("reduce_sum", v, axes=(int(r.integers(len(t.shape))),)) for v in values if r.random() < 0.2]

    t.agree(values[-1], *more)


def test_a_gradient_through_a_batch_uses_epilogues_too():
    t = Batch((3,), 64, 64, 64)
    down = t.given((3, 64, 64))
    out = t.b.emit("matmul", t.b.emit("relu", t.product), down)

    block = optimize(vjp(t.b.build([out])))
    both(block, [*t.arrays, t.rng.standard_normal((3, 64, 64)).astype("float32")])
    instructions = plan_block(block, CPU_TARGET).body.instructions
    assert sum(isinstance(i, Gemm) and i.then is not None for i in instructions) >= 2
    assert not any(isinstance(i, Rows) for i in instructions)
