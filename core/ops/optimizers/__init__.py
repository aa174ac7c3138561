"""Optimiser updates, and ops that transform gradients."""
