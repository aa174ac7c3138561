"""A scatter of gathered rows reads them where they are: equal results, and no gathered rows in memory."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen import backend, parallel
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.plan import plan_block
from core.plan.instructions import Gather, ScatterAdd
from core.plan.memory import Root, View
from core.plan.scattered import scatter_gathered
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from tests.laws.agreement import both

NODES, EDGES = 13, 40


def spread(width: int, dtype: str, kind: str = "segment_sum", kept: bool = False):
    """The rows of x that edges come from, added up (or multiplied, or compared) at the nodes that they lead to."""
    b = BlockBuilder()
    x = b.param(TensorType((NODES, width), dtype), "x")
    source, target = (b.param(TensorType((EDGES,), "int64"), name) for name in ("source", "target"))
    rows = b.emit("gather", x, source, axis=0)
    if kind == "scatter_add_like":
        made = b.emit(kind, rows, target, b.param(TensorType((NODES, width), dtype), "like"), axis=0)
    else:
        made = b.emit(kind, rows, target, num_segments=NODES)
    return b.build([made, *([rows] if kept else [])])


def values(block, width: int, dtype: str):
    rng = np.random.default_rng(width)
    edges = [rng.integers(-NODES, NODES, EDGES), rng.integers(0, NODES, EDGES)]
    like = [np.ones((NODES, width), dtype)] if len(block.params) > 3 else []
    return [rng.normal(size=(NODES, width)).astype(dtype), *edges, *like]


@pytest.mark.sampled(2, each="kind")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["segment_sum", "segment_prod", "segment_max", "scatter_add_like"])
@pytest.mark.parametrize("width", [1, 5, 32, 67])
def test_gathered_rows_are_scattered_from_where_they_are(width, kind, threads, monkeypatch):
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
    monkeypatch.setattr(backend, "thread_count", lambda: threads)
    for dtype in ("float32", "float64"):
        block = optimize(spread(width, dtype, kind))
        instructions = plan_block(block, CPU_TARGET).body.instructions
        assert not any(isinstance(i, Gather) for i in instructions)
        both(block, values(block, width, dtype))


def test_gathered_rows_that_the_caller_wants_are_gathered():
    block = optimize(spread(32, "float64", kept=True))

    assert any(isinstance(i, Gather) for i in plan_block(block, CPU_TARGET).body.instructions)
    both(block, values(block, 32, "float64"))


@pytest.mark.parametrize(("which", "wrong"), [(1, NODES), (1, -NODES - 1), (2, NODES), (2, 2**40)])
def test_an_index_out_of_range_is_refused(which, wrong):
    block = optimize(spread(32, "float64"))
    args = values(block, 32, "float64")
    args[which][EDGES - 1] = wrong

    with pytest.raises(ExecutionError) as caught:
        native_interpreter(block, CPU)(Run(), *args)
    assert caught.value.code == "index_out_of_range"


def test_a_gather_stays_before_an_instruction_that_overwrites_its_source():
    def view(shape: tuple[int, ...], dtype: str = "float64") -> View:
        size = int(np.prod(shape)) * 8
        return View(Root(size), dtype, shape, (shape[1] * shape[2], shape[2], 1) if len(shape) == 3 else (1,))

    x, made, total = view((1, 4, 16)), view((1, 6, 16)), view((1, 4, 16))
    gather = Gather(x, view((6,), "int64"), made, 1)
    scatter = ScatterAdd(made, view((6,), "int64"), total, 2)
    other = Gather(view((1, 9, 16)), view((4,), "int64"), x, 3)

    assert scatter_gathered([gather, other, scatter]) == (gather, other, scatter)
    (joined,) = scatter_gathered([gather, scatter])
    assert isinstance(joined, ScatterAdd)
    assert (joined.x, joined.rows) == (x, gather.index)
