"""An elementary function of a 16-bit float and of the same number in float32 is computed once in a row kernel.

A forward op computes it in 16 bits. The adjoint of the op computes it in float32, from the widened operand. The
result of the former is that of the latter, rounded.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from core.ir.precision import HALVES
from core.plan.row_kernels import RowInstruction, RowKernel

__all__ = ["ELEMENTARY", "WIDE", "widens", "with_shared_functions"]

ELEMENTARY = frozenset(("cos", "erf", "erfc", "exp", "expm1", "log", "log1p", "sigmoid", "sin", "sqrt", "tanh"))
"""Ops of one operand and without attributes whose 16-bit result is that of float32, rounded once."""

WIDE = "float32"


def with_shared_functions(kernel: RowKernel) -> RowKernel:
    """`kernel` with the 16-bit function taken from the float32 one of the same operand, where it has both."""
    code = kernel.code
    sources = {n: i.args[0] for n, i in enumerate(code) if i.dtype == WIDE and widens(kernel, i)}
    wide = {
        (instr.op, sources[instr.args[0]])
        for instr in code
        if _is_function(instr, (WIDE,)) and instr.args[0] in sources
    }
    both = {n for n, i in enumerate(code) if _is_function(i, HALVES) and (i.op, i.args[0]) in wide}
    if not both:
        return kernel
    made: list[RowInstruction] = []
    known: dict[str, int] = {}
    place: list[int] = []

    def append(instr: RowInstruction) -> int:
        made.append(instr)
        return len(made) - 1

    def shared(instr: RowInstruction) -> int:
        key = repr(instr)
        if key not in known:
            known[key] = append(instr)
        return known[key]

    for n, instr in enumerate(code):
        instr = replace(instr, args=tuple(place[a] for a in instr.args))
        if n in both:
            widened = shared(replace(instr, dtype=WIDE, op="cast", attrs=(("dtype", WIDE),), rounds=True))
            value = shared(replace(instr, dtype=WIDE, args=(widened,), rounds=True))
            narrowed = replace(instr, op="cast", attrs=(("dtype", instr.dtype),), args=(value,))
            place.append(append(narrowed))
        elif n in sources or _is_function(instr, (WIDE,)):
            place.append(shared(instr))
        else:
            place.append(append(instr))
    return replace(kernel, code=tuple(made))


def _is_function(instr: RowInstruction, dtypes: Collection[str]) -> bool:
    return instr.kind == "apply" and instr.op in ELEMENTARY and instr.dtype in dtypes


def widens(kernel: RowKernel, instr: RowInstruction) -> bool:
    """Whether `instr` converts a 16-bit float to a wider one, which is the same number."""
    casts = instr.kind == "apply" and instr.op == "cast" and instr.dtype in (WIDE, "float64")
    return casts and kernel.code[instr.args[0]].dtype in HALVES
