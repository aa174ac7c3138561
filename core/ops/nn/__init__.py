"""Normalisation, losses, attention, dropout and metrics of neural networks."""

from core.ir.registry import Family

FAMILY = Family("nn", "Normalisation, losses, attention, dropout and metrics of neural networks")
