"""The machine that a plan is made for, as data: every assumption of the planner about the hardware and its generator.

The planner reads a `Target` and nothing else about the machine. Each code generator declares one instance of it; the
CPU's is `CPU_TARGET` in `core.codegen.cpu_target`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.plan.instructions import Gemm
from core.plan.memory import View
from core.plan.row_kernels import RowKernel

__all__ = [
    "ChannelLaneLimits",
    "ConvolutionLimits",
    "FilterSumLimits",
    "PoolLimits",
    "ProductRules",
    "RowLimits",
    "StripeLimits",
    "Target",
    "WinogradLimits",
]


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Sizes of fused passes (row kernels).

    longest_row:    most elements of a row whose reduction may be used inside the same pass.
    longest_total:  most elements of a domain that is one row, for the same use: one row cannot be shared by threads.
    split_rows:     most and fewest elements of the rows that a domain of one long axis is split into, and their step:
                    row lengths are tried from the most downwards in this step.
    instructions:   most instructions of one pass.
    sums:           most reductions along the row in one pass: a long row is swept over once more for each.
    unrelated:      most instructions of a pass that takes work on other arrays: equal work then shares its code.
    live:           most values of a pass that are needed later at one place in it; None if that does not matter.
    across:         most elements of a row that is not the last axes, and fewest of the domain and of the axes behind it
                    then: such rows are computed together, neighbours along these axes in a vector.
    together:       whether the rows of a pass are computed together, one in each lane; None if that does not matter.
    merges:         whether a pass can add up the rows that it reads (`core.plan.merged_operands`).
    rounds:         whether it rounds every 16-bit result, also one that only arithmetic reads (`core.plan.unrounded`).
    """

    longest_row: int
    longest_total: int
    split_rows: tuple[int, int, int]
    instructions: int
    sums: int
    unrelated: int
    live: int | None = None
    across: tuple[int, int, int] = (0, 0, 0)
    together: Callable[[RowKernel], bool] | None = None
    merges: bool = False
    rounds: bool = True


@dataclass(frozen=True, slots=True)
class ProductRules:
    """Products of matrices.

    takes_epilogue:       whether the generator can run elementwise work on the result of this product, tile by tile.
    stores_result:        whether it needs memory for the result of a product that only such work reads.
    transposes:           whether a second operand stored by columns is transposed before a product with so many rows
                          and columns of the result, and terms of each sum.
    transposes_invariant: whether such an operand is transposed once, before the loop, if no trip changes it.
    turns:                whether a first operand stored by columns is the second one of the product of the transposes,
                          whose result is then stored by columns; arguments as of `transposes`.
    pairs:                whether the generator multiplies 16-bit matrices [m, k] and [k, n] as they are, two numbers
                          along k at a time: (dtype, m, n, k). Others are widened to float32.
    takes_left:           whether it can do so with a first operand of these strides.
    takes_right:          whether it can do so with a second operand of these strides.
    reads_halves:         whether a product of few rows with a large 16-bit matrix reads that matrix as it is: (rows,
                          columns, terms, whether it is stored by columns).
    rounds:               whether the generator multiplies 16-bit matrices of any size and layout, and rounds each sum
                          where it stores it. Then the three rules above do not matter.
    in_passes:            whether a batch of products of gathered matrices and vectors is a pass over the gathered rows.
    panel:                the columns of a panel of the weight of this product, if it is in a loop and should read the
                          weight in panels (see `panels`); else 0.
    terms:                fewest terms of a sum, or rows of a result, of the products that a loop makes for several
                          trips at once.
    """

    takes_epilogue: Callable[[Gemm], bool]
    stores_result: Callable[[Gemm], bool]
    transposes: Callable[[int, int, int], bool]
    transposes_invariant: bool
    turns: Callable[[int, int, int], bool]
    pairs: Callable[[str, int, int, int], bool]
    takes_left: Callable[[View], bool]
    takes_right: Callable[[View], bool]
    in_passes: bool
    panel: Callable[[Gemm], int]
    terms: int
    reads_halves: Callable[[int, int, int, bool], bool] = lambda rows, columns, terms, by_columns: False
    rounds: bool = False


@dataclass(frozen=True, slots=True)
class ConvolutionLimits:
    """When a convolution runs as products of matrices (by columns) instead of directly, and in which pieces.

    Mappings have the kinds "correlate", "input_adjoint" and "filter_adjoint" as keys.

    lanes:              elements of one vector register, for comparing two direct forms.
    addition_cost:      multiplications that take as long as adding a sum to memory.
    channels:           input channels times output channels from which on columns are faster.
    short_row_bytes:    length of a row of the result that leaves a vector register half empty ...
    short_row_channels: ... and channels (as above) from which on columns are faster then.
    single_tap_channels: channels from which on the filter adjoint by columns is faster if filter rows have one element.
    point_channels:     channels from which on a convolution by columns is faster if filters have one element.
    longest_filter_row: most elements of a filter row in the direct form, which unrolls it.
    pixels:             fewest pixels that one product takes, where there are as many.
    share:              fewest filter elements of one of several products to the same filters.
    column_elements:    elements of columns that are made at once, unless `pixels` asks for more.
    pairs:              whether a convolution of bfloat16 numbers by columns should multiply pairs of them, by its kind
                        and the rows, columns and terms of one product.
    pair_channels:      channels of the image from which on pairs are faster than the algorithm of Winograd in float32.
    patches:            whether kernels read windows in images without padding (`core.plan.patches`). All other limits
                        are those of kernels that do not.
    """

    lanes: int
    addition_cost: int
    channels: Mapping[str, int]
    short_row_bytes: int
    short_row_channels: int
    single_tap_channels: int
    point_channels: int
    longest_filter_row: int
    pixels: Mapping[str, int]
    share: int
    column_elements: int
    pairs: Callable[[str, int, int, int], bool] = lambda kind, rows, columns, terms: False
    pair_channels: Callable[[], int] = lambda: 0
    patches: bool = False


@dataclass(frozen=True, slots=True)
class ChannelLaneLimits:
    """When a convolution has output channels in the lanes of vectors.

    panel: output channels of one tile, which divide those of a group, or 0: (dtype, output channels).
    depth: fewest elements of one filter.
    row:   fewest pixels of a row of the result.
    """

    panel: Callable[[str, int], int]
    depth: int
    row: int


@dataclass(frozen=True, slots=True)
class WinogradLimits:
    """When a convolution with 3 x 3 filters runs by the algorithm of Winograd (see `core.plan.winograd`).

    lanes:    squares in one vector, for a row of squares: (dtype, squares).
    channels: fewest channels of the image and of the result in a group.
    filters:  most channels of the image times channels of the result in a group: their numbers stay in a cache.
    squares:  fewest squares of all images, which the transformation of the filters must be worth.
    products: most products for one pixel of a result, of the 9 that a direct form needs.
    vectors:  most vectors of squares that are computed together.
    elements: most numbers of transformed images and results that are computed together, so that they stay in the cache;
              more where the transformed filters, which each block reads, are many more.
    units:    fewest blocks of all images that should be left then, for as many threads.
    block:    fewest channels of the image that a unit of the adjoint to filters takes, where there are as many.
    terms:    fewest squares of a share of the batch with sums of its own.
    """

    lanes: Callable[[str, int], int]
    channels: int
    filters: int
    squares: int
    products: float
    vectors: int
    elements: int
    units: int
    block: int
    terms: int


@dataclass(frozen=True, slots=True)
class FilterSumLimits:
    """When the adjoint of a convolution to its filters has output channels in the lanes of vectors.

    out:         fewest output channels of a group.
    depth:       fewest elements of one filter.
    terms:       fewest pixels of all images.
    share_terms: fewest pixels of a share of the batch with sums of its own.
    """

    out: int
    depth: int
    terms: int
    share_terms: int


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Pooling.

    window:     most elements of a window, and
    window_row: most elements of its row, for kernels that unroll windows lying side by side.
    positions:  the largest plane, in elements, whose positions the generator can compute, plus one.
    gathers:    whether kernels test which elements lie in a plane and which windows over an element: planes need no
                padding, and adjoints gather (`core.plan.covering`).
    """

    window: int
    window_row: int
    positions: int
    gathers: bool = False


@dataclass(frozen=True, slots=True)
class StripeLimits:
    """Chains of products and row kernels that run for some rows at a time, as attention does.

    nbytes:   fewest bytes of an array of the chain.
    least:    fewest rows and columns of its matrices, and fewest rows of a stripe where there are as many.
    batch:    fewest matrices.
    stripe:   bytes of the arrays of one stripe: so much stays in the cache of a core.
    repeated: bytes from which on an array of an earlier chain is computed again and not stored.
    matrix:   fewest bytes of an array of a chain over a single matrix, and
    shared:   bytes of the arrays of one of its stripes, on which all threads work.
    block:    columns that a stripe leaves out together where a mask hides them.
    halves:   whether a stripe leaves out columns of 16-bit operands and masks, too.
    """

    nbytes: int
    least: int
    batch: int
    stripe: int
    repeated: int
    matrix: int
    shared: int
    block: int
    halves: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """The planner's assumptions about a machine and its code generator.

    dtypes:          dtypes of arrays that generated code can hold.
    refusal:         the reason why there is no code for an elementwise op, or None:
                     (name, attributes, input dtypes, output dtype).
    interprets:      whether generated code can call the reference executor for an op without code of its own. If not,
                     such an op ends the region of generated code.
    expects:         whether the runtime leaves runs that the code does not cover to the reference executor. Then the
                     code can hold sizes without a largest value: if one was too large, the runtime plans again.
    open_sizes:      whether generated code can hold arrays whose length only the run tells.
    grows:           whether it can hold tensor arrays that programs write.
    winograd:        None if no convolution runs by the algorithm of Winograd.
    scatters_halves: whether a scatter reads 16-bit rows and adds them in float32, and can round the sums.
    updates_in_place: whether the runtime can run the updates of a step apart, on one array for each value.
    lacks:           kinds of `Kernel`, and classes of other instructions, for which the generator has no code.
    alignment:       bytes; every array of the arena starts at a multiple of it.
    min_stack_bytes: least capacity of a stack in bytes.
    """

    dtypes: frozenset[str]
    refusal: Callable[[str, Mapping[str, Any], Sequence[str], str], str | None]
    interprets: bool
    alignment: int
    min_stack_bytes: int
    rows: RowLimits
    products: ProductRules
    convolutions: ConvolutionLimits
    filter_sums: FilterSumLimits
    channel_lanes: ChannelLaneLimits
    pools: PoolLimits
    stripes: StripeLimits
    winograd: WinogradLimits | None = None
    open_sizes: bool = True
    expects: bool = True
    grows: bool = True
    scatters_halves: bool = False
    updates_in_place: bool = False
    lacks: frozenset[str] = frozenset()

    def stack_bytes(self, needed: int) -> int:
        """The capacity of a stack for `needed` bytes: a power of two, independent of its earlier capacity."""
        return max(self.min_stack_bytes, 1 << (needed - 1).bit_length())

    def aligned(self, nbytes: int) -> int:
        """The bytes that an array of `nbytes` takes in the arena: a multiple of the alignment, at least one."""
        return max(-(-nbytes // self.alignment) * self.alignment, self.alignment)
