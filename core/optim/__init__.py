"""Optimisers, learning-rate schedules, gradient clipping, loss scaling and initialisers."""
