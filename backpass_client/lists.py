"""Python's arguments as values of variables and as members of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from backpass_client.arguments import misfit
from backpass_client.torch_tensors import to_array

__all__ = ["as_declared", "check_members", "chosen_gradients", "declared_dtypes", "name_list", "needs_dtypes"]


def declared_dtypes(signature: Mapping[str, Any]) -> dict[str, str]:
    """Name -> dtype of the feeds, parameters and states in the signature of a program."""
    return {each["name"]: each["dtype"] for role in ("feeds", "parameters", "states") for each in signature[role]}


def as_declared(values: Mapping[str, Any], dtypes: Mapping[str, str]) -> dict[str, Any]:
    """`values`, with Python's numbers and lists of them as arrays of the dtype of their variable.

    An array keeps its dtype, so that a mistake in it is not hidden, and so does a number of numpy. A number that the
    declared dtype lacks becomes what numpy makes of it, and the service refuses it. A tensor of PyTorch becomes an
    array. Raises TypeError unless `values` is a mapping.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"values are given as a dictionary of names and arrays, not as {_a(values)}")
    return {name: _value(value, dtypes.get(name)) for name, value in values.items()}


def needs_dtypes(values: Mapping[str, Any]) -> bool:
    """Whether some of `values` are Python's numbers or lists, whose dtype is that of their variable."""
    return isinstance(values, Mapping) and any(map(_is_python, values.values()))


def name_list(names: str | Sequence[str]) -> list[str]:
    """`names` as a list; a text is one name. Raises TypeError for anything else."""
    if isinstance(names, str):
        return [names]
    if not isinstance(names, Iterable):
        raise TypeError(f"names of variables are given as a list, not as {_a(names)}")
    found = list(names)
    for each in found:
        if not isinstance(each, str):
            raise TypeError(f"names of variables are texts, not {each!r}")
    return found


def chosen_gradients(names: str | Sequence[str]) -> str | list[str]:
    """`return_gradients` of a request: "none", "norms", "all", or a list of names; any other text is one name."""
    return names if isinstance(names, str) and names in ("none", "norms", "all") else name_list(names)


def check_members(members: Mapping[str, Any]) -> None:
    """Raises TypeError for an array among further members of a request: it is the value of a feed."""
    for name, value in members.items():
        if isinstance(value, np.ndarray) or _is_torch(value):
            raise TypeError(f"{name!r} is an array: give values as a dictionary, such as {{{name!r}: ...}}")


def _value(value: Any, dtype: str | None) -> Any:
    if _is_torch(value):
        return to_array(value)
    return _converted(value, dtype) if dtype is not None and _is_python(value) else value


def _is_torch(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "cpu")


def _a(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _is_python(value: Any) -> bool:
    return isinstance(value, list | tuple | int | float) and not isinstance(value, np.generic)  # np.float64 is a float


def _converted(value: Any, dtype: str) -> Any:
    try:
        found = np.asarray(value)
    except ValueError:  # rows of different lengths, which `pack` refuses by the name of their variable
        return value
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
