"""Tiles of products on tensor cores: a warp multiplies 16 rows by 8 columns at a time.

Operands lie in shared memory row by row, in words of 32 bits: one TF32 number, or two 16-bit numbers that follow each
other along the sum. A step has 8 words of each row. Lane 4 g + t has the words t and t + 4 of the rows g and g + 8 of
the first operand and of row g of the second one, and the columns 2 t and 2 t + 1 of the rows g and g + 8 of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.device.threads import WARP, Threads, split
from core.device.tiles import Tile, load_vector
from core.plan.instructions import Gemm

__all__ = ["TensorCores"]

STEP = 8
"""Words of a row that one instruction multiplies."""

WORDS, MOST_WORDS = 16, 32
"""Words of a row in shared memory at a time, and most of them if tiles are small: their threads wait longer for memory
than they multiply.
"""

GAP = 4
"""Words between two rows: then the lanes of a warp read from different banks."""

KINDS = {"float32": "tf32", "float16": "f16", "bfloat16": "bf16"}

SIDES = ((4, 4), (2, 4), (2, 2), (1, 1))
"""Products of 16 x 8 results of a warp, below and beside each other."""

SMALL = 4
"""Most such products of a small tile."""


@dataclass(slots=True)
class TensorCores:
    """The results of the threads of a block, `side` products of 16 x 8 for each warp, in registers.

    words: of a row in shared memory at a time.
    """

    threads: Threads
    side: tuple[int, int]
    dtype: str
    words: int = WORDS
    _sums: dict[tuple[int, int], IRValue] = field(default_factory=dict)

    @staticmethod
    def options(each: Gemm, threads: Threads) -> Iterator[TensorCores]:
        given = each.a.shape[-1] * itemsize(each.a.dtype) // 4
        for side in SIDES:
            is_deep = side[0] * side[1] <= SMALL and given > WORDS
            yield TensorCores(threads, side, each.a.dtype, MOST_WORDS if is_deep else WORDS)

    @property
    def _warps(self) -> tuple[int, int]:
        """Warps of a block below and beside each other."""
        warps, down = self.threads.block // WARP, 1
        while warps % (2 * down) == 0 and (2 * down) ** 2 <= warps:
            down *= 2
        return down, warps // down

    @property
    def rows(self) -> int:
        return self._warps[0] * self.side[0] * 16

    @property
    def columns(self) -> int:
        return self._warps[1] * self.side[1] * 8

    @property
    def depth(self) -> int:
        return self.words * 4 // itemsize(self.dtype)

    @property
    def cost(self) -> float:
        """Time of a result, compared with that of the largest side: a small one reads more of shared memory."""
        down, right = self.side
        return 0.1 + 0.9 * (1 / (2 * down) + 1 / right) / (1 / 8 + 1 / 4)

    def tiles(self, each: Gemm) -> tuple[Tile, Tile]:
        pitch = (self.words + GAP) * 4 // itemsize(self.dtype)
        first = Tile(each.a, -2, -1, self.rows, self.depth, pitch, by_term=False)
        return first, Tile(each.b, -1, -2, self.columns, self.depth, pitch, by_term=False)

    @property
    def rounds(self) -> bool:
        return self.dtype == "float32"

    def start(self, f: Function) -> None:
        for i in range(self.side[0]):
            for j in range(self.side[1]):
                slot = self._sums.setdefault((i, j), IRValue("", "ptr"))
                if not slot.name:
                    slot = self._sums[i, j] = f.slot("float32", 4)
                f.do(f"store <4 x float> zeroinitializer, {slot}")

    def multiply(self, f: Function, local: IRValue, tiles: tuple[Tile, Tile], copies: tuple[IRValue, IRValue]) -> None:
        """Add the products of the terms in shared memory."""
        down, right, g, t = self._places(f, local)
        numbers = 4 // itemsize(self.dtype)
        term = f.op(f"mul nsw {t}, {numbers}", "int64")

        def word(which: int, row: IRValue, at: int) -> IRValue:
            here = tiles[which].address(f, copies[which], row, f.binary("add", term, I64(at * numbers)))
            return load_vector(f, here, "int32", 1)

        for step in range(0, self.words, STEP):
            rows = [f.binary("add", down, f.binary("add", g, I64(8 * i))) for i in range(2 * self.side[0])]
            columns = [f.binary("add", right, f.binary("add", g, I64(8 * j))) for j in range(self.side[1])]
            firsts = [
                [word(0, row, step + at) for at in (0, 4) for row in rows[2 * i : 2 * i + 2]]
                for i in range(self.side[0])
            ]
            seconds = [[word(1, column, step + at) for at in (0, 4)] for column in columns]
            for (i, j), total in self._sums.items():
                made = self.threads.mma(f, KINDS[self.dtype], firsts[i], seconds[j], f.read(total, "float32", 4))
                f.write(made, total)

    def results(self, f: Function, local: IRValue) -> Iterator[tuple[IRValue, IRValue, IRValue]]:
        """Row, column and value of the results of this thread: vectors of two numbers side by side."""
        down, right, g, t = self._places(f, local)
        for (i, j), slot in self._sums.items():
            total = f.read(slot, "float32", 4)
            column = f.binary("add", right, f.binary("add", f.op(f"mul nsw {t}, 2", "int64"), I64(8 * j)))
            for half in range(2):
                row = f.binary("add", down, f.binary("add", g, I64(16 * i + 8 * half)))
                mask = f"<2 x i32> <i32 {2 * half}, i32 {2 * half + 1}>"
                yield row, column, f.op(f"shufflevector {total}, <4 x float> poison, {mask}", "float32", 2)

    def _places(self, f: Function, local: IRValue) -> tuple[IRValue, IRValue, IRValue, IRValue]:
        """The first row and column of this warp, and the numbers g and t of its lane."""
        warp, g, t = split(f, local, (self.threads.block // WARP, 8, 4))
        down, right = split(f, warp, self._warps)
        return (
            f.op(f"mul nsw {down}, {16 * self.side[0]}", "int64"),
            f.op(f"mul nsw {right}, {8 * self.side[1]}", "int64"),
            g,
            t,
        )
