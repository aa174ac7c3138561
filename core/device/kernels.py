"""The kernels of `core.plan.instructions.Kernel` that have generators of their own for the threads of a device.

Each is a function ``name(arrays..., scratch, error, check)`` that all threads of a launch call. The other kinds are
those of `core.codegen`, whose units the threads share (`core.device.step`).
"""

from __future__ import annotations

from collections.abc import Callable

from core.codegen.llvm import Function
from core.codegen.module import Module
from core.device.convolution import convolution_kernel, convolution_scratch
from core.device.fourier import fourier_kernel, fourier_scratch
from core.device.index_orders import INDEX_ORDER, NO_ROWS
from core.device.index_sort import index_merge, index_order_bytes, index_order_kernel, index_order_scratch
from core.device.merge_sort import MergeSort
from core.device.merging import merge_kernel
from core.device.pooling import POOLING, pooling_kernel
from core.device.row_order import order_bytes, order_kernel, order_merge, order_scratch, takes_order
from core.device.rules import Rules
from core.device.small_convolution import is_small, small_convolution, small_scratch
from core.device.threads import Threads
from core.device.tiled import CONVOLUTIONS
from core.device.transposition import transposition_kernel
from core.plan.instructions import Kernel

__all__ = ["device_kernel", "device_scratch", "has_kernel", "sort_bytes", "sort_merge", "sort_waits"]

GENERATORS: dict[str, Callable[[str, Kernel, Threads], Function]] = {
    "merge_rows": merge_kernel,
    "turn": transposition_kernel,
}


def has_kernel(each: Kernel) -> bool:
    """Whether a device has a generator of its own for a kind of kernel."""
    own = (
        each.kind in CONVOLUTIONS or each.kind in POOLING or each.kind in ("fourier", INDEX_ORDER, NO_ROWS, *GENERATORS)
    )
    return own or takes_order(each)


def sort_waits(each: Kernel) -> int:
    """Barriers of a kernel that sorts ids, or the positions of an index, without those of a merge; 0 for others."""
    if each.kind == INDEX_ORDER:
        return 5
    return 8 if takes_order(each) else 0


def sort_merge(each: Kernel, threads: Threads, rules: Rules) -> MergeSort | None:
    """The merge sort of a kernel that sorts; None if the kernel compares keys or has buckets."""
    return (order_merge if takes_order(each) else index_merge)(each.spec, threads, rules)


def sort_bytes(each: Kernel, threads: Threads, rules: Rules) -> int:
    """Bytes that the keys of a sort, and what belongs to them, take."""
    return (order_bytes if takes_order(each) else index_order_bytes)(each.spec, threads, rules)


def device_kernel(module: Module, name: str, each: Kernel, threads: Threads, rules: Rules) -> Function:
    """``name(arrays..., scratch, error, check)`` for all threads. scratch: `device_scratch` bytes that they share."""
    if each.kind == "fourier":
        return fourier_kernel(module, name, each, threads)
    if each.kind in POOLING:
        return pooling_kernel(name, each, threads)
    if each.kind in GENERATORS:
        return GENERATORS[each.kind](name, each, threads)
    if each.kind == INDEX_ORDER:
        return index_order_kernel(name, each, threads, rules)
    if takes_order(each):
        return order_kernel(name, each, threads, rules)
    return small_convolution(name, each, threads) if is_small(each) else convolution_kernel(name, each, threads, rules)


def device_scratch(each: Kernel, threads: Threads, rules: Rules) -> int:
    """Bytes of scratch memory of a kernel; 0 for kinds without a generator of their own."""
    if takes_order(each):
        return order_scratch(each.spec, threads, rules)
    if each.kind == INDEX_ORDER:
        return index_order_scratch(each.spec, threads, rules)
    if each.kind == "fourier":
        return fourier_scratch(each.spec, threads)
    if each.kind not in CONVOLUTIONS:
        return 0
    return small_scratch(each) if is_small(each) else convolution_scratch(each, threads, rules)
