"""Instructions that compute a product of matrices tile by tile: products, and convolutions of many channels."""

from __future__ import annotations

from core.device.convolution import as_product, convolution_plan
from core.device.product import ProductPlan, product_plan
from core.device.rules import Rules
from core.device.small_convolution import is_small
from core.device.threads import Threads
from core.plan.instructions import Gemm, Instruction, Kernel
from core.plan.patches import PATCHED

__all__ = ["CONVOLUTIONS", "tiled"]

CONVOLUTIONS = frozenset(PATCHED.values())
"""Kinds of kernels."""


def tiled(one: Instruction, threads: Threads, rules: Rules) -> tuple[Gemm, ProductPlan] | None:
    """The product that an instruction computes, and how these threads do; None for any other instruction."""
    if isinstance(one, Gemm):
        return one, product_plan(one, threads, rules.tf32)
    if isinstance(one, Kernel) and one.kind in CONVOLUTIONS and not is_small(one):
        return as_product(one), convolution_plan(one, threads, rules)
    return None
