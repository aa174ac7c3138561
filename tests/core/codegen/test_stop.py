"""A step of machine code stops on request, in loops and between kernels."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from core.codegen import step
from core.codegen.backend import CPU
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
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
    monkeypatch.setattr(step, "POLL_WORK", 100_000)
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
    monkeypatch.setattr(step, "POLL_WORK", 100_000)
    b = BlockBuilder()
    flag, x = b.param(TensorType((), "bool")), b.param(TensorType((32, 32), "float64"))
    block = b.build(b.emit("if_else", flag, x, true_block=products(3), false_block=products(3)))
    region = CPU.compile(plan_block(block, CPU.target))
    asked(monkeypatch)

    with pytest.raises(ExecutionError) as caught:
        region(stops(), np.asarray(side), np.eye(32))
    assert caught.value.code == "canceled"
