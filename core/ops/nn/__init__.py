"""Normalization, losses, attention, dropout and metrics of neural networks."""

from core.ir.registry import Family

FAMILY = Family("nn", "Normalization, losses, attention, dropout and metrics of neural networks")
