"""Recurrent networks, and sequences of different lengths."""
