"""The threads of a launch: their numbers, barriers, shuffles and shared memory, as calls of the functions `dev_*`.

On a GPU these functions are a few instructions (`ptx`); in tests an emulator has them. Each barrier and shuffle passes
a number, its place in the text, so that the emulator sees threads that meet at different ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.reductions import combine

__all__ = [
    "BLOCK",
    "DECLARATIONS",
    "MOST_THREADS",
    "WARP",
    "OneBlock",
    "Threads",
    "block_number",
    "flat_offset",
    "in_bundles",
    "one_block",
    "rolled",
    "split",
]

WARP = 32

BLOCK = 256
"""Threads of a block, unless the caller says otherwise."""

MOST_THREADS = 1024
"""Threads that a block can have."""

DECLARATIONS = {
    "thread": "declare i32 @dev_thread()",
    "barrier": "declare void @dev_barrier(i32)",
    "block_barrier": "declare void @dev_block_barrier(i32)",
    "warp_barrier": "declare void @dev_warp_barrier(i32)",
    "exchange": "declare i32 @dev_exchange(i32, i32, i32)",
    "shared": "declare ptr @dev_shared()",
}


@dataclass(slots=True)
class Threads:
    """A launch of `blocks` blocks of `block` threads each. block: a multiple of WARP.

    shared_bytes: shared memory that a block needs.
    meets: whether all threads of the launch wait for each other somewhere.
    first: the block that has the first threads; those before it have the last ones.
    """

    blocks: int
    block: int
    shared_bytes: int = 0
    meets: bool = False
    first: int = 0
    _places: Iterator[int] = field(default_factory=lambda: count(1))

    def on(self, blocks: int, block: int | None = None) -> Threads:
        """Another launch of the same step, of so many blocks. block: threads of a block, by default as many as here."""
        return Threads(blocks, block or self.block, _places=self._places)

    @property
    def total(self) -> int:
        return self.blocks * self.block

    @property
    def warps(self) -> int:
        return self.total // WARP

    def number(self, f: Function) -> IRValue:
        """The number of this thread in the launch, int64."""
        number = self._call(f, "thread", "int32")
        if self.first:
            before = self.first * self.block
            turned = f.op(f"sub nsw {number}, {before}", "int32")
            number = f.select(
                f.compare("icmp slt", number, literal(before, "int32")),
                f.op(f"add nsw {turned}, {self.total}", "int32"),
                turned,
            )
        return f.convert(number, "int64")

    def is_first(self, f: Function) -> IRValue:
        return f.compare("icmp eq", self.number(f), I64(0))

    def lane(self, f: Function) -> IRValue:
        """The number of this thread in its warp."""
        return f.op(f"and {self.number(f)}, {WARP - 1}", "int64")

    def barrier(self, f: Function) -> None:
        """All threads of the launch wait for each other."""
        self.meets = True
        self._meet(f, "barrier" if self.blocks > 1 else "block_barrier")

    def block_barrier(self, f: Function) -> None:
        self._meet(f, "block_barrier")

    def warp_barrier(self, f: Function) -> None:
        self._meet(f, "warp_barrier")

    def shared(self, f: Function, nbytes: int) -> IRValue:
        """The address of the shared memory of this block, of which the caller uses `nbytes`."""
        self.shared_bytes = max(self.shared_bytes, -(-nbytes // 16) * 16)
        return self._call(f, "shared", "ptr")

    def reduce_warp(self, f: Function, op: str, value: IRValue) -> IRValue:
        """The reduction of the values of all threads of a warp, in each of them."""
        return self.reduce_lanes(f, op, value, WARP)

    def reduce_lanes(self, f: Function, op: str, value: IRValue, lanes: int) -> IRValue:
        """The reduction of the values of `lanes` neighbouring threads, in each of them. All threads of a warp call it.

        lanes: a power of two, at most WARP.
        """
        distance = lanes // 2
        while distance:
            value = combine(f, op, value, self.exchanged(f, value, distance))
            distance //= 2
        return value

    def mma(self, f: Function, kind: str, a: Sequence[IRValue], b: Sequence[IRValue], total: IRValue) -> IRValue:
        """Add a product of 16 x 8 results of this warp to `total`, four of them in each thread.

        kind: "tf32", "f16" or "bf16". a, b: four and two words of this thread (`core.device.tensor_cores`).
        """
        name = f"dev_mma_{kind}"
        f.declarations.add(f"declare <4 x float> @{name}(i32, i32, i32, i32, i32, i32, <4 x float>, i32)")
        words = ", ".join(map(str, (*a, *b)))
        return f.op(f"call <4 x float> @{name}({words}, {total}, i32 {next(self._places)})", "float32", 4)

    @contextmanager
    def alone(self, f: Function) -> Iterator[None]:
        """Only the first thread runs the instructions written inside the context."""
        with f.when(self.is_first(f)):
            yield

    def exchanged(self, f: Function, value: IRValue, distance: int) -> IRValue:
        """The value of the thread of the warp whose number differs in the bit `distance`."""
        f.declarations.add(DECLARATIONS["exchange"])

        def one(word: IRValue) -> IRValue:
            return f.op(f"call i32 @dev_exchange({word}, i32 {distance}, i32 {next(self._places)})", "int32")

        if value.dtype in ("float64", "int64"):
            bits = f.bitcast(value, "int64") if value.is_float else value
            low = one(f.op(f"trunc {bits} to i32", "int32"))
            high = one(f.op(f"trunc i64 {f.op(f'lshr {bits}, 32', 'int64').name} to i32", "int32"))
            high = f.op(f"shl i64 {f.op(f'zext {high} to i64', 'int64').name}, 32", "int64")
            bits = f.op(f"or {f.op(f'zext {low} to i64', 'int64')}, {high.name}", "int64")
            return f.bitcast(bits, "float64") if value.is_float else bits
        if value.type == "float":
            moved = one(f.bitcast(IRValue(value.name, "float32"), "int32"))
            return IRValue(f.bitcast(moved, "float32").name, value.dtype)
        return f.convert(one(f.convert(value, "int32")), value.dtype)

    def _call(self, f: Function, name: str, dtype: str) -> IRValue:
        f.declarations.add(DECLARATIONS[name])
        return f.op(f"call {IRValue('', dtype).type} @dev_{name}()", dtype)

    def _meet(self, f: Function, name: str) -> None:
        f.declarations.add(DECLARATIONS[name])
        f.do(f"call void @dev_{name}(i32 {next(self._places)})")


@dataclass(slots=True)
class OneBlock(Threads):
    """The threads of one block of `launch`, as a launch of their own: what they run, each block runs for itself.

    before: bytes of shared memory that the caller keeps for itself.
    """

    launch: Threads | None = None
    before: int = 0

    def number(self, f: Function) -> IRValue:
        return f.op(f"urem {Threads.number(self, f)}, {self.block}", "int64")

    def barrier(self, f: Function) -> None:
        self.block_barrier(f)

    def shared(self, f: Function, nbytes: int) -> IRValue:
        assert self.launch is not None
        return f.at(self.launch.shared(f, self.before + nbytes), I64(self.before), "uint8")


def one_block(launch: Threads, before: int = 0) -> OneBlock:
    """The threads of each block of a launch. before: bytes of shared memory that the caller keeps for itself."""
    return OneBlock(1, launch.block, _places=launch._places, launch=launch, before=before)


def block_number(f: Function, launch: Threads) -> IRValue:
    """The number of the block of this thread."""
    return f.op(f"udiv {launch.number(f)}, {launch.block}", "int64")


def split(f: Function, at: IRValue, sizes: Sequence[int]) -> list[IRValue]:
    """A flat position as one along each axis. at: at least 0 and less than 2**32 if there are fewer elements."""
    if len(sizes) < 2:
        return [at] if sizes else []
    found: list[IRValue] = []
    short = math.prod(sizes) <= 2**31  # a GPU divides 32-bit numbers several times faster
    if short:
        at = f.op(f"trunc {at} to i32", "int32")
    for size in reversed(sizes[1:]):
        found.append(f.op(f"urem {at}, {size}", at.dtype))
        at = f.op(f"udiv {at}, {size}", at.dtype)
    found = [at, *reversed(found)]
    return [f.op(f"zext {each} to i64", "int64") for each in found] if short else found


@contextmanager
def rolled(f: Function, start: IRValue, end: IRValue, step: int = 1) -> Iterator[IRValue]:
    """A loop that the assembler of a GPU does not unroll, since all its loads at once would need too many registers."""
    with f.loop(start, end, step) as i:
        yield i
    assert f.lines[-2].startswith("  br label"), "the jump to the head of the loop, and the label behind it"
    f.lines[-2] += ", !llvm.loop !0"
    f.declarations.add('!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.disable"}')


def in_bundles(
    f: Function, start: IRValue, end: IRValue, step: int, count: int, write: Callable[[list[IRValue]], None],
    whole: bool = False,
) -> None:  # fmt: skip
    """A loop from `start` to `end` by `step`, of which `write` has `count` positions at a time, at the end one each.

    whole: whether there is nothing left at the end.
    """
    if count < 2:
        with f.loop(start, end, step) as at:
            write([at])
        return
    rest = f.slot("int64")
    f.write(start, rest)
    with f.loop(start, f.binary("sub", end, I64((count - 1) * step)), count * step) as at:
        write([f.binary("add", at, I64(k * step)) if k else at for k in range(count)])
        f.write(f.binary("add", at, I64(count * step)), rest)
    if whole:
        return
    with rolled(f, f.read(rest, "int64"), end, step) as at:
        write([at])


def flat_offset(f: Function, index: Sequence[IRValue], strides: Sequence[int]) -> IRValue:
    """The sum of the positions times their strides."""
    total = I64(0)
    for one, stride in zip(index, strides, strict=True):
        if stride:
            part = one if stride == 1 else f.op(f"mul nsw {one}, {stride}", "int64")
            total = part if total.name == "0" else f.binary("add", total, part)
    return total
