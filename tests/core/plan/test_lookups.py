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
from core.plan.epilogue import roots_of
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


def sliced_rows(kind: str):
    """The product of the first and the last third of ``x[at]``, times the largest element of the third between."""
    b = BlockBuilder()
    x, at = b.param(TensorType((NODES, 3 * WIDTH), "float64")), b.param(TensorType((EDGES,), "int64"))
    rows = b.emit("gather", x, at, axis=0)
    if kind == "split":
        first, middle, last = b.emit("split", rows, sections=(WIDTH, WIDTH, WIDTH), axis=1)
    else:
        first, middle, last = (
            b.emit("slice", rows, axes=(1,), starts=(i * WIDTH,), ends=((i + 1) * WIDTH,), steps=None) for i in range(3)
        )
    most = b.emit("reduce_max", middle, axes=(1,), keepdims=True)
    return b.build([b.emit("mul", b.emit("mul", first, last), most)])


@pytest.mark.parametrize("kind", ["slice", "split"])
def test_slices_of_looked_up_rows_are_looked_up_by_themselves(kind):
    block = optimize(sliced_rows(kind))
    instructions = plan_block(block, CPU_TARGET).body.instructions
    x, at = args = values(block)

    (found,) = native_interpreter(block, CPU)(Run(), *args)

    (rows,) = instructions
    assert isinstance(rows, Rows)
    first, middle, last = np.split(x[at], 3, axis=1)
    np.testing.assert_allclose(found, first * last * middle.max(1, keepdims=True), rtol=1e-14)


def half_of_rows(*others: str):
    """exp of the first half of ``x[at]``, and other results that read it."""
    b = BlockBuilder()
    x, at = b.param(TensorType((NODES, 2 * WIDTH), "float64")), b.param(TensorType((EDGES,), "int64"))
    rows = b.emit("gather", x, at, axis=0)
    results = [b.emit("exp", b.emit("slice", rows, axes=(1,), starts=(0,), ends=(WIDTH,), steps=None))]
    if "short slice" in others:
        results.append(b.emit("exp", b.emit("slice", rows, axes=(1,), starts=(-1,), ends=(2 * WIDTH,), steps=None)))
    if "product" in others:
        w = b.emit("fill_constant", shape=(2 * WIDTH, 3), value=0.5, dtype="float64")
        results.append(b.emit("matmul", rows, w))
    return optimize(b.build(results))


def arrays_of_whole_rows(block) -> int:
    """The number of arrays in the arena with as many elements as the rows."""
    roots = {root for each in plan_block(block, CPU_TARGET).body.instructions for root in roots_of(each)}
    return sum(root.place == "arena" and root.nbytes == EDGES * 2 * WIDTH * 8 for root in roots)


@pytest.mark.parametrize(("other", "arrays"), [("none", 0), ("short slice", 0), ("product", 1)])
def test_rows_are_stored_for_readers_that_need_them_whole(other, arrays):
    block = half_of_rows(other)

    assert arrays_of_whole_rows(block) == arrays
    both(block, values(block))


def with_biases(kind: str):
    """The products of rows of `x` and `y`, summed, plus biases of these rows, and that times the rows of `x`.

    kind: where the biases are: "apart", or the last "columns" of `x` and `y`.
    """
    b = BlockBuilder()
    width = WIDTH + (kind == "columns")
    x, y = (b.param(TensorType((NODES, width), "float64"), name) for name in "xy")
    at, by = (b.param(TensorType((EDGES,), "int64"), name) for name in ("at", "by"))
    rows = [b.emit("gather", x, at, axis=0), b.emit("gather", y, by, axis=0)]
    if kind == "apart":
        biases = [b.emit("gather", b.param(TensorType((NODES, 1), "float64")), i, axis=0) for i in (at, by)]
    else:
        vectors, biases = zip(*(b.emit("split", each, sections=(WIDTH, 1), axis=1) for each in rows), strict=True)
        rows = list(vectors)
    total = b.emit("reduce_sum", b.emit("mul", *rows), axes=(1,), keepdims=True)
    for each in biases:
        total = b.emit("add", total, each)
    return b.build([total, b.emit("mul", total, rows[0])])


@pytest.mark.parametrize("kind", ["apart", "columns"])
@pytest.mark.usefixtures("threads")
def test_short_rows_are_gathered_before_the_pass_that_reads_them(kind):
    block = optimize(with_biases(kind))
    x, y, at, by, *biases = args = values(block)

    total, scaled = native_interpreter(block, CPU)(Run(), *args)

    first, second, *passes = plan_block(block, CPU_TARGET).body.instructions
    assert isinstance(first, Gather)
    assert isinstance(second, Gather)
    assert len([each for each in passes if WIDTH in (*each.kernel.outer, each.kernel.inner)]) == 1
    columns = biases or [x[:, WIDTH:], y[:, WIDTH:]]
    added = [each[i] for each, i in zip(columns, (at, by), strict=True)]
    wanted = (x[at][:, :WIDTH] * y[by][:, :WIDTH]).sum(1) + sum(each.sum(1) for each in added)
    np.testing.assert_allclose(total[:, 0], wanted, rtol=1e-13)
    np.testing.assert_allclose(scaled, wanted[:, None] * x[at][:, :WIDTH], rtol=1e-13)


@pytest.mark.parametrize("shape", [(EDGES,), (5, 3)])
@pytest.mark.parametrize(("start", "end", "step"), [(30, 31, 1), (20, 33, 1), (0, 36, 18), (35, 3, -16)])
@pytest.mark.usefixtures("threads")
def test_any_slice_of_looked_up_rows_equals_the_reference_executor(shape, start, end, step):
    b = BlockBuilder()
    x, at = b.param(TensorType((NODES, 2, 18), "float64")), b.param(TensorType(shape, "int64"))
    flat = b.emit("reshape", x, shape=(NODES, 36))
    rows, blocks = b.emit("gather", flat, at, axis=0), b.emit("gather", x, at, axis=0)
    axis = len(shape)
    part = b.emit("slice", rows, axes=(axis,), starts=(start,), ends=(end,), steps=(step,))
    first = b.emit("slice", rows, axes=(0, axis), starts=(1, 4), ends=(3, 6), steps=None)
    inner = b.emit("slice", blocks, axes=(axis, axis + 1), starts=(1, 2), ends=(2, 9), steps=None)
    each = b.emit("unstack", blocks, axis=axis)
    block = optimize(b.build([b.emit("exp", one) for one in (part, first, inner, *each)]))

    both(block, values(block))


def test_the_adjoint_of_a_slice_of_rows_needs_their_shape_only():
    block = half_of_rows()
    adjoint = optimize(vjp(block, [block.params[0]]))

    assert arrays_of_whole_rows(adjoint) == 1  # the gradient of the rows
    both(adjoint, values(adjoint))


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
