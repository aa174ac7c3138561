"""Arrays of the stand-in: a NumPy array behind the methods, operators and indexing rules of `cupy.ndarray`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import cupy
import numpy as np

__all__ = ["Array", "Refused", "has_device_dtype", "unwrap", "wrap"]

METHODS = frozenset(name for name in dir(cupy.ndarray) if not name.startswith("_"))
AS_FUNCTIONS = frozenset(
    ["max", "min", "sum", "prod", "any", "all", "argmax", "argmin", "sort", "argsort", "take", "dot"]
)
"""Methods that are checked as the functions of their name."""
SYNCHRONIZE = frozenset(("item", "tolist", "tobytes"))
OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "left_shift", "rshift": "right_shift", "matmul": "matmul",
}  # fmt: skip
COMPARISONS = {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal"
}  # fmt: skip
SCALARS = (bool, int, float, complex, np.generic)


class Refused(TypeError):
    """cupy refuses the call, or its result on a GPU is undefined."""


def has_device_dtype(dtype: np.dtype) -> bool:
    return dtype.kind in "biufc" or dtype.name == "bfloat16"


def wrap(x: Any) -> Any:
    """Results of NumPy as arrays of the device: also scalars, as cupy returns arrays of rank 0."""
    if isinstance(x, np.ndarray | np.generic):
        return Array(np.asarray(x))
    if isinstance(x, tuple):
        made = [wrap(each) for each in x]
        return type(x)(*made) if hasattr(x, "_fields") else tuple(made)
    return [wrap(each) for each in x] if isinstance(x, list) else x


def unwrap(x: Any, where: str = "") -> Any:
    """Arguments for NumPy. Raises Refused for an array of the host."""
    if isinstance(x, Array):
        return x.array
    if isinstance(x, np.ndarray):
        raise Refused(f"{where}: Unsupported type {np.ndarray}")
    return type(x)(unwrap(each, where) for each in x) if isinstance(x, list | tuple) else x


@cache
def keywords(method: str) -> frozenset[str] | None:
    """The parameters of a method, from the first line of its documentation; None if that does not tell them."""
    found = re.match(r"[\w.]+\(self,? ?(.*?)\)( ->|\n|$)", getattr(cupy.ndarray, method).__doc__ or "")
    if found is None or "**" in found[1]:
        return None
    return frozenset(each.split("=")[0].split(" ")[-1].lstrip("*") for each in found[1].split(", "))


class Array:
    """`cupy.ndarray`, as far as it can be seen from outside."""

    __slots__ = ("array",)
    __hash__ = None  # type: ignore[assignment]
    __array_priority__ = 100

    def __init__(self, array: np.ndarray) -> None:
        if not has_device_dtype(array.dtype):
            raise Refused(f"Unsupported dtype {array.dtype}")
        self.array = array

    def __repr__(self) -> str:
        return f"device {self.array!r}"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise Refused("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Any, **kw: Any) -> Any:
        mine = getattr(_cupy(), ufunc.__name__, None)
        if mine is None or any(isinstance(each, np.ndarray) for each in args):
            raise Refused(f"{ufunc.__name__}: Unsupported type {np.ndarray}")
        return (mine if method == "__call__" else getattr(mine, method))(*args, **kw)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kw: Any) -> Any:
        mine: Any = _cupy()
        for part in [*function.__module__.split(".")[1:], function.__name__]:
            mine = getattr(mine, part, None) if mine is not None else None
        if mine is None:
            raise Refused(f"no implementation of {function.__name__} for arrays of the device")
        return mine(*args, **kw)

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(f"'cupy.ndarray' object has no attribute {name!r}")
        if name == "get":
            return self.array.copy
        value = getattr(self.array, name)
        if not callable(value):
            return wrap(value) if isinstance(value, np.ndarray) else value

        def call(*args: Any, **kw: Any) -> Any:
            known = keywords(name)
            if known is not None and (wrong := set(kw) - known):
                raise Refused(f"ndarray.{name}() got an unexpected keyword argument {sorted(wrong)}")
            if name == "astype":
                check_cast(self.array, np.dtype(args[0]))
            if name in AS_FUNCTIONS:
                return getattr(_cupy(), name)(self, *args, **kw)
            if name == "view" and "type" in kw:
                raise Refused("ndarray.view(type=...)")
            args = tuple(unwrap(each, f"ndarray.{name}") for each in args)
            result = value(*args, **{key: unwrap(each) for key, each in kw.items()})
            return result if name in SYNCHRONIZE else wrap(result)

        return call

    def __getitem__(self, key: Any) -> Array:
        return Array(np.asarray(self.array[as_cupy_indexes(self.array, key)]))

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
            raise Refused("__setitem__ takes scalars and arrays of the device as values")
        key, value = as_cupy_indexes(self.array, key), unwrap(value) if isinstance(value, Array) else value
        check_order(self.array, key, np.asarray(value))
        if isinstance(value, np.ndarray):
            check_cast(value, self.array.dtype)
        self.array[key] = value

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Any:
        if not self.array.ndim:
            raise TypeError("iteration over a 0-d array")
        return (wrap(each) for each in self.array)

    def __bool__(self) -> bool:
        return bool(self.array)

    def __int__(self) -> int:
        return int(self.array)

    def __float__(self) -> float:
        return float(self.array)

    def __index__(self) -> int:
        return self.array.__index__()

    def __copy__(self) -> Array:
        return Array(self.array.copy())

    def __deepcopy__(self, memo: Any) -> Array:
        return Array(self.array.copy())

    def __neg__(self) -> Any:
        return _cupy().negative(self)

    def __invert__(self) -> Any:
        return _cupy().invert(self)

    def __abs__(self) -> Any:
        return _cupy().absolute(self)


def _cupy() -> Any:
    from tests.cupy_stand_in.namespaces import CUPY

    return CUPY


def _add_operators() -> None:
    def forward(name: str) -> Any:
        def call(self: Array, other: Any) -> Any:
            return NotImplemented if isinstance(other, list | tuple) else getattr(_cupy(), name)(self, other)

        return call

    def backward(name: str) -> Any:
        return lambda self, other: getattr(_cupy(), name)(other, self)

    def in_place(name: str) -> Any:
        def call(self: Array, other: Any) -> Array:
            getattr(_cupy(), name)(self, other, out=self, casting="same_kind")
            return self

        return call

    for name, function in {**OPERATORS, **COMPARISONS}.items():
        setattr(Array, f"__{name}__", forward(function))
    for name, function in OPERATORS.items():
        setattr(Array, f"__r{name}__", backward(function))
        setattr(Array, f"__i{name}__", in_place(function))


_add_operators()


def as_cupy_indexes(x: np.ndarray, key: Any) -> Any:
    """An index of NumPy that reads what cupy reads: integers of arrays that are out of range wrap around."""
    parts = list(key) if isinstance(key, tuple) else [key]
    if any(isinstance(each, np.ndarray) and each.dtype == bool and each.ndim for each in parts):
        raise Refused("__getitem__: a mask of the host")
    parts = [each.array if isinstance(each, Array) else each for each in parts]
    taken = sum(_axes(each) for each in parts)
    found, axis = [], 0
    for each in parts:
        if each is Ellipsis:
            axis += x.ndim - taken
        elif isinstance(each, list | np.ndarray) and np.asarray(each).dtype.kind in "iu":
            each = np.asarray(each)
            each = each % x.shape[axis] if each.size and x.shape[axis] else each
        found.append(each)
        axis += _axes(each)
    return tuple(found) if isinstance(key, tuple) else found[0]


def _axes(index: Any) -> int:
    """How many axes an index takes away."""
    if index is None or index is Ellipsis:
        return 0
    return index.ndim if isinstance(index, np.ndarray) and index.dtype == bool else 1


def check_order(x: np.ndarray, key: Any, value: np.ndarray) -> None:
    """Raises Refused if `x[key] = value` writes different values to one element: their order on a GPU is open."""
    parts = key if isinstance(key, tuple) else (key,)
    if not value.ndim or not any(isinstance(each, list | np.ndarray) for each in parts):
        return
    at = np.arange(x.size).reshape(x.shape)[key]
    values = np.broadcast_to(value, at.shape).ravel()
    where, first, inverse = np.unique(at, return_index=True, return_inverse=True)
    if len(where) < at.size and not np.array_equal(values[first][inverse.ravel()], values, equal_nan=True):
        raise Refused("__setitem__: different values for one element, in an open order")


def check_cast(x: np.ndarray, dtype: np.dtype) -> None:
    """Raises Refused if a float of x has no value as an integer: a GPU gives another one than NumPy."""
    if dtype.kind not in "iu" or x.dtype.kind in "biu" or not x.size:
        return
    wide, info = x.astype("float64"), np.iinfo(dtype)
    if not (np.isfinite(wide) & (np.trunc(wide) >= info.min) & (np.trunc(wide) <= info.max)).all():
        raise Refused(f"astype: a number has no value as {dtype}")
