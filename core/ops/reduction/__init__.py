"""Reductions over axes and segments, running sums, and statistics."""

from core.ir.registry import Family

FAMILY = Family("reduction", "Reductions over axes and segments, cumulative ops, and statistics")
