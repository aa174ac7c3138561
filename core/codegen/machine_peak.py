"""The measured peak of this machine: its arithmetic, and its bandwidth to each level of the caches."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np

from core.codegen import amx
from core.codegen.amx import SIDE
from core.codegen.cpus import cpu
from core.codegen.llvm import I64, Function, literal
from core.codegen.machine import Library, lanes, load
from core.codegen.module import Module
from core.codegen.tile import dot_pairs
from core.codegen.tiled_product import BLOCK, multiply_block, set_block

__all__ = ["MachinePeak", "machine_peak"]

ARRAY_BYTES = (2**14, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26)
"""Bytes of the arrays that all threads together copy, from some in the first level of the caches to some in none."""

SECONDS = 0.002
"""Shortest duration of one measurement."""
TRIES, MOST_TRIES, ALIKE = 5, 15, 0.95
"""The best of `TRIES` measurements counts, because other processes can only slow them down. If the best two differ by
more than `ALIKE` allows, the machine is busy, and up to `MOST_TRIES` are made."""


@dataclass(frozen=True, slots=True)
class MachinePeak:
    """The peak of some threads together.

    flops:     floating-point operations per second, by dtype. Without instructions for bfloat16 numbers, the CPU widens
               them, and there is no rate of their own.
    bandwidth: (size, bytes per second) for arrays of up to `size` bytes, in order of size.
    """

    threads: int
    flops: dict[str, float]
    bandwidth: tuple[tuple[int, float], ...]

    def seconds(self, flops: int, nbytes: int, dtype: str) -> float:
        """The least time that this work can take."""
        rate = next((rate for size, rate in self.bandwidth if nbytes <= size), self.bandwidth[-1][1])
        return max(flops / self.flops.get(dtype, self.flops["float32"]), nbytes / rate)


MOST_MEASUREMENTS = 3
"""Of one number of threads, by one process."""

_measured: dict[int, list[MachinePeak]] = {}  # threads -> the peaks measured so far


def machine_peak(threads: int, reached: float = 0.0) -> MachinePeak:
    """The peak of `threads` threads together. The first call measures it, in some tenths of a second.

    reached: the largest share of the peak that work has reached. More than 1 shows that the machine was busy during the
    measurement: it is repeated, and the best rates count.
    """
    found = _measured.setdefault(threads, [])
    if not found or (reached > 1.0 and len(found) < MOST_MEASUREMENTS):
        found.append(_measure(threads))
    return _best(found)


def _best(peaks: Sequence[MachinePeak]) -> MachinePeak:
    """The highest of each rate."""
    first = peaks[0]
    flops = {dtype: max(each.flops[dtype] for each in peaks) for dtype in first.flops}
    rates = zip(*(each.bandwidth for each in peaks), strict=True)
    return MachinePeak(first.threads, flops, tuple(max(same) for same in rates))


def _measure(threads: int) -> MachinePeak:
    library = load(_text())
    flops = {dtype: _flops(library, dtype, threads) for dtype in ("float32", "float64")}
    if cpu().multiplies_pairs:
        flops["bfloat16"] = _flops_of_pairs(threads)
    return MachinePeak(threads, flops, _bounds([_bandwidth(library, size, threads) for size in ARRAY_BYTES]))


def _bounds(rates: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """Bounds of the bandwidth by size from the `rates` of ARRAY_BYTES.

    Larger arrays move no faster, so that the rate of one size bounds that of all sizes up to the next one. A rate below
    that of a larger size was measured while the machine was busy.
    """
    highest = list(accumulate(reversed(rates), max))[::-1]
    return tuple(zip((*ARRAY_BYTES[1:], 4 * ARRAY_BYTES[-1]), highest, strict=True))


CHAINS = 12
"""Independent sums: more than the latency of an addition times the additions that start in one cycle."""


def _text() -> str:
    functions = []
    for dtype in ("float32", "float64"):
        f = Function(f"multiply_{dtype}", [("times", "int64"), ("out", "ptr")])
        sums = [f.slot(dtype, lanes(dtype)) for _ in range(CHAINS)]
        for number, slot in enumerate(sums):
            f.write(f.splat(literal(float(number), dtype), lanes(dtype)), slot)
        with f.loop(I64(0), f.param("times")):
            for slot in sums:
                total = f.read(slot, dtype, lanes(dtype))
                f.write(f.fma(total, f.constant(0.5, total), f.constant(1.0, total)), slot)
        for number, slot in enumerate(sums):
            f.store(f.read(slot, dtype, lanes(dtype)), f.at(f.param("out"), I64(number * lanes(dtype)), dtype))
        functions.append(f)
    f = Function("move", [("times", "int64"), ("to", "ptr"), ("of", "ptr"), ("count", "int64")])
    width = lanes("float32")
    with f.loop(I64(0), f.param("times")), f.loop(I64(0), f.param("count"), 4 * width) as i:
        for piece in range(4):
            at = f.binary("add", i, I64(piece * width))
            f.store(f.load(f.at(f.param("of"), at, "float32"), "float32", width), f.at(f.param("to"), at, "float32"))
    functions.append(f)
    declared = sorted(set().union(*(f.declarations for f in functions)))
    bits = cpu().vector_bytes * 8
    wide = f'"prefer-vector-width"="{bits}" "min-legal-vector-width"="{bits}"'
    return "\n".join([*(f.text() for f in functions), *declared, f"attributes #0 = {{ nounwind noinline {wide} }}"])


def _flops(library: Library, dtype: str, threads: int) -> float:
    call = library.function(f"multiply_{dtype}", ctypes.c_int64, ctypes.c_void_p)
    out = [np.empty(CHAINS * lanes(dtype), dtype) for _ in range(threads)]
    return 2 * CHAINS * lanes(dtype) * _rate(lambda thread, times: call(times, out[thread].ctypes.data), threads)


def _flops_of_pairs(threads: int) -> float:
    """The rate of the instruction that adds products of bfloat16 numbers."""
    module, width = Module(), lanes("float32")
    f = Function("multiply_pairs", [("times", "int64")])
    module.functions.append(f)
    if cpu().has_tiles:
        set_block(module, f, BLOCK, BLOCK)
        with f.loop(I64(0), f.param("times")):
            multiply_block(f)
        amx.release(f)
        flops = 2 * 2 * SIDE * BLOCK**2
    else:
        sums = [f.slot("float32", width) for _ in range(CHAINS)]
        for slot in sums:
            f.write(f.splat(literal(0, "float32"), width), slot)
        with f.loop(I64(0), f.param("times")):
            for slot in sums:
                total = f.read(slot, "float32", width)
                f.write(dot_pairs(f, total, total, total), slot)
        flops = 2 * 2 * width * CHAINS
    call = load(module.text()).function(f.name, ctypes.c_int64)
    return flops * _rate(lambda thread, times: call(times), threads)


def _bandwidth(library: Library, size: int, threads: int) -> float:
    """Bytes read plus bytes written, per second. size: of the arrays of all threads together."""
    call = library.function("move", ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    at_once = 4 * lanes("float32")
    count = max(1, size // 8 // threads // at_once) * at_once  # half of it is read, half written
    arrays = [np.ones(2 * count, np.float32) for _ in range(threads)]

    def run(thread: int, times: int) -> None:
        start = arrays[thread].ctypes.data
        call(times, start, start + 4 * count, count)

    return 8 * count * _rate(run, threads)


def _rate(run: Callable[[int, int], None], threads: int) -> float:
    """Repetitions per second of the work of `run(thread, times)`, on all threads together."""
    times = 1
    while min(_seconds(partial(run, 0, times)) for _ in range(3)) < SECONDS:
        times *= 2
    rates: list[float] = []
    while len(rates) < TRIES or (len(rates) < MOST_TRIES and sorted(rates)[-2] < ALIKE * max(rates)):
        workers = [threading.Thread(target=run, args=(i, times)) for i in range(threads)]
        rates.append(threads * times / _seconds(partial(_together, workers)))
    return max(rates)


def _together(workers: list[threading.Thread]) -> None:
    for each in workers:
        each.start()
    for each in workers:
        each.join()


def _seconds(run: Callable[[], None]) -> float:
    before = time.perf_counter()
    run()
    return time.perf_counter() - before
