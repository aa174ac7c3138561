"""Fourier transforms, spectrograms, windows and filter banks. A complex number is a pair (real, imaginary)."""

from core.ir.registry import Family

FAMILY = Family("signal", "Fourier transforms, spectrograms, windows and mel filter banks")
