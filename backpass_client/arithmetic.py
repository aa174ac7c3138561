"""Python's operators on expressions, and the few methods that arrays have, each in terms of ops."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from backpass_client.expression import Expression

__all__ = ["Arithmetic", "is_number"]


class Arithmetic:
    """What makes an expression look like an array. The class that inherits this is `Expression`."""

    __array_ufunc__ = None  # so that numpy leaves `array * expression` to us
    shape: tuple[int, ...]

    def _op(self, type: str, *others: Any, **attrs: Any) -> Any:
        return _apply(type, (self, *others), attrs)

    # --- operators -----------------------------------------------------------------------------------------------

    def __neg__(self) -> Expression:
        return self._op("neg")

    def __abs__(self) -> Expression:
        return self._op("abs")

    def __add__(self, other: Any) -> Expression:
        return self._op("scale", bias=_plain(other)) if _is_constant(other) else self._op("add", other)

    def __sub__(self, other: Any) -> Expression:
        return self._op("scale", bias=-_plain(other)) if _is_constant(other) else self._op("sub", other)

    def __mul__(self, other: Any) -> Expression:
        return self._op("scale", scale=_plain(other)) if _is_constant(other) else self._op("mul", other)

    def __truediv__(self, other: Any) -> Expression:
        return self._op("div", other)

    def __pow__(self, other: Any) -> Expression:
        return self._op("square") if is_number(other) and other == 2 else self._op("pow", other)

    def __matmul__(self, other: Any) -> Expression:
        return self._op("matmul", other)

    def __radd__(self, other: Any) -> Expression:
        return self + other if _is_constant(other) else _apply("add", (other, self))

    def __rsub__(self, other: Any) -> Expression:
        if _is_constant(other):
            return self._op("scale", scale=-1.0, bias=_plain(other))
        return _apply("sub", (other, self))

    def __rmul__(self, other: Any) -> Expression:
        return self * other if _is_constant(other) else _apply("mul", (other, self))

    def __rtruediv__(self, other: Any) -> Expression:
        return _apply("div", (other, self))

    def __rpow__(self, other: Any) -> Expression:
        return _apply("pow", (other, self))

    def __rmatmul__(self, other: Any) -> Expression:
        return _apply("matmul", (other, self))

    # no __eq__: an expression is a key of sets and dictionaries, as itself; `equal` compares values

    def __lt__(self, other: Any) -> Expression:
        return self._op("less_than", other)

    def __le__(self, other: Any) -> Expression:
        return self._op("less_equal", other)

    def __gt__(self, other: Any) -> Expression:
        return self._op("greater_than", other)

    def __ge__(self, other: Any) -> Expression:
        return self._op("greater_equal", other)

    # --- parts and shapes ----------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Expression:
        from backpass_client.indexing import indexed

        return indexed(self, index)  # type: ignore[arg-type]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a single number has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Expression]:
        return (self[i] for i in range(len(self)))

    def reshape(self, *shape: Any) -> Expression:
        return self._op("reshape", shape=_ints(shape))

    def transpose(self, *axes: Any) -> Expression:
        """The axes in this order; all of them reversed if none is given."""
        return self._op("transpose", axes=_ints(axes)) if axes else self._op("transpose")

    @property
    def T(self) -> Expression:
        return self.transpose()

    def sum(self, axis: Any = None, keepdims: bool = False) -> Expression:
        return self._op("reduce_sum", **_over(axis, keepdims))

    def mean(self, axis: Any = None, keepdims: bool = False) -> Expression:
        return self._op("reduce_mean", **_over(axis, keepdims))

    def max(self, axis: Any = None, keepdims: bool = False) -> Expression:
        return self._op("reduce_max", **_over(axis, keepdims))


def is_number(value: Any) -> bool:
    """Whether it is a single number, of Python or numpy, that takes the dtype of what it meets."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _is_constant(value: Any) -> bool:
    """Whether it can be an attribute: JSON has no infinite numbers, and no NaN."""
    return is_number(value) and math.isfinite(value)


def _plain(value: Any) -> int | float:
    """As a number of Python. A whole one stays whole, so that one too large to be exact is refused, not rounded."""
    return value.item() if isinstance(value, np.generic) else value


def _apply(type: str, inputs: tuple[Any, ...], attrs: dict[str, Any] | None = None) -> Any:
    from backpass_client.functions import apply  # which knows expressions

    return apply(type, inputs, attrs or {})


def _ints(given: tuple[Any, ...]) -> list[int]:
    sizes = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    return [int(n) for n in sizes]


def _over(axis: Any, keepdims: bool) -> dict[str, Any]:
    return {"axes": None if axis is None else _ints((axis,)), "keepdims": keepdims}
