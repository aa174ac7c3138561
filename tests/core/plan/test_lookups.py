"""Gathers inside fusions equal numpy's, in every layout, and refuse what is out of range."""

from __future__ import annotations

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen import backend, parallel
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.plan import plan_block
from core.plan.instructions import Gather, Rows
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.laws.agreement import both

NODES, EDGES, WIDTH = 11, 37, 19


def messages(dtype: str = "float64"):
    """relu(x[source] + y[target] + edge), its sum over each edge, and itself divided by that sum, transposed."""
    b = BlockBuilder()
    x, y = (b.param(TensorType((NODES, WIDTH), dtype), name) for name in "xy")
    source, target = b.param(TensorType((EDGES,), "int64"), "source"), b.param(TensorType((EDGES,), "int32"), "target")
    edge = b.param(TensorType((EDGES, WIDTH), dtype), "edge")
    ends = b.emit("add", b.emit("gather", x, source, axis=0), b.emit("gather", y, target, axis=0))
    message = b.emit("relu", b.emit("add", ends, edge))
    total = b.emit("reduce_sum", message, axes=(1,), keepdims=True)
    share = b.emit("div", message, b.emit("add", total, b.constant(1.0, dtype)))
    return b.build([message, b.emit("transpose", share, axes=(1, 0))])


def values(block, seed: int = 0):
    rng = np.random.default_rng(seed)
    of = {p: block.types[p] for p in block.params}
    return [
        rng.integers(-NODES, NODES, t.shape).astype(t.dtype) if t.dtype.startswith("int") else rng.normal(size=t.shape)
        for t in of.values()
    ]


@pytest.fixture(params=[1, 3], ids=["alone", "shared"])
def threads(request, monkeypatch):
    monkeypatch.setattr(parallel, "LONG", 1)
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
    monkeypatch.setattr(backend, "thread_count", lambda: request.param)


def test_messages_on_edges_reach_no_memory():
    instructions = plan_block(optimize(messages()), CPU_TARGET).body.instructions

    assert not any(isinstance(i, Gather) for i in instructions)
    (rows,) = instructions
    assert isinstance(rows, Rows)


@pytest.mark.usefixtures("threads")
def test_messages_equal_the_reference_executor():
    block = optimize(messages())
    args = values(block)
    x, y, source, target, edge = args

    message, share = native_interpreter(block, CPU)(Run(), *args)

    wanted = np.maximum(x[source] + y[target] + edge, 0)
    np.testing.assert_allclose(message, wanted, rtol=1e-14)
    np.testing.assert_allclose(share, (wanted / (wanted.sum(1, keepdims=True) + 1)).T, rtol=1e-13)
    both(optimize(vjp(block, ["x", "y", "edge"])), [*args, np.ones_like(message), np.ones_like(share)])


@pytest.mark.parametrize("wrong", [NODES, -NODES - 1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("which", [2, 3])
def test_an_index_out_of_range_is_refused(which, wrong):
    block = optimize(messages())
    args = values(block)
    args[which][EDGES - 1] = wrong

    with pytest.raises(ExecutionError) as caught:
        native_interpreter(block, CPU)(Run(), *args)
    assert caught.value.code == "index_out_of_range"


def test_a_lookup_that_only_another_fusion_reads_is_not_left_behind():
    b = BlockBuilder()
    x, w = b.param(TensorType((NODES, WIDTH), "float64")), b.param(TensorType((WIDTH, WIDTH), "float64"))
    at = b.param(TensorType((EDGES,), "int64"))
    rows = b.emit("gather", x, at, axis=0)
    seen = b.emit("gather", b.emit("matmul", x, w), at, axis=0)
    block = optimize(b.build([b.emit("mul", rows, seen)]))

    _, fused = plan_block(block, CPU_TARGET).body.instructions

    assert isinstance(fused, Rows)
    assert fused.ops.count("mul") == 1
    both(block, values(block))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 1), (4, 1, 2)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int32"])
@pytest.mark.usefixtures("threads")
def test_lookups_on_every_axis_in_every_layout_equal_the_reference_executor(axis, shape, dtype):
    if dtype == "bfloat16" and (axis, shape) != (1, (2, 3)):
        pytest.skip("one of each is enough")
    b = BlockBuilder()
    x, at = b.param(TensorType((3, 4, 5, 18), dtype)), b.param(TensorType(shape, "int64"))
    found = b.emit("gather", x, at, axis=axis)
    double = b.emit("add", found, found)
    rank = double.rank
    turned = b.emit("add", b.emit("transpose", found, axes=(*range(1, rank), 0)), b.constant(1.0, dtype))
    spread = b.emit("mul", b.emit("unsqueeze", found, axes=(rank,)), b.constant(2.0, dtype, (1,) * rank + (3,)))
    flat = b.emit("add", b.emit("reshape", found, shape=(-1,)), b.constant(1.0, dtype))
    total = b.emit("reduce_max", found, axes=(0, rank - 1))
    block = optimize(b.build([double, turned, spread, flat, total]))
    rng = np.random.default_rng(axis)
    size = (3, 4, 5)[axis]
    values = (rng.normal(size=(3, 4, 5, 18)) * 8).astype(
        block.types[block.params[0]].dtype if dtype != "bfloat16" else "f4"
    )
    if dtype == "bfloat16":
        from core.ops.common.types import as_dtype

        values = values.astype(as_dtype("bfloat16"))

    both(block, [values, rng.integers(-size, size, shape)])
