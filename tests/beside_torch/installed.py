"""PyTorch, or None where it is not installed: the tables and the reasons for absent ops are readable without it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["MISSING", "F", "one_step", "torch"]

MISSING = "torch is not installed; `make test-all` installs it (requirements/oracle.txt)"

torch: Any
F: Any
try:
    import torch
    import torch.nn.functional as F
except ImportError:
    torch = F = None


def one_step(optimiser: str) -> Any:
    """The function that runs a step of an optimiser of torch; the class of the same name hides it in the package."""
    return getattr(import_module(f"torch.optim.{optimiser}"), optimiser)
