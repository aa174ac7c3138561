"""Updates of optimizers, and ops on gradients."""

from core.ir.registry import Family

FAMILY = Family("optimizers", "Updates of parameters, and transformations of gradients")
