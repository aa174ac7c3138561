"""Normalisation, losses, attention, dropout and metrics of neural networks."""
