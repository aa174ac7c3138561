"""Python's numbers, and lists of them, as values of variables whose dtype the program declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from backpass_client.arguments import misfit

__all__ = ["as_declared", "declared_dtypes"]


def declared_dtypes(signature: Mapping[str, Any]) -> dict[str, str]:
    """Name -> dtype of the feeds, parameters and states in the signature of a program."""
    return {each["name"]: each["dtype"] for role in ("feeds", "parameters", "states") for each in signature[role]}


def as_declared(values: Mapping[str, Any], dtypes: Mapping[str, str]) -> dict[str, Any]:
    """`values`, with Python's numbers and lists of them as arrays of the dtype of their variable.

    An array keeps its dtype, so that a mistake in it is not hidden, and so does a number of numpy. A number that the
    declared dtype lacks becomes what numpy makes of it, and the service refuses it.
    """
    return {
        name: _converted(value, dtypes[name]) if name in dtypes and _is_python(value) else value
        for name, value in values.items()
    }


def _is_python(value: Any) -> bool:
    return isinstance(value, list | tuple | int | float) and not isinstance(value, np.generic)  # np.float64 is a float


def _converted(value: Any, dtype: str) -> Any:
    found = np.asarray(value)
    try:
        wanted = np.dtype(dtype)
    except TypeError:  # bfloat16 without ml_dtypes
        return found
    if found.size == 0:
        return found.astype(wanted)
    if "float" in dtype and found.dtype.kind in "iuf":
        with np.errstate(over="ignore"):
            short = found.astype(wanted)
        return short if np.array_equal(np.isfinite(short), np.isfinite(found)) else found
    if "int" in dtype and found.dtype.kind in "iu" and misfit(found, dtype) is None:
        return found.astype(wanted)
    return found
