"""Every op, declared. Importing this package fills the registry."""

from core.ops import control, conv, creation, elementwise, index, linalg, loss, nn, norm, random, reduce, shape

__all__ = [
    "control",
    "conv",
    "creation",
    "elementwise",
    "index",
    "linalg",
    "loss",
    "nn",
    "norm",
    "random",
    "reduce",
    "shape",
]
