"""Random numbers drawn from a counter."""

from core.ir.registry import Family

FAMILY = Family("random", "Random numbers, drawn from a counter")
