"""Rows of arrays as slices of one vector each: splitting a row, loops along it, and strided elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core.codegen.cpus import cpu
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.ir.errors import InternalError
from core.ir.precision import HALVES

__all__ = [
    "WIDEST",
    "VectorSlice",
    "even_blocks",
    "fill_zeros",
    "for_each_block",
    "for_each_slice",
    "interleaved",
    "lanes_for",
    "load_phases",
    "load_strided",
    "mask",
    "move",
    "passes",
    "slices_of",
    "store_lanes",
    "unravel",
]

WIDEST = 4
"""Largest stride at which elements are loaded together with the elements between them."""


@dataclass(frozen=True, slots=True)
class VectorSlice:
    """`count` elements of a row from `start`, in a vector of `lanes` lanes."""

    start: int
    lanes: int
    count: int


def passes(size: int) -> int:
    """Passes of a vector of `size` bytes through the multiplier: Zen 4 splits 64 bytes in two halves."""
    return 2 if size == 64 and cpu().name == "znver4" else 1


def lanes_for(dtype: str, length: int) -> int:
    """The number of lanes with which a row of `length` takes the least time.

    Of equal ones that with the fewest empty lanes, since a number that was stored under a mask cannot be loaded at
    once; of these the largest.
    """
    one = max(itemsize(dtype), 4 if dtype in HALVES else 1)
    widths = [w for w in (64, 32, 16) if w <= cpu().vector_bytes] or [one]
    return min(widths, key=lambda w: (-(-length // (w // one)) * passes(w), -length % (w // one), -w)) // one


def slices_of(length: int, lanes: int) -> list[VectorSlice]:
    return [VectorSlice(at, lanes, min(lanes, length - at)) for at in range(0, length, lanes)]


def mask(count: int, lanes: int) -> IRValue | None:
    """A mask of the first `count` lanes; None if that is all of them."""
    if count >= lanes:
        return None
    return IRValue(f"<{', '.join(f'i1 {str(i < count).lower()}' for i in range(lanes))}>", "bool", lanes)


def even_blocks(total: int, most: int) -> list[tuple[int, int, int]]:
    """Blocks of at most `most` elements and of nearly equal size: (start, size, number) of the larger ones and of the
    smaller ones."""
    if total == 0:
        return []
    number = -(-total // most)
    small, larger = divmod(total, number)
    found = [(0, small + 1, larger), (larger * (small + 1), small, number - larger)]
    return [each for each in found if each[2]]


def for_each_block(f: Function, total: int, most: int, body: Callable[[IRValue, int], None]) -> None:
    """``body(start, size)`` for each block of `even_blocks`, in a loop that polls."""
    for start, size, number in even_blocks(total, most):
        if number == 1:
            body(I64(start), size)
        else:
            with f.loop(I64(start), I64(start + size * number), size, polls=True) as at:
                body(at, size)


def for_each_slice(
    f: Function, length: int, lanes: int, body: Callable[[IRValue, int], None], unrolled: int = 4
) -> None:
    """``body(start, count)`` for the slices of a row: up to `unrolled` as straight code, more as a loop and a tail."""
    pieces = slices_of(length, lanes)
    if len(pieces) <= unrolled:
        for piece in pieces:
            body(I64(piece.start), piece.count)
        return
    whole = length // lanes * lanes
    with f.loop(I64(0), I64(whole), lanes) as at:
        body(at, lanes)
    if whole < length:
        body(I64(whole), length - whole)


def move(f: Function, address: IRValue, dtype: str, *steps: tuple[IRValue, int], by: int = 0) -> IRValue:
    """`address` plus each number times its stride, plus `by` elements."""
    for number, distance in steps:
        if distance and number.name != "0":
            address = f.at(address, f.op(f"mul nsw {number}, {distance}", "int64"), dtype)
    return f.at(address, I64(by), dtype) if by else address


def unravel(f: Function, number: IRValue, sizes: tuple[int, ...]) -> list[IRValue]:
    """A position in row-major order as one index for each axis."""
    found: list[IRValue] = []
    for size in reversed(sizes[1:]):
        found.insert(0, f.op(f"urem {number}, {size}", "int64"))
        number = f.op(f"udiv {number}, {size}", "int64")
    return [number, *found]


def fill_zeros(f: Function, address: IRValue, count: int, dtype: str) -> None:
    """Set `count` elements to 0."""
    f.declarations.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    nbytes = count * itemsize(dtype)
    f.do(f"call void @llvm.memset.p0.i64({address}, i8 0, i64 {nbytes}, i1 false)")


def store_lanes(f: Function, value: IRValue, address: IRValue, count: int) -> None:
    """Store the first `count` lanes of `value`."""
    f.store(value, address, mask(count, value.lanes) if value.lanes > 1 else None)


def load_phases(
    f: Function, address: IRValue, dtype: str, stride: int, lanes: int, count: int, wanted: int = 1
) -> list[IRValue]:
    """One vector for each of the `wanted` positions from `address`: `count` elements `stride` apart, in `lanes` lanes.

    Nothing after the last of these elements is read.
    """
    if lanes == 1 or stride == 1:
        if wanted > stride:
            raise InternalError(f"cannot read {wanted} neighbors of elements that are only {stride} apart")
        return [
            f.load(f.at(address, I64(i), dtype), dtype, lanes, mask(count, lanes) if lanes > 1 else None)
            for i in range(wanted)
        ]
    if stride > WIDEST:
        return [load_strided(f, f.at(address, I64(i), dtype), dtype, stride, lanes, count) for i in range(wanted)]
    width = stride * lanes
    read = stride * (count - 1) + wanted
    block = f.load(address, dtype, width, mask(read, width))
    return [_every(f, block, stride, i, lanes) for i in range(wanted)]


def load_strided(f: Function, address: IRValue, dtype: str, stride: int, lanes: int, count: int) -> IRValue:
    """A vector of `count` elements `stride` apart, loaded one by one."""
    result = f.splat(literal(0, dtype), lanes)
    for lane in range(count):
        one = f.load(f.at(address, I64(lane * stride), dtype), dtype)
        result = f.op(f"insertelement {result}, {one}, i64 {lane}", dtype, lanes)
    return result


def _every(f: Function, block: IRValue, stride: int, first: int, lanes: int) -> IRValue:
    places = ", ".join(f"i32 {first + stride * i}" for i in range(lanes))
    return f.op(f"shufflevector {block}, {block.type} poison, <{lanes} x i32> <{places}>", block.dtype, lanes)


def interleaved(f: Function, vectors: list[IRValue]) -> IRValue:
    """One vector with element 0 of each of the vectors, then element 1 of each, and so on."""
    lanes, number = vectors[0].lanes, len(vectors)
    if number == 1:
        return vectors[0]
    if lanes == 1:
        whole = f.splat(literal(0, vectors[0].dtype), number)
        for lane, each in enumerate(vectors):
            whole = f.op(f"insertelement {whole}, {each}, i64 {lane}", whole.dtype, number)
        return whole
    while len(vectors) > 1:  # concatenate first, in pairs of equal length
        if len(vectors) % 2:
            vectors = [*vectors, f.splat(literal(0, vectors[0].dtype), vectors[0].lanes)]
        vectors = [
            _shuffled(f, a, b, list(range(2 * a.lanes))) for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    whole = vectors[0]
    return _shuffled(f, whole, whole, [which * lanes + i for i in range(lanes) for which in range(number)])


def _shuffled(f: Function, a: IRValue, b: IRValue, places: list[int]) -> IRValue:
    text = ", ".join("i32 poison" if p < 0 else f"i32 {p}" for p in places)
    return f.op(f"shufflevector {a}, {b}, <{len(places)} x i32> <{text}>", a.dtype, len(places))
