"""Recurrent networks, and ops on sequences of different lengths."""

from core.ir.registry import Family

FAMILY = Family("sequence", "Recurrent networks, ragged and padded sequences, CRF and CTC")
