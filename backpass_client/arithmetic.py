"""Python's operators and a few array methods, each defined as an op of the catalogue."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Never, NoReturn, TypeVar

import numpy as np

from backpass_client.indexing import index_ops

__all__ = ["Arithmetic", "is_number"]

R = TypeVar("R")


class Arithmetic(ABC, Generic[R]):
    """The operators of an array-like class. R: the class of their results.

    A subclass says how an op is applied (`_apply`) and what its shape is. It must derive from this class, so that an
    op's output has the operators too.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def ndim(self) -> int: ...

    @property
    @abstractmethod
    def _known_rank(self) -> int | None:
        """The number of axes, if it is known without a request."""

    @property
    @abstractmethod
    def _known_dtype(self) -> str | None:
        """The name of the dtype, if it is known without a request."""

    @abstractmethod
    def _apply(self, type: str, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        """The output of the op `type`; `self` is one of the `inputs`."""

    def _op(self, type: str, *others: Any, **attrs: Any) -> Any:
        return self._apply(type, (self, *others), attrs)

    # --- operators -----------------------------------------------------------------------------------------------

    def __neg__(self) -> R:
        return self._op("neg")

    def __abs__(self) -> R:
        return self._op("abs")

    def __add__(self, other: Any) -> R:
        return self._op("scale", bias=_python_number(other)) if _is_constant(other) else self._op("add", other)

    def __sub__(self, other: Any) -> R:
        if _is_constant(other) and self._has_negatives(other):
            return self._op("scale", bias=-_python_number(other))
        return self._op("sub", other)

    def __mul__(self, other: Any) -> R:
        return self._op("scale", scale=_python_number(other)) if _is_constant(other) else self._op("mul", other)

    def __truediv__(self, other: Any) -> R:
        return self._op("div", other)

    def __pow__(self, other: Any) -> R:
        return self._op("square") if is_number(other) and other == 2 else self._op("pow", other)

    def __matmul__(self, other: Any) -> R:
        return self._op("matmul", other)

    def __floordiv__(self, other: Any) -> R:
        return self._op("floor_div", other)

    def __mod__(self, other: Any) -> R:
        return self._op("mod", other)

    def __radd__(self, other: Any) -> R:
        return self + other if _is_constant(other) else self._apply("add", (other, self), {})

    def __rsub__(self, other: Any) -> R:
        if _is_constant(other) and self._has_negatives(other):
            return self._op("scale", scale=-1.0, bias=_python_number(other))
        return self._apply("sub", (other, self), {})

    def _has_negatives(self, other: Any) -> bool:
        """Whether the dtype is known to have negative numbers; a number `other` with a fraction needs such a dtype."""
        dtype = self._known_dtype
        return isinstance(other, float | np.floating) if dtype is None else not dtype.startswith("uint")

    def __rmul__(self, other: Any) -> R:
        return self * other if _is_constant(other) else self._apply("mul", (other, self), {})

    def __rtruediv__(self, other: Any) -> R:
        return self._apply("div", (other, self), {})

    def __rpow__(self, other: Any) -> R:
        return self._apply("pow", (other, self), {})

    def __rmatmul__(self, other: Any) -> R:
        return self._apply("matmul", (other, self), {})

    def __rfloordiv__(self, other: Any) -> R:
        return self._apply("floor_div", (other, self), {})

    def __rmod__(self, other: Any) -> R:
        return self._apply("mod", (other, self), {})

    # Sets and dictionaries need expressions that compare by identity.

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        """Whether both are the same object. Raises TypeError for numbers: the op `equal` compares values."""
        if is_number(other) or isinstance(other, bool):
            raise TypeError(f"`==` compares identities: write bp.equal(x, {other!r}), which compares values")
        return True if self is other else NotImplemented

    def __lt__(self, other: Any) -> R:
        return self._op("less_than", other)

    def __le__(self, other: Any) -> R:
        return self._op("less_equal", other)

    def __gt__(self, other: Any) -> R:
        return self._op("greater_than", other)

    def __ge__(self, other: Any) -> R:
        return self._op("greater_equal", other)

    def __and__(self, other: Any) -> R:
        return self._op("logical_and", other)

    def __or__(self, other: Any) -> R:
        return self._op("logical_or", other)

    def __xor__(self, other: Any) -> R:
        return self._op("logical_xor", other)

    def __invert__(self) -> R:
        return self._op("logical_not")

    def __rand__(self, other: Any) -> R:
        return self._apply("logical_and", (other, self), {})

    def __ror__(self, other: Any) -> R:
        return self._apply("logical_or", (other, self), {})

    def __rxor__(self, other: Any) -> R:
        return self._apply("logical_xor", (other, self), {})

    # --- parts and shapes ----------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> R:
        """The part at `index`: see `index_ops`. An expression in an index holds positions."""
        return self._part(index, lambda axis: self.shape[axis])

    def _part(self, index: Any, size: Callable[[int], Any], fixed: bool = False) -> Any:
        part: Any = self
        for type, others, attrs in index_ops(
            index, lambda: self.ndim, size, fixed, rank=self._known_rank, operand=Arithmetic
        ):
            part = part._op(type, *others, **attrs)
        return part

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise TypeError(
            "a value does not change in place: x = bp.where(mask, value, x), bp.index_put and bp.scatter make new ones"
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[R]:
        return (self[i] for i in range(len(self)))

    def reshape(self, *shape: Any) -> R:
        """The same elements in another shape, in row-major order; one size may be -1."""
        return self._op("reshape", shape=_ints(shape))

    def transpose(self, *axes: Any) -> R:
        """Permute the axes to the order `axes`; without arguments, reverse them."""
        return self._op("transpose", axes=_ints(axes)) if axes else self._op("transpose")

    @property
    def T(self) -> R:
        """With the axes in reverse order."""
        return self.transpose()

    def sum(self, axis: Any = None, keepdims: bool = False, **others: Never) -> R:
        """The sum over `axis`, a number or a tuple of them; by default over all axes."""
        _check_none("sum", others)
        return self._op("reduce_sum", **_over(axis, keepdims))

    def mean(self, axis: Any = None, keepdims: bool = False, **others: Never) -> R:
        """The mean over `axis`, as in `sum`."""
        _check_none("mean", others)
        return self._op("reduce_mean", **_over(axis, keepdims))

    def max(self, axis: Any = None, keepdims: bool = False, **others: Never) -> R:
        """The largest element along `axis`, as in `sum`; equal ones share the gradient."""
        _check_none("max", others)
        return self._op("reduce_max", **_over(axis, keepdims))

    def min(self, axis: Any = None, keepdims: bool = False, **others: Never) -> R:
        """The smallest element along `axis`, as in `sum`; equal ones share the gradient."""
        _check_none("min", others)
        return self._op("reduce_min", **_over(axis, keepdims))


def is_number(value: Any) -> bool:
    """Whether `value` is a scalar of Python or numpy, which takes the dtype of the other operand."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _is_constant(value: Any) -> bool:
    """Whether `value` can be an attribute: JSON has no infinity and no NaN."""
    return is_number(value) and math.isfinite(value)


def _python_number(value: Any) -> int | float:
    """`value` as a Python number. An integer stays an integer: the service refuses one too large to be exact."""
    return value.item() if isinstance(value, np.generic) else value


def _check_none(method: str, others: Mapping[str, Any]) -> None:
    """Raises TypeError for an argument that reductions have in other libraries, such as dim."""
    for name in others:
        raise TypeError(f"{method} has no argument {name!r}: write x.{method}(axis, keepdims)")


def _ints(given: tuple[Any, ...]) -> list[int]:
    sizes = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    return [int(n) for n in sizes]


def _over(axis: Any, keepdims: bool) -> dict[str, Any]:
    return {"axes": None if axis is None else _ints((axis,)), "keepdims": keepdims}
