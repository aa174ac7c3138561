"""Atomic operations on memory that threads share, appended to a `Function`.

ordering: one of LLVM's memory orderings: monotonic, acquire, release, acq_rel, seq_cst.
"""

from __future__ import annotations

import numpy as np

from core.codegen.llvm import Function, IRValue, element_type

__all__ = ["add_atomic", "compare_exchange", "exchange", "load_atomic", "store_atomic", "subtract_atomic"]


def load_atomic(f: Function, address: IRValue, dtype: str, ordering: str) -> IRValue:
    return f.op(f"load atomic {element_type(dtype)}, {address} {ordering}, align {_align(dtype)}", dtype)


def store_atomic(f: Function, value: IRValue, address: IRValue, ordering: str) -> None:
    f.do(f"store atomic {value}, {address} {ordering}, align {_align(value.dtype)}")


def exchange(f: Function, address: IRValue, value: IRValue, ordering: str) -> IRValue:
    """Store `value`; the value before it."""
    return f.op(f"atomicrmw xchg {address}, {value} {ordering}", value.dtype)


def add_atomic(f: Function, address: IRValue, value: IRValue, ordering: str) -> IRValue:
    """Add `value`; the value before the addition."""
    return f.op(f"atomicrmw add {address}, {value} {ordering}", value.dtype)


def subtract_atomic(f: Function, address: IRValue, value: IRValue, ordering: str) -> IRValue:
    """Subtract `value`; the value before the subtraction."""
    return f.op(f"atomicrmw sub {address}, {value} {ordering}", value.dtype)


def compare_exchange(
    f: Function, address: IRValue, expected: IRValue, value: IRValue, success: str, failure: str
) -> tuple[IRValue, IRValue]:
    """Store `value` if the memory holds `expected`: the value before, and whether it was stored.

    success, failure: the orderings of the two cases.
    """
    pair = f.op(f"cmpxchg {address}, {expected}, {value} {success} {failure}", value.dtype)
    both = f"{{ {value.type}, i1 }} {pair.name}"
    return f.op(f"extractvalue {both}, 0", value.dtype), f.op(f"extractvalue {both}, 1", "bool")


def _align(dtype: str) -> int:
    return 8 if dtype == "ptr" else np.dtype(dtype).itemsize
