"""Functions of elements, and reductions, with the loops of the installed cupy: it chooses the dtypes itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.cupy_stand_in.arrays import SCALARS, Array, Refused, check_cast, unwrap, wrap

__all__ = ["Ufunc", "reduction"]

METHODS = {
    "reduce": ("add", "multiply"),
    "accumulate": ("add", "multiply"),
    "reduceat": ("add",),
    "outer": None,
    "at": ("add", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"),
}
"""Which functions have a method; None for all."""
KEYWORDS = ("out", "dtype", "casting")
ORDER = "biufc"


class Ufunc:
    """A `cupy.ufunc`: `theirs` chooses the loop, `ours` of NumPy or SciPy computes it."""

    def __init__(self, name: str, theirs: Any, ours: Any) -> None:
        self.name, self.theirs, self.ours = name, theirs, ours
        self.nin, self.nout, self.types = theirs.nin, theirs.nout, theirs.types

    def __repr__(self) -> str:
        return repr(self.theirs)

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS or not hasattr(self.theirs, name):
            raise AttributeError(f"ufunc {self.name} has no {name}")
        some = METHODS[name]
        if some is not None and self.name not in some:
            raise NotImplementedError(f"cupy.{self.name}.{name}")

        def call(*args: Any, **kw: Any) -> Any:
            given = {key: unwrap(each, self.name) for key, each in kw.items()}
            return wrap(getattr(self.ours, name)(*(unwrap(each, f"{self.name}.{name}") for each in args), **given))

        return call

    def __call__(self, *args: Any, **kw: Any) -> Any:
        if wrong := set(kw) - set(KEYWORDS):
            raise Refused(f"{self.name}: Wrong arguments {sorted(wrong)}")
        for each in args:
            if not isinstance(each, (Array, *SCALARS)):
                raise Refused(f"{self.name}: Unsupported type {type(each)}")
        out = kw.get("out") if len(args) == self.nin else args[self.nin]
        inputs = [each.array if isinstance(each, Array) else each for each in args[: self.nin]]
        if "dtype" in kw and kw["dtype"] is not None:
            result = self.ours(*inputs, dtype=kw["dtype"])
        else:
            result = self._computed(inputs)
        if out is None:
            return wrap(result)
        target = unwrap(out, self.name)
        if not np.can_cast(result.dtype, target.dtype, kw.get("casting", "same_kind")):
            raise Refused(f"{self.name}: output of {result.dtype} cannot be cast to {target.dtype}")
        check_cast(result, target.dtype)
        np.copyto(target, result, casting="unsafe")
        return out

    def _computed(self, inputs: list[Any]) -> Any:
        """The result, with the dtypes of the loop that cupy chooses."""
        try:
            op = self.theirs._ops._guess_routine_from_in_types(_dtypes(inputs))
        except TypeError as error:
            raise Refused(f"{self.name}: {error}") from None
        if op is None:
            raise Refused(f"{self.name}: Wrong type {_dtypes(inputs)} of arguments")
        given = [np.asarray(each).astype(dtype) for each, dtype in zip(inputs, op.in_types, strict=True)]
        result = self.ours(*given)
        if isinstance(result, tuple):
            return tuple(np.asarray(r).astype(d) for r, d in zip(result, op.out_types, strict=True))
        return np.asarray(result).astype(op.out_types[0])


def _dtypes(inputs: list[Any]) -> tuple[np.dtype, ...]:
    """The dtypes of operands; a Python number takes that of the arrays, unless its kind is higher."""
    strong = [each.dtype for each in inputs if isinstance(each, np.ndarray | np.generic)]
    common = np.result_type(*strong) if strong else None
    return tuple(each.dtype if hasattr(each, "dtype") else _weak(each, common) for each in inputs)


def _weak(number: Any, common: np.dtype | None) -> np.dtype:
    own = np.asarray(number).dtype
    if common is None or common.name == "bfloat16":
        return own if common is None else common
    as_signed = str.maketrans("u", "i")
    higher = ORDER.find(own.kind.translate(as_signed)) > ORDER.find(common.kind.translate(as_signed))
    return own if higher else common


def reduction(name: str, table: Any, ours: Any) -> Any:
    """A reduction whose dtypes are in a table of cupy: the result is an array, also of rank 0."""

    def call(a: Any, axis: Any = None, *, dtype: Any = None, keepdims: bool = False) -> Any:
        x = unwrap(a, name)
        if not isinstance(a, Array):
            raise Refused(f"{name}: Unsupported type {type(a)}")
        if table._ops._guess_routine_from_in_types((x.dtype,)) is None:
            raise Refused(f"{name}: Wrong type {x.dtype} of arguments")
        options = {} if dtype is None else {"dtype": dtype}
        return wrap(np.asarray(ours(x, axis=axis, keepdims=keepdims, **options)))

    return call
