"""A run that stops at any of its reads of the stop word uses nothing that the code before has left unwritten.

Every loop polls, each poll counts, and the memory of the run holds numbers that are no positions of anything. Each
program runs in a forked process, which an address out of range would kill.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from core.codegen import polling, rows, step, stripes
from core.codegen.backend import CpuBackend
from core.codegen.llvm import Function, IRValue
from core.compiler.compile import GradientQuery, compile_gradient, optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.plan import plan_block
from core.plan.striped import Striped
from core.plan.unsupported import Unsupported
from core.plan.work import Work
from core.runtime import region as native_region
from core.runtime.control_words import STOP
from core.runtime.run import Run, RunLimits
from core.wire import read
from tests.core.codegen.forked_runs import survives
from tests.core.codegen.test_masked_stripes import BACKENDS, PAST, B, D, E, H, L, S, product
from tests.laws.agreement import in_dtype, step_of
from tests.laws.examples import OPS, arrays, block_for
from tests.laws.random_programs import EXAMPLES
from tests.programs import Sketch
from tests.rounding import ROUNDING

POISON = 0x7F
"""Each byte of unwritten memory: the addresses of such positions belong to no array."""

MOST = 150
"""Polls after which a run is stopped one by one; of those that follow, some."""

MEASURES = min(6, EXAMPLES // 60)
"""How many amounts of work a program is compiled with, beyond which a function polls: 2, and 6 in `make test-all`."""

COUNTED = """define internal i64 @counted_poll(ptr %word) {
  %before = atomicrmw add ptr %word, i64 1 monotonic
  %asked = icmp sge i64 %before, 0
  %answer = zext i1 %asked to i64
  ret i64 %answer
}"""
"""A poll that counts: it asks for a stop once the stop word, which starts below 0, has reached 0."""


@pytest.fixture(params=["functions", "all"])
def counting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every poll count. The step itself polls only where it must, or between all instructions too."""
    plain = Function.op

    def op(self: Function, text: str, *args: Any, **more: Any) -> IRValue:
        if text.startswith("load volatile i64, "):
            self.declarations.add(COUNTED)
            address = text.removeprefix("load volatile i64, ").removesuffix(", align 8")
            text = f"call i64 @counted_poll({address})"
        return plain(self, text, *args, **more)

    monkeypatch.setattr(Function, "op", op)
    if request.param == "functions":
        monkeypatch.setattr(step, "work_of", lambda _: Work("", 0, 0, ""))


def measures(block: Block, backend: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Values of `POLL_WORK`, so that all functions of `block` poll, or only those with more work than others."""
    found = {0}
    for module in (polling, rows, step, stripes):
        monkeypatch.setattr(module, "is_long", lambda work: found.add(work) or False)
    plan_and_compile(block, backend)
    for module in (polling, rows, step, stripes):
        monkeypatch.setattr(module, "is_long", IS_LONG)
    works = sorted(found)[:-1]
    return [-1, *works[:: -(-len(works) // MEASURES)]] if works else [-1]


IS_LONG = polling.is_long


def plan_and_compile(block: Block, backend: CpuBackend) -> Any:
    return backend.compile(plan_block(block, backend.target))


class Stopping:
    """Runs of one region that stop after some polls."""

    def __init__(self, region: Any) -> None:
        self.region, self.after, self.polls = region, 0, 0
        fresh = region.results

        def results() -> list[np.ndarray]:
            found = fresh()
            for each in found:
                ctypes.memset(each.ctypes.data, POISON, each.nbytes)
            return found

        region.results = results

    @contextmanager
    def watched(self, control: Any, _: Run) -> Iterator[None]:
        arena = self.region._arenas.small
        ctypes.memset(arena.address, POISON, arena.size)
        control[STOP] = -self.after
        yield
        self.polls = control[STOP] + self.after
        control[STOP] = int(self.polls > self.after)

    def run(self, args: Sequence[Any], after: int) -> str:
        """The code of the error of a run that stops after `after` polls; empty if it ends before."""
        self.after = after
        try:
            self.region(Run(limits=RunLimits(should_stop=lambda: True)), *args)
        except ExecutionError as error:
            return error.code
        return ""


def codes_of_stopped_runs(region: Any, args: Sequence[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop runs after each number of polls."""
    stopping = Stopping(region)
    monkeypatch.setattr(native_region, "watched", stopping.watched)
    assert stopping.run(args, 1 << 40) == ""
    polls = stopping.polls
    for after in (*range(min(polls, MOST)), *range(MOST, polls, 1 + polls // MOST)):
        os.write(2, f"{after} of {polls}\n".encode())
        assert stopping.run(args, after) == "canceled"


def check(block: Block, args: Sequence[Any], monkeypatch: pytest.MonkeyPatch, backend: CpuBackend = ROUNDING) -> None:
    """Stop runs of `block` after each number of polls, whichever functions poll."""
    for measure in measures(block, backend, monkeypatch):
        monkeypatch.setattr(polling, "POLL_WORK", measure)
        region = plan_and_compile(block, backend)
        if region.polls:
            fine, said = survives(partial(codes_of_stopped_runs, region, args, monkeypatch))
            assert fine, f"a run that was stopped did not end as one: {said}"


def gradient_of(s: Sketch, *fetch: str) -> tuple[Block, list[Any]]:
    """The gradient of `loss` as a block, and the values of its operands."""
    found = compile_gradient(read(s.document), GradientQuery(loss="loss"), list(fetch))
    return found.interpreter.block, [s.values[each.name] for each in found.inputs]


def solutions() -> tuple[Block, list[Any]]:
    """Systems of equations in the trips of a loop."""
    s, rng = Sketch(), np.random.default_rng(0)
    s.param("a", rng.normal(size=(5, 9, 9)), "float32")
    s.param("y", rng.normal(size=(5, 9, 2)), "float32")
    s.op("assign", "y", out="z")
    with s.repeat(3):
        s.op("solve", "a", "z", out="z")
    s.total(s.op("solve", "a", "z"))
    return gradient_of(s)


def chain() -> tuple[Block, list[Any]]:
    """Rows that are sorted, looked up, added up again in 16 bits, and chosen by a mask."""
    s, rng = Sketch(), np.random.default_rng(0)
    s.param("x", rng.normal(size=(40, 6)), "float16")
    s.param("keys", rng.normal(size=40), "float32")
    sorted_keys, order = s.op("sort", "keys", out=["k", "order"])
    rows = s.op("gather", "x", order)
    sums = s.op("scatter_nd_add", "x", s.op("reshape", order, shape=[40, 1]), rows)
    best, _ = s.op("topk", s.op("cast", sums, dtype="float32"), out=["best", "at"], k=3)
    chosen = s.op("masked_select", sorted_keys, s.op("greater_than", sorted_keys, s.const(0.0, (40,), "float32")))
    s.op("add", s.op("reduce_sum", best), s.op("reduce_sum", s.op("square", chosen)), out="loss")
    return gradient_of(s, sums)


def table() -> tuple[Block, list[Any]]:
    """Rows of a table, whose gradient is rows that are merged by their numbers."""
    s, rng = Sketch(), np.random.default_rng(0)
    s.param("table", rng.normal(size=(1000, 12)), "float32")
    s.feed("ids", rng.integers(0, 1000, 300), "int64")
    s.total(s.op("square", s.op("embedding", "table", "ids")))
    return gradient_of(s)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("program", [solutions, chain, table])
def test_a_program_stops_after_every_poll(program, counting, monkeypatch):
    check(*program(), monkeypatch)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", ["repeats", "stores"])
def test_attention_that_leaves_out_hidden_columns_stops_after_every_poll(how, counting, monkeypatch):
    rng, b = np.random.default_rng(0), BlockBuilder()
    shapes = (B, H, L, D), (B, H, S, D), (B, H, S, E), (B, H, L, S)
    q, k, v, mask = (b.param(TensorType(shape, "float32")) for shape in shapes)
    p = b.emit("softmax", product(q, k) + mask)
    block = optimize(b.build([b.emit("matmul", p, v), p]))  # the hidden columns of p are set to zero
    args = [rng.normal(size=shape).astype("float32") for shape in shapes[:3]]
    args.append(np.broadcast_to(np.where(PAST, 0, -1e9).astype("float32"), shapes[3]).copy())

    plan = plan_block(block, BACKENDS[how].target)
    assert any(isinstance(each, Striped) and each.window for each in plan.body.instructions)
    check(block, args, monkeypatch, BACKENDS[how])


FAST = (
    "crf_decoding",
    "det",
    "embedding",
    "inverse",
    "lu",
    "lu_solve",
    "masked_select",
    "qr",
    "roi_pool",
    "scaled_dot_product_attention",
    "scatter_nd_add",
    "segment_max",
    "sequence_expand",
    "sort",
    "topk",
    "unique",
    "viterbi_decode",
)
"""Ops whose code uses results of its own as positions."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in sorted(OPS)])
@pytest.mark.parametrize("counting", ["functions"], indirect=True)
def test_an_op_and_its_gradient_stop_after_every_poll(name, counting, monkeypatch):
    example = in_dtype(name, 0, "float64")
    assert example is not None
    forward = optimize(block_for(OPS[name], example)), arrays(example)
    for block, args in (step_of(name, 0, "float64"), forward):
        try:
            check(block, args, monkeypatch)
        except Unsupported:  # an operand whose size is open
            continue
        return
