"""Backpass as a service: HTTP in front, worker processes behind, the core compiled and executed inside the workers."""

__version__ = "0.1.0"
