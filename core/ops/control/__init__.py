"""Loops, branches, calls and tensor arrays."""

from core.ir.registry import Family

FAMILY = Family("control", "Loops, branches, function calls and tensor arrays")
