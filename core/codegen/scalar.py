"""Elementwise kernels, traced: what an op computes for one element, as LLVM instructions for a vector of them.

A kernel is called as always, ``kernel(xp, *inputs, **attrs)``, with `Elements` as `xp` and `Element`s as inputs. So an
op's code here is its declaration, and a new elementwise op needs nothing more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from core.codegen.functions import FUNCTIONS, NotTraceable
from core.codegen.llvm import Function, Value, literal
from core.ir.registry import lookup

__all__ = ["NATIVE", "apply", "traceable"]

NATIVE = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64"})
"""Dtypes that machine code computes in; the half-precision ones are left to the reference executor."""

BY_OP: dict[str, Callable[..., Value]] = {name: FUNCTIONS[name] for name in ("erf", "erfc", "sigmoid")}
"""Ops, by name, whose kernel leaves numpy for another library or takes more steps than are needed here."""


def apply(f: Function, op: str, attrs: Mapping[str, Any], inputs: Sequence[Value]) -> Value:
    """The output of elementwise op `op`, appended to `f`. Raises NotTraceable."""
    if op in BY_OP:
        return BY_OP[op](f, *inputs)
    try:
        result = lookup(op).body(Elements(f), *[Element(f, v) for v in inputs], **attrs)
    except (TypeError, AttributeError, KeyError) as error:
        raise NotTraceable(f"{op}: {error}") from error
    if not isinstance(result, Element):
        raise NotTraceable(f"{op} gives no element")
    return result.value


@functools.lru_cache(4096)  # the sign of a zero, which its keys leave out, changes no dtype
def _traceable(op: str, attrs: tuple[tuple[str, Any], ...], dtypes: tuple[str, ...], out: str) -> bool:
    f = Function("trial", [(f"x{i}", dtype) for i, dtype in enumerate(dtypes)])
    try:
        return apply(f, op, dict(attrs), [f.param(f"x{i}") for i in range(len(dtypes))]).dtype == out
    except NotTraceable:
        return False


def traceable(op: str, attrs: Mapping[str, Any], dtypes: Sequence[str], out: str) -> bool:
    """Whether machine code exists for this elementwise op on these dtypes."""
    return NATIVE.issuperset((*dtypes, out)) and _traceable(op, tuple(sorted(attrs.items())), tuple(dtypes), out)


class Element:
    """One element (or a vector of them), to a kernel an array: it has a dtype and can be computed with."""

    __slots__ = ("f", "value")
    __array_ufunc__ = None  # numpy scalars leave their operators to this class

    def __init__(self, f: Function, value: Value) -> None:
        self.f, self.value = f, value

    ndim = 1  # a kernel may ask whether it needs to broadcast; elements never do

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.value.dtype)

    def astype(self, dtype: Any, copy: bool = True) -> Element:
        name = np.dtype(dtype).name
        if name not in NATIVE:
            raise NotTraceable(f"no native {name}")
        return Element(self.f, self.f.convert(self.value, name))

    def _with(self, name: str, *others: Any) -> Element:
        return getattr(Elements(self.f), name)(*others)

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
        raise NotTraceable("a kernel decides by the value of an element")


class Elements:
    """The array module that a kernel is traced with: the functions of numpy that have a translation."""

    __name__ = "native"

    def __init__(self, f: Function) -> None:
        self.f = f

    def __getattr__(self, name: str) -> Callable[..., Element]:
        if name not in FUNCTIONS:
            raise NotTraceable(f"xp.{name}")
        return functools.partial(self._call, FUNCTIONS[name])

    def _call(self, function: Callable[..., Value], *args: Any) -> Element:
        return Element(self.f, function(self.f, *self._alike(args)))

    def _alike(self, args: Sequence[Any]) -> list[Value]:
        """Numbers become literals of the dtype of the elements beside them, as numpy has it."""
        dtypes = [a.value.dtype for a in args if isinstance(a, Element)]
        dtype = next((d for d in dtypes if d != "bool"), "bool")
        return [a.value if isinstance(a, Element) else literal(a, dtype) for a in args]
