"""Kernels split among threads give the results of one thread, and the same bits on every run."""

from __future__ import annotations

import numpy as np
import pytest

from bench.workloads import WORKLOADS
from core.codegen import backend, parallel
from core.codegen.backend import CPU
from core.compiler.compile import GradientQuery, Optimizer, compile_training, optimize
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from core.wire import read
from tests.laws.agreement import both
from tests.laws.examples import CASES, OPS, arrays, block_for, examples_of


@pytest.fixture(autouse=True)
def _everything_is_shared(monkeypatch):
    monkeypatch.setattr(parallel, "LONG", 1)
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
    monkeypatch.setattr(backend, "thread_count", lambda: 3)


SHARED = ("reduce_sum", "reduce_max", "softmax", "layer_norm", "matmul", "sum_to", "gelu", "reduce_mean",
          "reduce_prod", "correlate", "correlate_input_adjoint", "correlate_filter_adjoint", "conv2d", "max_pool",
          "max_pool2d", "unpool_like", "pick", "window_sum", "window_sum_adjoint", "dropout", "gaussian_random",
          "cumsum", "linear_scan", "argsort", "argmax", "segment_sum", "segment_max", "gather", "scatter_add_like",
          "tril", "tile", "merge_rows_padded", "embedding", "embedding_bag")  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "i"), [case for case in CASES if case[0] in SHARED])
def test_an_op_in_chunks_gives_the_same_result(name, i):
    example = examples_of(OPS[name])[i]
    both(optimize(block_for(OPS[name], example)), arrays(example))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(1, 7), (2, 33), (7, 5), (13, 64), (64, 10), (100, 1)])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_parallel_sums_equal_numpys(shape, axes):
    from core.ir import TensorType
    from core.ir.builder import BlockBuilder

    b = BlockBuilder()
    x = b.param(TensorType(shape, "float64"))
    block = b.build([b.emit("reduce_sum", b.emit("exp", x), axes=axes), b.emit("reduce_max", x, axes=axes)])
    value = np.random.default_rng(0).standard_normal(shape)

    total, largest = native_interpreter(block, CPU)(Run(), value)

    np.testing.assert_allclose(total, np.exp(value).sum(axes), rtol=1e-13)
    np.testing.assert_array_equal(largest, value.max(axes))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(40, 3, 16), (7, 1, 5), (9, 20, 64), (8, 50, 17), (2, 6, 5, 33), (30, 2, 200)])
def test_sums_that_chunks_do_not_share_have_the_bits_of_one_thread(shape, monkeypatch):
    from core.ir import TensorType
    from core.ir.builder import BlockBuilder

    b = BlockBuilder()
    x = b.param(TensorType(shape, "float32"))
    square, middle = b.emit("square", x), (len(shape) - 2,)
    results = [
        b.emit("reduce_sum", x, axes=middle),
        b.emit("reduce_sum", square, axes=middle),
        b.emit("reduce_max", x, axes=(1, len(shape) - 1)),
        b.emit("reduce_sum", square, axes=(0,)),
    ]
    block = b.build(results)
    value = np.random.default_rng(0).standard_normal(shape).astype("float32")

    found = native_interpreter(block, CPU)(Run(), value)

    wide = value.astype("float64")
    wanted = [wide.sum(middle), np.square(wide).sum(middle), wide.max((1, len(shape) - 1)), np.square(wide).sum(0)]
    for f, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(f, want, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(backend, "thread_count", lambda: 1)
    alone = native_interpreter(block, CPU)(Run(), value)
    for f, one in list(zip(found, alone, strict=True))[:2]:
        np.testing.assert_array_equal(f, one)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["mlp_small", "rnn_while_10", "branch", "convnet"])
def test_a_training_step_in_chunks_repeats_to_the_bit(name):
    w = WORKLOADS[name]()
    shapes = {k: v.shape for k, v in w.feeds.items()}
    optimizer = Optimizer("sgd", {"learning_rate": 0.01})
    executable = compile_training(read(w.program), GradientQuery(loss="loss"), optimizer, shapes=shapes)
    values = {**w.feeds, **w.parameters}
    wanted = executable.step(values)
    compiled = executable.compiled()

    first, again = compiled.step(values), compiled.step(values)

    for place in ("gradients", "parameters"):
        for key, value in getattr(wanted, place).items():
            np.testing.assert_allclose(getattr(first, place)[key], value, rtol=2e-4, atol=2e-6)
            np.testing.assert_array_equal(getattr(again, place)[key], getattr(first, place)[key])
