"""The modules of the stand-in: each name is made from that of the installed cupy when it is first read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special
from cupy._core import _routines_logic, _routines_math, _routines_statistics

from tests.cupy_stand_in.arrays import Array, Refused, as_cupy_indexes, unwrap, wrap
from tests.cupy_stand_in.reflection import cupy, cupyx_linalg, cupyx_special
from tests.cupy_stand_in.ufuncs import Ufunc, reduction

__all__ = ["CUPY", "cupyx_modules"]

FROM_HOST = ("asarray", "array", "ascontiguousarray", "asfortranarray", "asanyarray")
OF_TYPES = ("errstate", "iinfo", "finfo", "result_type", "can_cast", "promote_types", "broadcast_shapes", "issubdtype")
"""Functions that cupy takes from NumPy."""
PRODUCTS = ("matmul", "dot", "einsum", "tensordot", "inner", "outer", "vdot", "kron")
REDUCTIONS = {
    "sum": _routines_math.sum_auto_dtype, "prod": _routines_math.prod_auto_dtype,
    "max": _routines_statistics.amax, "amax": _routines_statistics.amax,
    "min": _routines_statistics.amin, "amin": _routines_statistics.amin,
    "all": _routines_logic.all, "any": _routines_logic.any,
}  # fmt: skip
SORTS = ("sort", "argsort", "unique", "lexsort", "partition", "argpartition", "searchsorted")
"""Thrust has no bfloat16."""
WHOLE = ("det", "slogdet")
"""Functions of matrices that give the numbers of NumPy also for singular ones."""
SCATTERED = ("int32", "uint32", "uint64", "float32")
"""Dtypes of the atomic maximum: cupy rounds float64 numbers to float32 ones there (`fmaxf` in its atomics.cuh)."""
SUMMED = (*SCATTERED, "float64", "float16", "complex64", "complex128")

raises = False
"""Whether a failure of cuSOLVER is an error here (`cupyx.errstate`); without it cupy returns wrong numbers."""


class Namespace(ModuleType):
    """A module of cupy: `theirs` decides what there is, `ours` of NumPy or SciPy computes."""

    def __init__(self, name: str, theirs: Any, ours: Any) -> None:
        super().__init__(name)
        self.__dict__["_pair"] = theirs, ours

    def __getattr__(self, name: str) -> Any:
        theirs, ours = self.__dict__["_pair"]
        if name.startswith("__") or not hasattr(theirs, name):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = _made(f"{self.__name__}.{name}", name, getattr(theirs, name), getattr(ours, name, None))
        self.__dict__[name] = found
        return found


def _made(where: str, name: str, theirs: Any, ours: Any) -> Any:
    if isinstance(theirs, ModuleType):
        return Namespace(where, theirs, ours)
    if name in REDUCTIONS and where == f"cupy.{name}":
        return reduction(name, REDUCTIONS[name], ours)
    if isinstance(theirs, cupy.ufunc):
        if ours is None:
            raise Refused(f"{where}: neither NumPy nor SciPy computes it")
        return Ufunc(name, theirs, ours)
    if isinstance(theirs, type) or name in OF_TYPES or not callable(theirs):
        return theirs
    return _function(where, name, theirs, ours)


def _function(where: str, name: str, theirs: Any, ours: Any) -> Callable[..., Any]:
    try:
        signature = inspect.signature(theirs)
    except (TypeError, ValueError):
        signature = None
    solves = ".linalg." in where and name not in ("norm",)

    def call(*args: Any, **kw: Any) -> Any:
        if signature is not None:
            try:
                signature.bind(*args, **kw)
            except TypeError as error:
                raise Refused(f"{where}: {error}") from None
        if ours is None:
            raise Refused(f"{where}: neither NumPy nor SciPy has this function")
        if name in FROM_HOST:
            return Array(np.array(_arrays(args[0]), *args[1:], **kw)) if name == "array" else _as_array(ours, args, kw)
        given = tuple(unwrap(each, where) for each in args)
        named = {key: unwrap(each, where) for key, each in kw.items()}
        _check(where, name, given, named, solves)
        if name in ("take", "take_along_axis"):
            given, named = _wrapped_around(name, given, named)
        return wrap(ours(*given, **named))

    call.__name__ = name
    return call


def _check(where: str, name: str, args: tuple[Any, ...], kw: dict[str, Any], solves: bool) -> None:
    """Raises Refused for what the installed cupy refuses, or computes wrongly, and NumPy does not."""
    dtypes = {each.dtype.name for each in _leaves([*args, *kw.values()])}
    if name in PRODUCTS and "bfloat16" in dtypes:
        raise Refused(f"{where}: cuBLAS has no batched product of bfloat16")
    if name in SORTS and "bfloat16" in dtypes:
        raise Refused(f"{where}: bfloat16 cannot be sorted")
    if name in ("sort", "argsort") and kw.get("kind") not in (None, "stable", "quicksort"):
        raise Refused(f"{where}: kind {kw['kind']}")
    if name == "take" and kw.get("mode") is not None:
        raise Refused(f"{where}: mode {kw['mode']}")
    if (solves or ".fft." in where) and dtypes & {"float16", "bfloat16"}:
        raise Refused(f"{where}: {sorted(dtypes)} are unsupported")
    if not solves:
        return
    if where.startswith("cupy.") and not raises and name not in WHOLE:
        raise Refused(f"{where} outside of errstate(linalg='raise'): a failure gives wrong numbers")
    if name == "solve" and (args[1].ndim == 0 or (args[1].ndim > 1 and args[0].shape[:-1] != args[1].shape[:-1])):
        raise Refused(f"{where}: shapes {args[0].shape} and {args[1].shape} differ before the last axis")
    if where.startswith("cupyx.") and name != "expm" and args[0].ndim != 2:
        raise Refused(f"{where}: one matrix at a time")


def _leaves(x: Any) -> list[np.ndarray]:
    if isinstance(x, list | tuple):
        return [leaf for each in x for leaf in _leaves(each)]
    return [x] if isinstance(x, np.ndarray) else []


def _arrays(x: Any) -> Any:
    if isinstance(x, Array):
        return x.array
    return type(x)(_arrays(each) for each in x) if isinstance(x, list | tuple) else x


def _as_array(ours: Any, args: tuple[Any, ...], kw: dict[str, Any]) -> Array:
    """An array of the device: its own memory, unless the argument is on the device already."""
    kw.pop("blocking", None)
    here = isinstance(args[0], Array)
    made = ours(_arrays(args[0]), *args[1:], **kw)
    return Array(made if here else np.array(made))


def _wrapped_around(name: str, args: tuple[Any, ...], kw: dict[str, Any]) -> Any:
    """The arguments of a gather with indices in the range, as cupy takes them."""
    bound = dict(zip(("a", "indices", "axis"), args, strict=False)) | kw
    x, index, axis = bound.pop("a"), np.asarray(bound.pop("indices")), bound.get("axis")
    size = x.size if axis is None else x.shape[axis]
    return (x, index % size if index.size and size else index), bound


def _scatter(function: np.ufunc, dtypes: tuple[str, ...]) -> Callable[..., None]:
    """An atomic function of a GPU. Its maximum and minimum ignore NaN."""

    def call(a: Array, slices: Any, value: Any) -> None:
        if a.dtype.name not in dtypes:
            raise Refused(f"scatter of {a.dtype}")
        function.at(a.array, as_cupy_indexes(a.array, slices), unwrap(value, "scatter"))

    return call


class _ErrorState:
    """`cupyx.errstate` with the argument `linalg` alone."""

    def __init__(self, *, linalg: str) -> None:
        self.wanted = linalg == "raise"

    def __enter__(self) -> None:
        global raises
        self.before, raises = raises, self.wanted

    def __exit__(self, *_: Any) -> None:
        global raises
        raises = self.before


def _is_available() -> bool:
    return True


def _as_numpy(a: Any, *_: Any, **__: Any) -> np.ndarray:
    return a.array.copy() if isinstance(a, Array) else np.asarray(a)


CUPY = Namespace("cupy", cupy, np)
CUPY.__dict__.update(ndarray=Array, asnumpy=_as_numpy, is_available=_is_available)


def cupyx_modules() -> dict[str, ModuleType]:
    """The modules with names of their own: cupyx, cupyx.scipy and those of it that ops use."""
    root, within = ModuleType("cupyx"), ModuleType("cupyx.scipy")
    special = Namespace("cupyx.scipy.special", cupyx_special, scipy.special)
    linalg = Namespace("cupyx.scipy.linalg", cupyx_linalg, scipy.linalg)
    root.__dict__.update(
        errstate=_ErrorState,
        scatter_add=_scatter(np.add, SUMMED),
        scatter_max=_scatter(np.fmax, SCATTERED),
        scatter_min=_scatter(np.fmin, SCATTERED),
        scipy=within,
    )
    within.__dict__.update(special=special, linalg=linalg)
    return {
        "cupyx": root, "cupyx.scipy": within, "cupyx.scipy.special": special, "cupyx.scipy.linalg": linalg
    }  # fmt: skip
