"""The CPU's code generator, made to round every 16-bit result, as the reference executor does."""

from __future__ import annotations

from dataclasses import replace

from core.codegen.backend import CPU, CpuBackend

__all__ = ["ROUNDING"]


class _RoundingBackend(CpuBackend):
    target = replace(CPU.target, rows=replace(CPU.target.rows, rounds=True))


ROUNDING = _RoundingBackend()
"""Its results equal those of the reference executor but for the order of sums and the last bit of functions."""
