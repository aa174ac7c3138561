"""The reference executor: it runs a block op by op with numpy or cupy kernels, and defines the meaning of programs.

`interpreter_of` decides once which kernel each op runs and which values are dead after it. A value is freed right after
its last use, so the peak memory of a run is the widest moment of the program and not its length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import ModuleType
from typing import Any

import numpy as np

from core.cost.duration import seconds_of, seconds_of_call
from core.cost.scratch import needed_bytes, sizes_of_run
from core.ir import HOLE, Block, Op, StackType, inner_blocks
from core.ir.errors import CoreError, ExecutionError
from core.ir.registry import as_tuple, lookup
from core.ir.stop import poll
from core.ops.common.types import byte_size
from core.passes.row_bounds import Pick
from core.runtime.backend import Region
from core.runtime.fitting import FittingSizes, fitting_sizes
from core.runtime.forked import call_in_child
from core.runtime.memory_limit import GRAIN
from core.runtime.run import Run, RunLimits
from core.runtime.updates_apart import RegionsApart

__all__ = ["NATIVE", "Interpreter", "OpCall", "execute", "interpreter_of", "largest_array"]

NATIVE = "native"
"""The type of an op that stands for a compiled region of the block; the region is its attribute `region`."""


@dataclass(frozen=True, slots=True)
class OpCall:
    """One op, ready to call.

    dead:      variables that no later op reads.
    takes_run: whether `call` gets the run as its first argument, instead of the array module.
    grows:     whether the size of a result is known only after the call.
    seconds:   the time that it takes at most (`core.cost.duration`); None if the types leave a size open.
    needs:     bytes that the call allocates; None if the operands decide. Blocks inside the op count for themselves.
    keeps:     whether a result is a stack that keeps the operands.
    fitting:   compares sizes that the types leave open, of the operands of a call; None if all are known.
    """

    op: Op
    call: Callable[..., Any]
    inputs: tuple[str, ...]
    dead: tuple[str, ...]
    takes_run: bool
    grows: bool
    seconds: float | None = 0.0
    needs: int | None = 0
    keeps: bool = False
    fitting: FittingSizes | None = None


@dataclass(frozen=True)
class Interpreter:
    """A block with its kernels chosen. Call it with a run and arrays; it returns the results, in order.

    watch:   variable -> a function that is called with its value as soon as that is computed.

    largest: bytes of the largest array whose size is known, inner blocks included.
    region:  the compiled region that is the whole block, if there is one.
    picks:   the results, if they are not those of the block in their order (see `core.passes.row_bounds`).
    parts:   the same block in regions and single ops, which run instead of its own ops.
    apart:   the two regions that are the whole block, if its updates are apart.
    """

    block: Block
    largest: int
    region: Region | None = None
    picks: tuple[Pick, ...] | None = None
    parts: Block | None = None
    apart: RegionsApart | None = None

    @property
    def ops(self) -> tuple[Op, ...]:
        """The regions and single ops, in the order in which they run."""
        return (self.parts or self.block).ops

    @cached_property
    def calls(self) -> tuple[OpCall, ...]:
        """The ops, ready to call. They are made for the first run: a block that becomes machine code needs none."""
        return _calls_of(self.parts or self.block)

    def __call__(
        self, run: Run, *args: Any, watch: Mapping[str, Callable[[Any], None]] | None = None
    ) -> tuple[Any, ...]:
        env: dict[str, Any] = dict(zip(self.block.params, args, strict=True))
        env[HOLE] = None
        run.ops_left -= len(self.calls)
        polls = run.limits.should_stop is not None or run.limits.deadline is not None
        if run.ops_left < 0:
            raise ExecutionError(f"the run executed more than {run.limits.max_ops} ops", "too_many_ops")
        if watch is not None:
            _notify(watch, self.block.params, env)
        most = run.limits.most_inside if run.xp is np else None
        limited = run.limits.memory is not None
        for each in self.calls:
            call = each.call
            if most is not None and (each.seconds is None or each.seconds > most) and _seconds(each, env) > most:
                call = partial(call_in_child, run, call)
            if run.times is not None and not each.takes_run:
                call = partial(run.times.call, each.op, self.block, call)
            operands = [env[name] for name in each.inputs]
            try:
                if each.fitting is not None:
                    each.fitting.check(operands)
                if limited and (each.needs is None or each.needs >= GRAIN or each.keeps):
                    _check_memory(run, each, operands)
                result = call(run if each.takes_run else run.xp, *operands)
            except CoreError as error:
                raise error.at(each.op.location) from error.__cause__
            except MemoryError as error:
                message = f"{each.op.type} needs more memory than is left: {error}"
                raise ExecutionError(message, "out_of_memory", location=each.op.location) from error
            except (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError) as error:
                # a size that the types leave open did not fit; known types were checked before
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
                _notify(watch, each.op.outputs, env)
            del operands, result  # they would keep values that are dead
            for name in each.dead:
                del env[name]
            if polls:
                run.poll()
        return self.picked([env[name] for name in self.block.results])

    def picked(self, results: Sequence[Any]) -> tuple[Any, ...]:
        """The results, from those of the block."""
        if self.picks is None:
            return tuple(results)
        return tuple([results[i] if end is None else results[i][: int(results[end])] for i, end in self.picks])

    def _check_size(self, run: Run, op: Op, env: Mapping[str, Any]) -> None:
        """Check the size of results whose type leaves it open. Raises ExecutionError (too_large)."""
        for name in op.outputs:
            size = getattr(env[name], "nbytes", 0)
            if size > run.limits.max_bytes:
                raise ExecutionError(
                    f"{op.type} gave an array of {size} bytes, more than {run.limits.max_bytes}",
                    "too_large",
                    location=op.location,
                )


def _seconds(each: OpCall, env: Mapping[str, Any]) -> float:
    """The time that an op takes at most, on the arrays of the run if its types leave a size open."""
    return seconds_of_call(each.op, [env[name] for name in each.inputs]) if each.seconds is None else each.seconds


def _check_memory(run: Run, each: OpCall, operands: Sequence[Any]) -> None:
    """Check that the arrays of a call fit into the memory that is left. Raises OutOfMemory, ExecutionError
    (too_large).
    """
    op = each.op
    if each.keeps:
        run.keep(sum([v.nbytes for v in operands if not isinstance(v, list | tuple | None)]), op.type)
        return
    if each.needs is not None:
        run.require(each.needs, op.type)
        return
    needed, largest = sizes_of_run(op.type, operands, op.attrs)
    if largest > run.limits.max_bytes:
        raise ExecutionError(
            f"{op.type} would give an array of {largest} bytes, more than {run.limits.max_bytes}", "too_large"
        )
    run.require(needed, op.type)


def _reporting(op: Op, call: Callable[..., Any], run: Run, *inputs: Any) -> Any:
    run.report(op, inputs[0])
    return call(run.xp, *inputs)


def _notify(watch: Mapping[str, Callable[[Any], None]], names: Iterable[str], env: Mapping[str, Any]) -> None:
    for name in names:
        if name in watch:
            watch[name](env[name])


def interpreter_of(block: Block) -> Interpreter:
    """An interpreter of `block`, whose composites must be expanded. Inner blocks become interpreters too."""
    return Interpreter(block, largest_array(block))


def _calls_of(block: Block) -> tuple[OpCall, ...]:
    calls: list[OpCall] = []
    needed = {*block.results, HOLE}
    for op in reversed(block.ops):
        poll()
        dead = [name for name in dict.fromkeys((*op.inputs, *op.outputs)) if name not in needed]
        needed.update(dead)
        grows = not all(block.types[n].is_static for n in op.outputs)
        if op.type == NATIVE:
            calls.append(OpCall(op, op.attrs["region"], op.inputs, tuple(dead), True, False))
            continue
        spec = lookup(op.type)
        attrs = {k: interpreter_of(v) if isinstance(v, Block) else v for k, v in op.attrs.items()}
        call = partial(spec.body, **attrs)
        if spec.reports:
            call = partial(_reporting, op, call)
        takes_run = spec.kind == "control" or spec.reports
        ins = [block.types.get(name) for name in op.inputs]
        seconds = 0.0 if takes_run else seconds_of(op, ins, [block.types[name] for name in op.outputs])
        keeps = spec.kind != "control" and any(isinstance(block.types[n], StackType) for n in op.outputs)
        needs = 0 if spec.kind == "control" else _needs(op, block)
        fitting = fitting_sizes(spec, ins, op.attrs)
        calls.append(OpCall(op, call, op.inputs, tuple(dead), takes_run, grows, seconds, needs, keeps, fitting))
    return tuple(reversed(calls))


def largest_array(block: Block) -> int:
    """Bytes of the largest array that an op of `block` returns, or one of its inner blocks."""
    return max([_largest_result(block), *(largest_array(b) for op in block.ops for _, b in inner_blocks(op))])


def _largest_result(block: Block) -> int:
    return max([0, *(byte_size(block.types[n]) for op in block.ops for n in op.outputs)])


def _needs(op: Op, block: Block) -> int | None:
    """Bytes that a call of `op` allocates; None if sizes are open."""
    types = [None if n == HOLE else block.types[n] for n in op.inputs]
    outputs = [block.types[n] for n in op.outputs]
    if not all(type is None or type.is_static for type in (*types, *outputs)):
        return None
    return needed_bytes(op.type, types, outputs)


def execute(block: Block, args: Sequence[Any], xp: ModuleType = np, limits: RunLimits | None = None) -> tuple[Any, ...]:
    """Run `block` once, composites included. For tests and small tools: it makes an interpreter for a single run."""
    from core.passes.expand import expand_composites

    with np.errstate(all="ignore"):
        return interpreter_of(expand_composites(block))(Run(xp, limits or RunLimits()), *args)
