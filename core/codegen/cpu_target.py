"""The CPU as a target of plans: the numbers behind its generators, most of them measured."""

from __future__ import annotations

from core.codegen import packed_gemm
from core.codegen.channel_lanes import channel_panel
from core.codegen.cpus import cpu
from core.codegen.gemm import FAR_BYTES
from core.codegen.gemv import FEW
from core.codegen.machine import lanes
from core.codegen.row_blocks import LONGEST, rows_together
from core.codegen.scalar import NATIVE, refusal
from core.codegen.vector_slices import lanes_for
from core.plan.instructions import Gemm
from core.plan.memory import bytes_of
from core.plan.target import (
    ChannelLaneLimits,
    ConvolutionLimits,
    FilterSumLimits,
    PoolLimits,
    ProductRules,
    RowLimits,
    StripeLimits,
    Target,
    WinogradLimits,
)

__all__ = ["CPU_TARGET"]

PANELS = 2**17
"""Fewest bytes of a weight that the products of a loop read in panels. Smaller ones stay in the nearer caches."""


def _takes_epilogue(product: Gemm) -> bool:
    """A packed product ends with its tiles in registers, where more can be done with them."""
    return packed_gemm.packs(product)


def _transposes(rows: int, columns: int, terms: int) -> bool:
    """From 16 rows on a transposed copy pays, unless the product packs its second operand."""
    return rows >= 16 and not packed_gemm.packs_any(rows, columns, terms, by_columns=True)


def _turns(rows: int, columns: int, terms: int) -> bool:
    """A result of few columns would leave lanes empty, and its rows would take numbers from lines far apart."""
    narrow = terms >= 64 and rows >= max(16, 2 * columns)
    return narrow and not packed_gemm.packs_any(rows, columns, terms, by_columns=False)


def _pairs(dtype: str, rows: int, columns: int, terms: int) -> bool:
    if dtype != "bfloat16" or not cpu().multiplies_pairs or terms % 2:
        return False
    return packed_gemm.packs_any(rows, columns, terms, by_columns=False)


def _reads_halves(rows: int, columns: int, terms: int, by_columns: bool) -> bool:
    """Products that read it in place, from memory or the last cache: a widened copy would take more time than they."""
    few = rows < FEW if by_columns else not packed_gemm.packs_any(rows, columns, terms, by_columns=False)
    return few and min(columns, terms) >= 64 and bytes_of((terms, columns), "float32") >= FAR_BYTES


def _convolves_pairs(kind: str, rows: int, columns: int, terms: int) -> bool:
    """Smaller products have tiles of which parts are empty, or too few terms for each number that is copied."""
    least = 16 if cpu().has_tiles else 32
    return cpu().multiplies_pairs and terms % 2 == 0 and min(rows, columns) >= least and terms >= 32


def _pair_channels() -> int:
    """Tiles multiply pairs 16 times as fast as vectors multiply float32 numbers; without tiles it is twice as fast."""
    return 0 if cpu().has_tiles else 128


def _panel(product: Gemm) -> int:
    """Two vectors: a tile of two vectors has as many rows as the registers hold."""
    width = 2 * lanes(product.c.dtype)
    terms, columns = product.b.shape[-2:]
    in_place = product.a.shape[-2] > 1 and product.then is None and product.a.dtype == product.c.dtype
    large = bytes_of((terms, columns), product.b.dtype) >= PANELS and columns > width
    one = len(product.b.shape) == 2 and product.c.strides[-1] == 1
    return width if in_place and large and one and not packed_gemm.is_packed(product.a.shape[-2], columns) else 0


CPU_TARGET = Target(
    dtypes=NATIVE,
    updates_in_place=True,
    refusal=refusal,
    interprets=True,
    alignment=64,  # a cache line
    min_stack_bytes=4096,  # a page
    rows=RowLimits(
        longest_row=2**17,  # stays in the cache of a core between its reduction and its use
        longest_total=4096,
        split_rows=(8192, 256, 16),
        instructions=8000,  # LLVM's time for a function grows faster than its length
        sums=200,  # each needs a sweep with code of its own
        unrelated=100,
        across=(LONGEST, 1 << 14, 64),
        together=lambda kernel: rows_together(kernel) > 1,
        merges=True,
        rounds=False,
    ),
    products=ProductRules(
        takes_epilogue=_takes_epilogue,
        stores_result=packed_gemm.has_blocks,
        transposes=_transposes,
        transposes_invariant=True,
        turns=_turns,
        pairs=_pairs,
        takes_left=packed_gemm.takes_left,
        takes_right=packed_gemm.takes_right,
        in_passes=True,
        panel=_panel,
        terms=256,
        reads_halves=_reads_halves,
    ),
    convolutions=ConvolutionLimits(
        lanes=8,
        addition_cost=4,
        channels={"correlate": 2**12, "input_adjoint": 2**11, "filter_adjoint": 2**15},
        short_row_bytes=16,
        short_row_channels=64,
        single_tap_channels=256,
        point_channels=512,
        longest_filter_row=16,
        pixels={"correlate": 64, "input_adjoint": 64, "filter_adjoint": 256},
        share=256,
        column_elements=2**18,
        pairs=_convolves_pairs,
        pair_channels=_pair_channels,
    ),
    filter_sums=FilterSumLimits(out=8, depth=4, terms=64, share_terms=1024),
    channel_lanes=ChannelLaneLimits(panel=channel_panel, depth=96, row=4),
    winograd=WinogradLimits(
        lanes=lanes_for,
        channels=12,
        filters=2**16,
        squares=64,
        products=6.5,
        vectors=8,
        elements=2**16,
        units=8,
        block=32,
        terms=256,
    ),
    pools=PoolLimits(window=64, window_row=4, positions=2**31),
    stripes=StripeLimits(
        nbytes=2**21,
        least=64,
        batch=2,
        stripe=3 * 2**18,
        repeated=2**23,
        matrix=2**26,
        shared=2**26,
        block=64,
        halves=True,
    ),
    scatters_halves=True,
)
