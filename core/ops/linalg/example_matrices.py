"""Matrices in the examples of several files. S is symmetric and positive definite; NONE is an empty batch."""

from __future__ import annotations

import numpy as np

__all__ = ["NONE", "PAIR", "SYMMETRIC", "D", "R", "S"]

S = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, -0.3], [0.5, -0.3, 2.0]])
D = np.array([[2.0, 0.3, -0.4], [0.1, 1.5, 0.2], [-0.6, 0.5, 3.0]])
SYMMETRIC = np.stack([S, S @ S])
PAIR = np.stack([S, D])
R = np.array([[1.0, -2.0], [0.5, 0.4], [0.3, 1.0]])
NONE = np.zeros((0, 2, 2))
