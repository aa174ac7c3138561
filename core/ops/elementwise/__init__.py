"""Ops that work element by element, with NumPy broadcasting."""

from core.ir.registry import Family

FAMILY = Family(
    "elementwise",
    "Arithmetic, comparisons, activations and other functions of single elements, with NumPy broadcasting",
)
