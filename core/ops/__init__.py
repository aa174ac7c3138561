"""Every op, declared. Importing this package fills the registry."""

from core.ops import control, creation, elementwise, linalg, reduce, shape

__all__ = ["control", "creation", "elementwise", "linalg", "reduce", "shape"]
