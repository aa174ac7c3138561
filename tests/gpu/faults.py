"""A run stops within its time, too little memory is an error of its run alone, and a killed process leaves nothing."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import numpy as np

from core.compiler.compile import compile_forward
from core.device.driver import DeviceFull
from core.ir import Block
from core.ir.errors import ExecutionError
from core.runtime.native import native_interpreter
from core.runtime.run import Run, RunLimits
from core.wire import read
from tests.gpu.rig import Rig, Say
from tests.gpu.steps import Step
from tests.programs import Sketch

__all__ = ["cancel", "kill", "out_of_memory"]

LEFT = 1 << 20
"""Bytes of the device that stay free when it is filled."""

GONE_S = 10.0
STARTS_S = 120.0


def cancel(rig: Rig) -> Say:
    """A loop without an end stops when its caller gives up, and at its deadline."""
    block, values = endless()
    native = native_interpreter(block, rig.backend())
    args = [rig.to_device(each) for each in values]
    for why in ("canceled", "deadline_exceeded"):
        after = time.monotonic() + 0.2
        limit: dict[str, Any] = {"deadline": after}
        if why == "canceled":
            limit = {"should_stop": lambda after=after: time.monotonic() >= after}
        try:
            native(Run(rig.driver.xp, RunLimits(max_trips=2**62, max_ops=2**62, **limit)), *args)
            told = "it ended by itself"
        except ExecutionError as error:
            told = error.code
        taken = time.monotonic() - after
        yield {"stop": why, "ok": told == why and taken <= rig.waits, "told": told, "ms": taken * 1e3}


def endless() -> tuple[Block, list[np.ndarray]]:
    """A loop of more trips than anyone waits for, and what it takes."""
    s = Sketch()
    s.feed("x", [0.5, -0.25], dtype="float32")
    s.feed("n", 2**40, dtype="int64")
    s.op("sin", "x", out="h")
    with s.repeat("n"):
        s.op("sin", "h", out="h")
    executable = compile_forward(read(s.document), fetch=["h"])
    return executable.interpreter.block, [s.values[each.name] for each in executable.inputs]


def out_of_memory(rig: Rig) -> Say:
    """On a full device a new step is refused, and runs as before when there is room again."""
    make = next(iter(rig.workloads.values()))
    before, small = Step.of(rig, make()).run(), Step.of(rig, make())
    held: list[Any] = []
    size = rig.driver.free_bytes()
    while size >= LEFT >> 10:
        try:
            held.append(rig.driver.allocate(size))
        except DeviceFull:
            size //= 2
    try:
        small.run()
        told = "it ran"
    except ExecutionError as error:
        told = error.code
    held.clear()
    rig.free()
    after = Step.of(rig, make()).run()
    same = all(np.array_equal(one, other, equal_nan=True) for one, other in zip(before, after, strict=True))
    yield {"full": told, "ok": told == "out_of_memory" and same, "same_after": same}


def kill(rig: Rig) -> Say:
    """A process that is killed in the middle of its steps frees its memory; this process and a new one go on."""
    step = Step.of(rig, next(iter(rig.workloads.values()))())
    before, free = step.run(), rig.driver.free_bytes()
    for turn in (1, 2):
        with subprocess.Popen(rig.child, stdout=subprocess.PIPE, text=True) as child:
            started = time.monotonic()
            assert child.stdout is not None
            told = child.stdout.readline().strip()
            ready = time.monotonic() - started
            child.kill()
        ended = time.monotonic()
        while rig.driver.free_bytes() < free - LEFT and time.monotonic() < ended + GONE_S:
            time.sleep(0.05)
        back = rig.driver.free_bytes() >= free - LEFT
        same = all(one.tobytes() == other.tobytes() for one, other in zip(before, step.run(), strict=True))
        ok = told == "running" and back and same and ready <= STARTS_S
        yield {"killed": turn, "ok": ok, "child": told, "ready_s": ready, "memory_is_back": back, "same_bits": same}
