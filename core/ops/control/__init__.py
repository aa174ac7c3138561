"""Loops, branches, calls and tensor arrays."""
