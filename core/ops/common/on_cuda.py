"""Functions of cupy that NumPy has not, or has in SciPy. Only this file and the driver of `core.device` import cupy.

Each import waits for the call, because the service must not need CUDA on the processor.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["array_module", "failing_solvers", "is_cupy", "scatter_add", "scatter_max", "scipy_function"]


def array_module() -> ModuleType:
    """The module cupy. Raises ImportError if it, or a library that it needs at once, is not installed."""
    return importlib.import_module("cupy")


def is_cupy(xp: Any) -> bool:
    """Whether the array module is cupy. The module itself is not loaded."""
    return xp is not np and xp.__name__ == "cupy"


def scipy_function(xp: Any, module: str, name: str) -> Any:
    """The function `name` of ``scipy.<module>``, for arrays of xp: module is `special` or `linalg`."""
    package = "cupyx.scipy" if is_cupy(xp) else "scipy"
    return getattr(importlib.import_module(f"{package}.{module}"), name)


def scatter_add(out: Any, index: Any, values: Any) -> None:
    """``out[index] += values``, where an index may occur more than once; in an open order.

    out: int32, uint32, uint64, or floats except bfloat16. An index out of range wraps around.
    """
    importlib.import_module("cupyx").scatter_add(out, index, values)


def scatter_max(out: Any, index: Any, values: Any) -> None:
    """``out[index] = max(out[index], values)``, where an index may occur more than once.

    out: int32, uint32 or uint64. An index out of range wraps around. Floats are left out: the maximum ignores NaN, and
    cupy rounds float64 numbers to float32 ones.
    """
    importlib.import_module("cupyx").scatter_max(out, index, values)


def failing_solvers() -> AbstractContextManager[Any]:
    """Inside, a failure of cuSOLVER raises `numpy.linalg.LinAlgError`; without this, results are wrong numbers."""
    return importlib.import_module("cupyx").errstate(linalg="raise")
