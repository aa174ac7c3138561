"""Optimiser updates, and ops that transform gradients."""

from core.ir.registry import Family

FAMILY = Family("optimizers", "Updates of parameters, and transformations of gradients")
