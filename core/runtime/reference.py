"""The reference executor: runs a block op by op with numpy or cupy kernels. It defines what a program means.

Everything that can be decided once is decided in `plan`: which kernel runs, and after which op a value is dead. A value
is freed right after its last use, so the peak memory of a run is the widest moment of the program, not its length.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from core.ir import HOLE, Block, Op
from core.ir.errors import CoreError, ExecutionError, Location
from core.ir.registry import as_tuple, lookup
from core.ops.common.types import byte_size
from core.runtime.times import Times

__all__ = ["NATIVE", "Message", "Plan", "Run", "RunLimits", "plan"]

NATIVE = "native"
"""The type of an op that stands for a compiled region of the block, its attribute `region`."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What one run may use.

    max_trips:   of each loop, each time it runs.
    max_ops:     op executions in all, loops included.
    max_bytes:   of one array.
    deadline:    a moment of time.monotonic(), in seconds; None for no deadline.
    should_stop: asked between ops; True ends the run.
    messages:    of ops that report, in all; more are counted only.
    """

    max_trips: int = 10_000
    max_ops: int = 100_000_000
    max_bytes: int = 2**32
    deadline: float | None = None
    should_stop: Callable[[], bool] | None = None
    messages: int = 100


@dataclass(frozen=True, slots=True)
class Message:
    """What an op that reports said of its input: dtype, shape, and the first elements in row-major order."""

    text: str
    location: Location | None
    dtype: str
    shape: tuple[int, ...]
    data: tuple[bool | int | float, ...]


@dataclass(slots=True)
class Run:
    """One run in progress: the array module, what is left of its limits, and what its ops reported.

    unsaid: messages beyond the limit.
    times:  where the time of each kernel goes, if it is wanted.
    """

    xp: ModuleType = np
    limits: RunLimits = field(default_factory=RunLimits)
    ops_left: int = 0
    messages: list[Message] = field(default_factory=list)
    unsaid: int = 0
    times: Times | None = None
    _reports: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ops_left = self.limits.max_ops

    def trip(self, done: int) -> None:
        """A loop that has made `done` trips asks to make one more.

        Raises ExecutionError (too_many_trips, deadline_exceeded, canceled).
        """
        if done >= self.limits.max_trips:
            raise ExecutionError(
                f"the loop made {done} trips without ending", "too_many_trips", suggestion="raise max_trips"
            )
        self.poll()

    def report(self, op: Op, x: Any) -> None:
        """Take a note of x, unless `op` has said enough."""
        times = self._reports[id(op)] = self._reports.get(id(op), 0) + 1
        if 0 <= op.attrs["first_n"] < times:
            return
        if len(self.messages) >= self.limits.messages:
            self.unsaid += 1
            return
        head = x.reshape(-1)[: op.attrs["summarize"]]
        data = (head if head.dtype.kind in "biuf" else head.astype("float64")).tolist()
        message = Message(op.attrs["message"], op.location, str(x.dtype), tuple(x.shape), tuple(data))
        self.messages.append(message)

    def poll(self) -> None:
        if self.limits.deadline is not None and time.monotonic() > self.limits.deadline:
            raise ExecutionError("the deadline passed while the program ran", "deadline_exceeded")
        if self.limits.should_stop is not None and self.limits.should_stop():
            raise ExecutionError("the run was canceled", "canceled")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One op, ready to call, and the variables nobody reads after it."""

    op: Op
    call: Callable[..., Any]
    inputs: tuple[str, ...]
    dead: tuple[str, ...]
    control: bool
    grows: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A block with its kernels bound. Call it with a run and arrays; it returns the results, in order.

    With `watch` each function in it is called with the value of its variable, as soon as there is one.

    largest: bytes of the largest array whose size is known, inner blocks included.
    direct:  one function that does all of it, where there is one.
    """

    block: Block
    instructions: tuple[Instruction, ...]
    largest: int
    direct: Callable[..., tuple[Any, ...]] | None = None

    def __call__(
        self, run: Run, *args: Any, watch: Mapping[str, Callable[[Any], None]] | None = None
    ) -> tuple[Any, ...]:
        env: dict[str, Any] = dict(zip(self.block.params, args, strict=True))
        env[HOLE] = None
        run.ops_left -= len(self.instructions)
        polls = run.limits.should_stop is not None or run.limits.deadline is not None
        if run.ops_left < 0:
            raise ExecutionError(f"the run executed more than {run.limits.max_ops} ops", "too_many_ops")
        if watch is not None:
            _tell(watch, self.block.params, env)
        for each in self.instructions:
            call = each.call
            if run.times is not None and not each.control:
                call = partial(run.times.call, each.op, self.block, call)
            try:
                result = call(run if each.control else run.xp, *[env[name] for name in each.inputs])
            except CoreError as error:
                raise error.at(each.op.location) from error.__cause__
            except MemoryError as error:
                raise ExecutionError("out of memory", "out_of_memory", location=each.op.location) from error
            except (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError) as error:
                # sizes that only the run could tell did not fit; the types that were known did
                raise ExecutionError(
                    f"{each.op.type} failed: {error}", "shape_mismatch", location=each.op.location
                ) from error
            if len(each.op.outputs) == 1 and not isinstance(result, tuple):
                env[each.op.outputs[0]] = result
            else:
                env.update(zip(each.op.outputs, as_tuple(result), strict=True))
            if each.grows:
                self._check_size(run, each.op, env)
            if watch is not None:
                _tell(watch, each.op.outputs, env)
            for name in each.dead:
                del env[name]
            if polls:
                run.poll()
        return tuple([env[name] for name in self.block.results])

    def _check_size(self, run: Run, op: Op, env: Mapping[str, Any]) -> None:
        """Sizes that only the run could tell are checked as soon as it has told them."""
        for name in op.outputs:
            size = getattr(env[name], "nbytes", 0)
            if size > run.limits.max_bytes:
                raise ExecutionError(
                    f"{op.type} gave an array of {size} bytes, more than {run.limits.max_bytes}",
                    "too_large",
                    location=op.location,
                )


def _reporting(op: Op, call: Callable[..., Any], run: Run, *inputs: Any) -> Any:
    run.report(op, inputs[0])
    return call(run.xp, *inputs)


def _tell(watch: Mapping[str, Callable[[Any], None]], names: Iterable[str], env: Mapping[str, Any]) -> None:
    for name in names:
        if name in watch:
            watch[name](env[name])


def plan(block: Block) -> Plan:
    """Bind kernels, plan inner blocks, and free every variable after its last use. Composites must be expanded."""
    instructions: list[Instruction] = []
    inner: list[int] = []
    needed = {*block.results, HOLE}
    for op in reversed(block.ops):
        dead = [name for name in dict.fromkeys((*op.inputs, *op.outputs)) if name not in needed]
        needed.update(dead)
        grows = not all(block.types[n].is_static for n in op.outputs)
        if op.type == NATIVE:
            instructions.append(Instruction(op, op.attrs["region"], op.inputs, tuple(dead), True, False))
            continue
        spec = lookup(op.type)
        attrs = {k: plan(v) if isinstance(v, Block) else v for k, v in op.attrs.items()}
        inner += [v.largest for v in attrs.values() if isinstance(v, Plan)]
        call = partial(spec.body, **attrs)
        if spec.reports:
            call = partial(_reporting, op, call)
        control = spec.kind == "control" or spec.reports
        instructions.append(Instruction(op, call, op.inputs, tuple(dead), control, grows))
    largest = max([0, *inner, *(byte_size(block.types[n]) for op in block.ops for n in op.outputs)])
    return Plan(block, tuple(reversed(instructions)), largest)


def execute(block: Block, args: Sequence[Any], xp: ModuleType = np, limits: RunLimits | None = None) -> tuple[Any, ...]:
    """Run `block` once, composites and all. For tests and small tools; a service plans once and runs often."""
    from core.passes.expand import expand_composites

    with np.errstate(all="ignore"):
        return plan(expand_composites(block))(Run(xp, limits or RunLimits()), *args)
