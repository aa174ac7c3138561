"""The instructions for tiles of x86 CPUs with AMX: registers that each hold up to 16 rows of 64 bytes.

A tile of the left operand has rows of 16 pairs of bfloat16 numbers, which follow each other along k. A tile of the
right operand has a row of 16 pairs for each pair of steps along k. Sums are 16 rows of 16 float32 numbers. One
instruction adds the product of two tiles to the sums. It counts denormals as 0 (Intel, Software Developer's Manual,
TDPBF16PS).
"""

from __future__ import annotations

import struct

from core.codegen.llvm import Function, IRValue
from core.codegen.module import Module

__all__ = ["SIDE", "clear", "load", "multiply", "release", "set_sizes", "store"]

SIDE = 16
"""Most rows of a tile, and most numbers of 4 bytes in a row: pairs or sums."""


def set_sizes(module: Module, f: Function, sizes: dict[int, tuple[int, int]]) -> None:
    """Set the rows of each register and the numbers of 4 bytes in a row; all tiles become 0."""
    rows = [sizes.get(register, (0, 0))[0] for register in range(16)]
    nbytes = [4 * sizes.get(register, (0, 0))[1] for register in range(16)]
    table = module.data(struct.pack("<B15x16H16B", 1, *nbytes, *rows))
    _call(f, "ldtilecfg", f"{table}", "ptr")


def clear(f: Function, register: int) -> None:
    _call(f, "tilezero", f"i8 {register}", "i8")


def load(f: Function, register: int, address: IRValue, apart: IRValue) -> None:
    """Read a tile. apart: bytes from one row to the next."""
    _call(f, "tileloadd64", f"i8 {register}, {address}, {apart}", "i8, ptr, i64")


def store(f: Function, register: int, address: IRValue, apart: IRValue) -> None:
    """Write a tile. apart: bytes from one row to the next."""
    _call(f, "tilestored64", f"i8 {register}, {address}, {apart}", "i8, ptr, i64")


def multiply(f: Function, sums: int, left: int, right: int) -> None:
    """Add the product of two tiles of pairs to the tile `sums`."""
    _call(f, "tdpbf16ps", f"i8 {sums}, i8 {left}, i8 {right}", "i8, i8, i8")


def release(f: Function) -> None:
    """Give the registers up: the system need not save them, and the core may turn their unit off."""
    _call(f, "tilerelease", "", "")


def _call(f: Function, name: str, operands: str, types: str) -> None:
    f.declarations.add(f"declare void @llvm.x86.{name}({types})")
    f.do(f"call void @llvm.x86.{name}({operands})")
