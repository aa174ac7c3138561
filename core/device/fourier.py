"""Discrete Fourier transforms on a device: a block of threads has some lines, whose numbers lie in its shared memory.

The passes are those of `core.codegen.fourier_lines`, and so are the bits: threads share the butterflies of each pass,
and meet behind it. Lines that are too long for shared memory lie in scratch memory of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from core.codegen.complex_numbers import Number
from core.codegen.fourier_lines import Lines
from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.module import Module
from core.codegen.vector_slices import move
from core.device.threads import OneBlock, Threads, block_number, one_block, split
from core.plan.fourier import Fourier
from core.plan.instructions import Kernel

__all__ = ["fourier_kernel", "fourier_scratch", "fourier_units", "fourier_waits"]

SHARED_BYTES = 48 * 1024
"""Bytes of the lines of a block in shared memory; every GPU has as many for each block."""

RADIX = 4
"""Numbers that a thread has at a time, in most passes."""

NEIGHBOURS = 8
"""Lines that a block has at least, if elements of neighbouring lines are neighbours in memory."""


def fourier_kernel(module: Module, name: str, each: Kernel, launch: Threads) -> Function:
    """``name(x, out, scratch, error, check)`` for all threads. scratch: `fourier_scratch` bytes."""
    spec: Fourier = each.spec
    pointers = ("x", "out", "scratch", "error")
    f = Function(name, [*((p, "ptr") for p in pointers), ("check", "int64")], noalias=False)
    team, lines = one_block(launch), _lines_together(spec, launch)
    side = spec.inner if spec.inner > 1 else spec.outer
    groups = -(-side // lines)
    block = block_number(f, launch)
    if _is_shared(spec):
        room = team.shared(f, 2 * lines * spec.length * 2 * itemsize(spec.dtype))
    else:
        room = move(f, f.param("scratch"), spec.dtype, (block, 2 * lines * spec.length * 2))
    with f.loop(block, I64(fourier_units(spec, launch)), launch.blocks) as unit:
        slab, group = split(f, unit, (spec.outer if spec.inner > 1 else 1, groups))
        _Block(module, f, spec, 1, team, lines, room, slab, f.op(f"mul nsw {group}, {lines}", "int64"), side).write()
    return f


def fourier_scratch(spec: Fourier, launch: Threads) -> int:
    """Bytes of scratch memory that the blocks of a launch share."""
    if _is_shared(spec):
        return 0
    blocks = min(launch.blocks, fourier_units(spec, launch))
    return blocks * 2 * _lines_together(spec, launch) * spec.length * 2 * itemsize(spec.dtype)


def fourier_units(spec: Fourier, launch: Threads) -> int:
    """How many blocks can work at a time: on some lines each."""
    lines = _lines_together(spec, launch)
    return spec.outer * -(-spec.inner // lines) if spec.inner > 1 else -(-spec.outer // lines)


def fourier_waits(spec: Fourier) -> int:
    """Barriers of a block for one unit."""
    return (len(spec.radices) if spec.is_direct else 2 * len(spec.radices) + 3) + (2 if spec.real else 0)


def _is_shared(spec: Fourier) -> bool:
    return 2 * spec.length * 2 * itemsize(spec.dtype) <= SHARED_BYTES


def _lines_together(spec: Fourier, launch: Threads) -> int:
    """Lines of a block: as many as keep its threads busy, and fit."""
    side = spec.inner if spec.inner > 1 else spec.outer
    wanted = max(launch.block * RADIX // spec.length, NEIGHBOURS if spec.inner > 1 else 1)
    room = SHARED_BYTES // (2 * spec.length * 2 * itemsize(spec.dtype))
    return max(1, min(wanted, room, side))


@dataclass(slots=True)
class _Block(Lines):
    """The lines of a block, from the line `first` of `side` ones on. line: that of this thread at present.

    slab: the number of the matrix [n, inner] that has them, if its columns are lines. room: of two buffers.
    """

    team: OneBlock
    count: int
    room: IRValue
    slab: IRValue
    first: IRValue
    side: int
    line: IRValue = field(init=False)

    def write(self) -> None:
        """Transform the lines. A line after the last one is read as the last one."""
        f, spec = self.f, self.spec

        def at(name: str, j: IRValue, line: IRValue, elements: int, parts: int) -> IRValue:
            """The address of number j of a line: of so many numbers, of one part or two."""
            if spec.inner == 1:
                return move(f, f.param(name), spec.dtype, (line, parts * elements), (j, parts))
            steps = ((self.slab, parts * elements * spec.inner), (j, parts * spec.inner), (line, parts))
            return move(f, f.param(name), spec.dtype, *steps)

        def given() -> IRValue:
            return f.intrinsic("smin", f.binary("add", self.first, self.line), I64(self.side - 1))

        def read(j: IRValue) -> Number:
            return self._pair(at("x", j, given(), spec.frequencies, 2))

        def read_real(j: IRValue) -> IRValue:
            return f.load(at("x", j, given(), spec.n, 1), spec.dtype)

        def write(j: IRValue, number: Number) -> None:
            line = f.binary("add", self.first, self.line)
            with f.when(f.compare("icmp slt", line, I64(self.side))):
                self._put(at("out", j, line, spec.frequencies, 2), number)

        def write_real(j: IRValue, value: IRValue) -> None:
            line = f.binary("add", self.first, self.line)
            with f.when(f.compare("icmp slt", line, I64(self.side))):
                f.store(value, at("out", j, line, spec.n, 1))

        self.transform_lines(read, write, read_real, write_real)

    def buffer(self, which: int) -> IRValue:
        return move(self.f, self.room, self.spec.dtype, by=which * self.count * self.spec.length * 2)

    @contextmanager
    def _butterflies(
        self, left: int, done: int, turns: Callable[[IRValue], list[Number]]
    ) -> Iterator[tuple[IRValue, IRValue, list[Number]]]:
        with self._shared_out(left * done) as at:
            p, q = split(self.f, at, (left, done))
            yield p, q, turns(p)

    @contextmanager
    def _each(self, first: int, end: int) -> Iterator[IRValue]:
        with self._shared_out(end - first) as at:
            yield self.f.binary("add", at, I64(first)) if first else at

    @contextmanager
    def _shared_out(self, count: int) -> Iterator[IRValue]:
        """A number below `count` of each line, for the threads of the block in turn; they meet behind the last one."""
        f, team = self.f, self.team
        with f.loop(team.number(f), I64(count * self.count), team.block) as i:
            if self.spec.inner > 1:  # neighbouring threads have neighbouring lines
                at, self.line = split(f, i, (count, self.count))
            else:
                self.line, at = split(f, i, (self.count, count))
            yield at
        team.barrier(f)

    # --- memory ---------------------------------------------------------------------------------------------------

    def _load(self, buffer: IRValue, j: IRValue) -> Number:
        return self._pair(self._place(buffer, j))

    def _store(self, buffer: IRValue, j: IRValue, number: Number) -> None:
        self._put(self._place(buffer, j), number)

    def _place(self, buffer: IRValue, j: IRValue) -> IRValue:
        steps = (2 * self.count, 2) if self.spec.inner > 1 else (2, 2 * self.spec.length)
        return move(self.f, buffer, self.spec.dtype, (j, steps[0]), (self.line, steps[1]))

    def _pair(self, at: IRValue) -> Number:
        f, dtype = self.f, self.spec.dtype
        re, im = (f.load(move(f, at, dtype, by=i), dtype) for i in (0, 1))
        return re, im

    def _put(self, at: IRValue, number: Number) -> None:
        f, dtype = self.f, self.spec.dtype
        for i, part in enumerate(number):
            f.store(part, move(f, at, dtype, by=i))
