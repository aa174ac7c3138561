"""Elementwise kernels, traced: the LLVM instructions of an op for one element, or for a vector of elements.

A kernel is called as the reference executor calls it, ``kernel(xp, *inputs, **attrs)``, with `Elements` as `xp` and
`Element`s as inputs. So the declaration of an op is also the source of its machine code, and a new elementwise op needs
nothing more. As in numpy, a function of 16-bit floats computes in float32 and rounds its result.

There are two kinds of failure. A kernel may use a function or an operator of numpy that has no
translation: that raises NotTraceable with its name, and the reference executor runs the op. Any other error in a kernel
is a defect: that raises InternalError, because a step that silently runs slowly hides it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from core.codegen.functions import FUNCTIONS, NotTraceable, polygamma
from core.codegen.llvm import Function, IRValue, literal
from core.ir.errors import CoreError, InternalError
from core.ir.precision import HALVES
from core.ir.registry import lookup
from core.ops.common.types import as_dtype

__all__ = ["NATIVE", "apply", "refusal"]

NATIVE = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64", *HALVES})
"""Dtypes of arrays that machine code reads and writes."""

KEEPING = frozenset(
    ("negative", "abs", "absolute", "sign", "maximum", "minimum", "where", "floor", "ceil", "trunc", "rint")
)
"""Functions of 16-bit floats whose results need no rounding."""

BY_OP: dict[str, Callable[..., IRValue]] = {name: FUNCTIONS[name] for name in ("erf", "erfc", "fmod", "mod", "sigmoid")}
BY_OP |= {name: FUNCTIONS[name] for name in ("erfinv", "lgamma")}
BY_OP |= {
    "bitwise_left_shift": FUNCTIONS["left_shift"],
    "bitwise_right_shift": FUNCTIONS["right_shift"],
    "floor_div": FUNCTIONS["floor_divide"],
    "polygamma": polygamma,
}
"""Ops, by name, whose kernel calls a library other than numpy, or checks its operands, or takes more steps than machine
code needs."""


def apply(f: Function, op: str, attrs: Mapping[str, Any], inputs: Sequence[IRValue], rounds: bool = True) -> IRValue:
    """The output of elementwise op `op`, appended to `f`. rounds: whether a 16-bit result is rounded.

    Raises NotTraceable if the kernel uses something that has no translation, InternalError if the kernel fails.
    """
    if op in BY_OP:
        return _of_halves(f, functools.partial(BY_OP[op], **attrs), inputs, exact=not rounds)
    try:
        result = lookup(op).body(Elements(f, rounds), *[Element(f, v, rounds) for v in inputs], **attrs)
    except (NotTraceable, CoreError, InternalError):
        raise
    except Exception as error:
        given = ", ".join([*(v.dtype for v in inputs), *(f"{name}={value!r}" for name, value in attrs.items())])
        reason = f"{type(error).__name__}: {error}"
        raise InternalError(f"the kernel of {op} fails when it is traced on {given}: {reason}") from error
    if not isinstance(result, Element):
        raise NotTraceable(f"a result of type {type(result).__name__}")
    return result.value


def _of_halves(f: Function, function: Callable[..., IRValue], args: Sequence[IRValue], exact: bool = False) -> IRValue:
    """``function(f, *args)``, of 16-bit floats in float32. exact: whether its result is taken for one as it is."""
    half = next((a.dtype for a in args if a.dtype in HALVES), None)
    if half is None:
        return function(f, *args)
    for a in args:
        if a.is_float and a.dtype != half:
            raise NotTraceable(f"{a.dtype} with {half}")
    result = function(f, *(f.convert(a, "float32") if a.is_float else a for a in args))
    if result.dtype != "float32":
        return result
    return f.exact(result, half) if exact else f.rounded(result, half)


@functools.lru_cache(4096)  # the sign of a zero, which its keys ignore, changes no dtype
def _refusal(op: str, attrs: tuple[tuple[str, Any], ...], dtypes: tuple[str, ...], out: str) -> str | None:
    f = Function("trial", [(f"x{i}", dtype) for i, dtype in enumerate(dtypes)])
    try:
        found = apply(f, op, dict(attrs), [f.param(f"x{i}") for i in range(len(dtypes))]).dtype
    except NotTraceable as error:
        return f"no translation of {error}"
    return None if found == out else f"the traced kernel gives {found}, wanted {out}"


def refusal(op: str, attrs: Mapping[str, Any], dtypes: Sequence[str], out: str) -> str | None:
    """The reason why this op on these dtypes has no machine code, or None. Raises InternalError as `apply`."""
    for dtype in (*dtypes, out):
        if dtype not in NATIVE:
            return f"no machine code for {dtype}"
    return _refusal(op, tuple(sorted(attrs.items())), tuple(dtypes), out)


def _untranslated(operator: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise NotTraceable(f"the operator {operator}")

    return refuse


class Element:
    """One element, or a vector of elements, that a kernel takes for an array: it has a dtype and operators.

    rounds: whether results of 16 bits are rounded.
    """

    __slots__ = ("f", "rounds", "value")

    def __init__(self, f: Function, value: IRValue, rounds: bool = True) -> None:
        self.f, self.value, self.rounds = f, value, rounds

    ndim = 1  # a kernel may ask whether it needs to broadcast; elements never do

    @property
    def dtype(self) -> np.dtype:
        return as_dtype(self.value.dtype)

    def astype(self, dtype: Any, copy: bool = True) -> Element:
        name = np.dtype(dtype).name
        if name not in NATIVE:
            raise NotTraceable(f"a conversion to {name}")
        if name in HALVES and self.value.dtype == "float32" and not self.rounds:
            return Element(self.f, self.f.exact(self.value, name), self.rounds)
        return Element(self.f, self.f.convert(self.value, name), self.rounds)

    def _with(self, name: str, *others: Any) -> Element:
        return getattr(Elements(self.f, self.rounds), name)(*others)

    def __add__(self, other: Any) -> Element:
        return self._with("add", self, other)

    def __sub__(self, other: Any) -> Element:
        return self._with("subtract", self, other)

    def __mul__(self, other: Any) -> Element:
        return self._with("multiply", self, other)

    def __truediv__(self, other: Any) -> Element:
        return self._with("divide", self, other)

    def __radd__(self, other: Any) -> Element:
        return self._with("add", other, self)

    def __rsub__(self, other: Any) -> Element:
        return self._with("subtract", other, self)

    def __rmul__(self, other: Any) -> Element:
        return self._with("multiply", other, self)

    def __rtruediv__(self, other: Any) -> Element:
        return self._with("divide", other, self)

    def __neg__(self) -> Element:
        return self._with("negative", self)

    def __gt__(self, other: Any) -> Element:
        return self._with("greater", self, other)

    def __ge__(self, other: Any) -> Element:
        return self._with("greater_equal", self, other)

    def __lt__(self, other: Any) -> Element:
        return self._with("less", self, other)

    def __le__(self, other: Any) -> Element:
        return self._with("less_equal", self, other)

    def __eq__(self, other: object) -> Element:  # type: ignore[override]
        return self._with("equal", self, other)

    def __ne__(self, other: object) -> Element:  # type: ignore[override]
        return self._with("not_equal", self, other)

    __hash__ = None  # type: ignore[assignment]

    def __and__(self, other: Any) -> Element:
        return self._with("bitwise_and", self, other)

    def __or__(self, other: Any) -> Element:
        return self._with("bitwise_or", self, other)

    def __invert__(self) -> Element:
        return self._with("invert", self)

    def __bool__(self) -> bool:
        raise NotTraceable("a decision by the value of an element")

    # --- members of arrays without a translation --------------------------------------------------------------------

    __pow__ = __rpow__ = _untranslated("**")
    __mod__ = __rmod__ = _untranslated("%")
    __floordiv__ = __rfloordiv__ = _untranslated("//")
    __divmod__ = __rdivmod__ = _untranslated("divmod")
    __lshift__ = __rlshift__ = _untranslated("<<")
    __rshift__ = __rrshift__ = _untranslated(">>")
    __xor__ = __rxor__ = _untranslated("^")
    __matmul__ = __rmatmul__ = _untranslated("@")
    __pos__ = _untranslated("unary +")
    __abs__ = _untranslated("abs")
    __getitem__ = __setitem__ = _untranslated("[]")
    __len__ = __iter__ = __contains__ = _untranslated("len or in")
    __int__ = __float__ = __complex__ = __index__ = __round__ = _untranslated("int or float")

    def __getattr__(self, name: str) -> Any:
        if hasattr(np.ndarray, name) and not name.startswith(
            "__"
        ):  # numpy itself looks for those, then for `__array__`
            raise NotTraceable(f"the array attribute {name!r}")
        raise AttributeError(f"arrays have no attribute {name!r}")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Element:
        """Called for ``numpy scalar * element``, and for functions of scipy, which take no `xp`."""
        if method != "__call__" or options:
            raise NotTraceable(f"the ufunc {ufunc.__name__} with options")
        if ufunc.__name__ not in FUNCTIONS:
            raise NotTraceable(f"the ufunc {ufunc.__name__}")
        return self._with(ufunc.__name__, *inputs)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        raise NotTraceable(f"numpy.{function.__name__}, called without `xp`")

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise NotTraceable("a conversion to an array")


class Elements:
    """The array module that a kernel is traced with: the functions of numpy that have a translation.

    rounds: whether results of 16 bits are rounded.
    """

    __name__ = "native"

    def __init__(self, f: Function, rounds: bool = True) -> None:
        self.f, self.rounds = f, rounds

    def __getattr__(self, name: str) -> Callable[..., Element]:
        if name in FUNCTIONS:
            return functools.partial(self._call, name)
        if hasattr(np, name):
            raise NotTraceable(f"numpy.{name}")
        raise AttributeError(f"numpy has no function {name!r}")

    def _call(self, name: str, *args: Any, **options: Any) -> Element:
        if options:
            raise NotTraceable(f"numpy.{name} with {', '.join(options)}")
        exact = name in KEEPING or not self.rounds
        return Element(self.f, _of_halves(self.f, FUNCTIONS[name], self._alike(name, args), exact), self.rounds)

    def _alike(self, name: str, args: Sequence[Any]) -> list[IRValue]:
        """The arguments as values: numbers become literals of the dtype of the elements next to them, as in numpy."""
        dtypes = [a.value.dtype for a in args if isinstance(a, Element)]
        dtype = next((d for d in dtypes if d != "bool"), "bool")
        return [a.value if isinstance(a, Element) else self._literal(name, a, dtype) for a in args]

    def _literal(self, name: str, number: Any, dtype: str) -> IRValue:
        if isinstance(number, np.ndarray) and number.ndim:
            raise NotTraceable(f"numpy.{name} of an array that the kernel makes")
        if isinstance(number, np.ndarray):
            number = number[()]
        if not isinstance(number, bool | int | float | np.generic):
            raise TypeError(f"numpy.{name} of {type(number).__name__}")
        if not _holds(dtype, number):  # numpy computes in a wider dtype here
            raise NotTraceable(f"numpy.{name} of {dtype} and {number!r}")
        return literal(number, dtype)


def _holds(dtype: str, number: bool | int | float | np.generic) -> bool:
    """Whether numpy takes a number to the dtype of the elements next to it."""
    if dtype == "bool":
        return isinstance(number, bool | np.bool_)
    if dtype in HALVES:  # a number of numpy has a dtype of its own, as an array has
        return not isinstance(number, np.inexact) or number.dtype == as_dtype(dtype)
    if dtype.startswith("float"):
        return True
    limits = np.iinfo(dtype)
    return isinstance(number, int | np.integer) and bool(limits.min <= number <= limits.max)
