"""Ops that work element by element, with NumPy broadcasting."""
