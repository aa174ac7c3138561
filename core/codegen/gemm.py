"""Small matrix products: tiles of the result in registers, operands read in place.

For each step along k a tile multiplies some vectors of a row of b by one number of each of its rows of a. Nothing is
packed, so the elements of a row of b must be adjacent; other products go to the BLAS (see `blas`), which packs.

A large b with long rows comes from far: from the last cache, or from memory. A product reads some of these rows side by
side, panel by panel, so that the processor fetches each of them ahead; and only as many columns, before it starts with
the next ones, as the second cache keeps results for. Threads share the columns of b, so that one thread reads each
number.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.codegen.denormals import vanishing
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.machine import lanes
from core.codegen.polling import STOP_PARAM, product_polls
from core.codegen.tile import STEPS, tile, tile_of
from core.codegen.vector_slices import mask
from core.plan.instructions import Gemm

__all__ = ["FAR_BYTES", "Product", "gemm_function", "product_of"]

DEPTH = 256
"""Steps along k in one block, whose sums are then added to the result. Rows of b and lines of a fit in the cache."""

FAR_DEPTH = 16
"""Steps in one block, an even number, if b comes from far: a processor fetches so many rows ahead at the same time."""

FAR_ROW, FAR_BYTES = 2**11, 2**19
"""Bytes of a row, and of all rows, from which on b comes from far."""

FAR_RESULTS = 2**18
"""Bytes of results to which all blocks along k are added before other columns of a far b are read."""


Range = tuple[IRValue, IRValue]
"""The first one, and the one after the last."""


@dataclass(frozen=True, slots=True)
class Product:
    """One shape of product: c [m, n] = a [m, k] b [k, n]. Strides count elements; rows of b and c have no gaps.

    of_b:     dtype of b, which may be a 16-bit float.
    vanishes: whether it takes denormal numbers for zero.
    """

    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: int
    c: int
    dtype: str
    of_b: str
    accumulate: bool
    vanishes: bool = False

    @property
    def far(self) -> bool:
        """Whether b comes from far. Short rows, too, of the only row of a: threads can share no other parts of it."""
        row = self.b * itemsize(self.of_b)
        return (row >= FAR_ROW or self.m == 1) and row * self.k >= FAR_BYTES and self.n > self.panel

    @property
    def together(self) -> int:
        """Panels of a far b that are read together, for all steps along k: their results stay in the second cache."""
        return max(1, FAR_RESULTS // (self.m * self.panel * itemsize(self.dtype)))

    @property
    def depth(self) -> int:
        """Steps along k in one block."""
        depth = FAR_DEPTH if self.far else DEPTH
        return depth if self.k > 2 * depth else self.k

    @property
    def width(self) -> int:
        """Lanes of a vector."""
        width = lanes(self.dtype)
        while width // 2 >= self.n:
            width //= 2
        return width

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return tile_of(self.m, self.n, self.width)[0]

    @property
    def panel(self) -> int:
        """Columns of a tile."""
        return tile_of(self.m, self.n, self.width)[1] * self.width

    @property
    def parts(self) -> int:
        """All parts of the result: panels if b comes from far, else rows."""
        return -(-self.n // self.panel) if self.far else self.m

    @property
    def unit(self) -> int:
        """Parts in the smallest share of a thread: a panel, or the rows of a tile."""
        return 1 if self.far else self.rows


def product_of(each: Gemm) -> Product | None:
    """The shape of a product, or None if the BLAS must compute it."""
    (m, k), n = each.a.shape[-2:], each.b.shape[-1]
    if n > 1 and (each.b.strides[-1] != 1 or each.c.strides[-1] != 1):
        return None
    if n == 1 and k > 64:  # one sum along k for each row: every addition would wait for the one before
        return None
    a = (each.a.strides[-2], each.a.strides[-1])
    return Product(m, n, k, a, each.b.strides[-2], each.c.strides[-2], each.c.dtype, each.b.dtype, each.accumulate)


def gemm_function(name: str, p: Product) -> Function:
    """``name(a, b, c[, stop], first, end)`` for parts `first` to `end` of the result.

    `first` is a multiple of `p.unit`. `stop` is there if the product is long (`product_polls`).
    """
    polls = product_polls(p.m, p.n, p.k)
    pointers = [("a", "ptr"), ("b", "ptr"), ("c", "ptr"), *([STOP_PARAM] if polls else [])]
    f = Function(name, [*pointers, ("first", "int64"), ("end", "int64")])
    f.stop = f.param("stop") if polls else None
    with vanishing(f, p.vanishes):
        _write(f, p)
    return f


def _write(f: Function, p: Product) -> None:
    first, end = f.param("first"), f.param("end")
    if not p.far:
        _block(f, p, (first, end), (I64(0), I64(p.n)))
        return
    with f.loop(first, end, p.together, polls=True) as panel:
        last = f.intrinsic("smin", f.binary("add", panel, I64(p.together)), end)
        start, stop = (f.op(f"mul nsw {each}, {p.panel}", "int64") for each in (panel, last))
        _block(f, p, (I64(0), I64(p.m)), (start, f.intrinsic("smin", stop, I64(p.n))))


def _block(f: Function, p: Product, rows: Range, columns: Range) -> None:
    """Write these rows and columns of the result."""
    if p.depth < p.k and not p.accumulate:
        _clear(f, p, rows, columns)
    with f.loop(I64(0), I64(p.k), p.depth, polls=True) as k:
        whole = p.n // p.panel * p.panel
        if whole == p.panel and not p.far:
            _panel(f, p, k, rows, I64(0), p.panel)
        elif whole:  # one loop over the panels of whole tiles keeps the text short
            last = f.intrinsic("smin", columns[1], I64(whole)) if p.far else I64(whole)
            with f.loop(columns[0], last, p.panel, polls=True) as start:
                _panel(f, p, k, rows, start, p.panel)
        if whole < p.n and p.far:
            with f.when(f.compare("icmp eq", columns[1], I64(p.n))):
                _panel(f, p, k, rows, I64(whole), p.n - whole)
        elif whole < p.n:
            _panel(f, p, k, rows, I64(whole), p.n - whole)


def _clear(f: Function, p: Product, rows: Range, columns: Range) -> None:
    """Write zeros to these rows and columns of the result."""
    with f.loop(*rows) as row:
        c = f.at(f.param("c"), f.op(f"mul nsw {row}, {p.c}", "int64"), p.dtype)
        zero = f.splat(literal(0, p.dtype), p.width)
        left = p.n % p.width
        with f.loop(columns[0], f.binary("sub", columns[1], I64(p.width - 1)), p.width) as column:
            f.store(zero, f.at(c, column, p.dtype))
        if left:
            with f.when(f.compare("icmp eq", columns[1], I64(p.n))):
                f.store(zero, f.at(c, I64(p.n - left), p.dtype), mask(left, p.width) if p.width > 1 else None)


def _panel(f: Function, p: Product, k: IRValue, within: Range, start: IRValue, columns: int) -> None:
    """`columns` columns of the result from `start`, in these rows. k: first step of the block."""
    first, end = within
    height = f.binary("sub", end, first)
    whole = f.binary("sub", height, f.op(f"srem {height}, {p.rows}", "int64"))
    middle = f.binary("add", first, whole)
    with f.loop(first, middle, p.rows, polls=True) as row:
        _tile(f, p, k, row, p.rows, start, columns)
    if p.m % p.rows:  # only the last share of the result ends in less than a tile
        with f.when(f.compare("icmp slt", middle, end)):
            _tile(f, p, k, middle, p.m % p.rows, start, columns)


def _tile(f: Function, p: Product, k: IRValue, row: IRValue, rows: int, start: IRValue, columns: int) -> None:
    dtype, blocked = p.dtype, p.depth < p.k
    end: IRValue = I64(p.k)
    if blocked:
        end = f.intrinsic("smin", f.binary("add", k, I64(p.depth)), I64(p.k))
    a = f.at(f.param("a"), f.op(f"mul nsw {row}, {p.a[0]}", "int64"), dtype)
    b = f.at(f.param("b"), start, p.of_b)
    c = f.at(f.at(f.param("c"), f.op(f"mul nsw {row}, {p.c}", "int64"), dtype), start, dtype)

    size, even = (rows, columns), p.k % STEPS == 0
    sums = tile(f, dtype, size, p.width, (k, end), (a, *p.a), (b, p.b), (c, p.c), even=even, of_b=p.of_b)
    for total, address, which in sums:
        if p.accumulate or blocked:
            total = f.binary("fadd", total, f.load(address, dtype, p.width, which))
        f.store(total, address, which)
