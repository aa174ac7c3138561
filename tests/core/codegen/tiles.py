"""Substitutes for the instructions that multiply bfloat16 numbers: tiles in memory, and loops over their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from core.codegen import amx, cpus, tile
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.vector_slices import move

__all__ = ["multiplies_pairs"]

Sizes = dict[int, tuple[int, int]]

NUMBERS = amx.SIDE * amx.SIDE
"""Numbers of 4 bytes in a tile."""


def dot_pairs(f: Function, a: IRValue, b: IRValue, total: IRValue) -> IRValue:
    """What `tile.dot_pairs` computes, by instructions that every CPU has."""
    words = IRValue("", "int32", total.lanes).type

    def number(pair: IRValue, first: bool) -> IRValue:
        bits = f.op(f"bitcast {pair} to {words}", "int32", total.lanes)
        by = f.splat(literal(16 if first else -(1 << 16), "int32"), total.lanes)
        return f.op(f"bitcast {f.binary('shl' if first else 'and', bits, by)} to {total.type}", "float32", total.lanes)

    for first in (True, False):
        total = f.fma(number(a, first), number(b, first), total)
    return total


class Substitute:
    """Has the functions of `core.codegen.amx`, for one thread. Tiles are NaN after their release."""

    def __init__(self) -> None:
        self.sizes: Sizes = {}

    def set_sizes(self, module: Any, f: Function, sizes: Sizes) -> None:
        module.globals["@tiles"] = f"@tiles = private global [{8 * 4 * NUMBERS} x i8] zeroinitializer, align 64"
        self.sizes = sizes
        for register in sizes:
            self.clear(f, register)

    def clear(self, f: Function, register: int) -> None:
        self._fill(f, register, 0.0)

    def load(self, f: Function, register: int, address: IRValue, apart: IRValue) -> None:
        self.clear(f, register)
        self._copy(f, register, address, apart, into=True)

    def store(self, f: Function, register: int, address: IRValue, apart: IRValue) -> None:
        self._copy(f, register, address, apart, into=False)

    def multiply(self, f: Function, sums: int, left: int, right: int) -> None:
        sizes = self.sizes
        (rows, columns), (_, steps) = sizes[sums], sizes[left]
        assert sizes[left][0] == rows
        assert sizes[right] == (steps, columns)
        a, b, c = (self._tile(f, register) for register in (left, right, sums))
        with f.loop(I64(0), I64(rows)) as i, f.loop(I64(0), I64(columns)) as j, f.loop(I64(0), I64(steps)) as k:
            here = move(f, c, "float32", (i, amx.SIDE), (j, 1))
            one = f.load(move(f, a, "float32", (i, amx.SIDE), (k, 1)), "float32")
            two = f.load(move(f, b, "float32", (k, amx.SIDE), (j, 1)), "float32")
            f.store(dot_pairs(f, one, two, f.load(here, "float32")), here)

    def release(self, f: Function) -> None:
        for register in self.sizes:
            self._fill(f, register, float("nan"))

    def _tile(self, f: Function, register: int) -> IRValue:
        return move(f, IRValue("@tiles", "ptr"), "float32", by=register * NUMBERS)

    def _fill(self, f: Function, register: int, number: float) -> None:
        with f.loop(I64(0), I64(NUMBERS)) as i:
            f.store(literal(number, "float32"), f.at(self._tile(f, register), i, "float32"))

    def _copy(self, f: Function, register: int, address: IRValue, apart: IRValue, into: bool) -> None:
        rows, numbers = self.sizes[register]
        with f.loop(I64(0), I64(rows)) as i, f.loop(I64(0), I64(numbers)) as j:
            inside = move(f, self._tile(f, register), "float32", (i, amx.SIDE), (j, 1))
            outside = f.at(f.at(address, f.binary("mul", i, apart), "uint8"), j, "float32")
            source, target = (outside, inside) if into else (inside, outside)
            f.store(f.load(source, "float32"), target)


@pytest.fixture(params=["tiles", "pairs", "substitute of tiles", "substitute of pairs"])
def multiplies_pairs(request: Any, monkeypatch: Any) -> Iterator[None]:
    """Products of bfloat16 numbers in tiles or pairs: by instructions of the CPU, and by substitutes for them."""
    own, tiles = cpus.cpu(), "tiles" in request.param
    if "substitute" in request.param:
        use_substitutes(monkeypatch)
    elif not (own.has_tiles if tiles else "+avx512bf16" in own.features):
        pytest.skip(f"this CPU does not multiply {request.param} of bfloat16 numbers")
    monkeypatch.setattr(cpus, "_of_process", lambda: replace(own, dots_bfloat16=not tiles, has_tiles=tiles))
    yield


def use_substitutes(monkeypatch: Any) -> None:
    """From now on in this test; code for one thread, which shares its tiles with no other."""
    monkeypatch.setenv("BACKPASS_THREADS", "1")
    monkeypatch.setattr(tile, "dot_pairs", dot_pairs)
    substitute = Substitute()
    for name in ("set_sizes", "clear", "load", "store", "multiply", "release"):
        monkeypatch.setattr(amx, name, getattr(substitute, name))
