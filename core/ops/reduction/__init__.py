"""Reductions over axes and segments, running sums, and statistics."""
