"""Elementwise work that a lowering writes itself, in terms of the ops of the catalogue."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from core.ir import TensorType
from core.ir.errors import Location
from core.ir.registry import lookup
from core.ops.common.types import as_dtype
from core.plan.entries import Entry, Uniform
from core.plan.lowering import Lowering
from core.plan.reduce import reduced
from core.plan.unsupported import Unsupported

__all__ = ["Maker"]

NUMPY: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}


class Maker:
    """Applies elementwise ops by name: ``of("mul", x, y)``. Operands broadcast; types are inferred."""

    def __init__(self, low: Lowering) -> None:
        self.low = low

    def __call__(self, op: str, *entries: Entry, **attrs: Any) -> Entry:
        """The result of elementwise op `op`. Raises Unsupported if the target has no code for it."""
        spec = lookup(op)
        given = spec.complete(attrs)
        types = [TensorType(e.shape, e.dtype) for e in entries]
        assert spec.infer_rule is not None
        type = spec.infer_rule(*types, **given)
        return self.low.apply(op, given, entries, [e.dtype for e in entries], type)

    def number(self, value: Any, dtype: str = "float64") -> Uniform:
        return Uniform(value, dtype, ())

    def integer(self, value: int) -> Uniform:
        """A position, or a size: an int64 scalar."""
        return Uniform(value, "int64", ())

    def is_position(self, x: Entry, count: Entry) -> Entry:
        """Whether int64 numbers are positions among `count` elements: from 0 to `count` - 1."""
        return self("logical_and", self("greater_equal", x, self.integer(0)), self("less_than", x, count))

    def add(self, x: Entry, y: Entry) -> Entry:
        return self("add", x, y)

    def mul(self, x: Entry, y: Entry) -> Entry:
        return self("mul", x, y)

    def where(self, condition: Entry, x: Entry, y: Entry) -> Entry:
        return self("where", condition, x, y)

    def cast(self, x: Entry, dtype: str) -> Entry:
        return x if x.dtype == dtype else self("cast", x, dtype=dtype)

    def reduce(self, kind: str, x: Entry, axes: frozenset[int]) -> Entry:
        """`x` reduced over `axes`, which keep size 1. kind: sum, prod, max, min, and, or."""
        shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
        if isinstance(x, Uniform):
            count = math.prod(x.shape[i] for i in axes)
            with np.errstate(all="ignore"):
                whole = np.broadcast_to(np.asarray(x.number, as_dtype(x.dtype)), (count,))
                number = np.asarray(NUMPY[kind].reduce(whole)).astype(whole.dtype)[()]
            return Uniform(number, x.dtype, shape)
        return reduced(self.low, kind, x, axes, TensorType(shape, x.dtype))

    def check(self, fine: Entry, code: str, message: str, location: Location | None) -> None:
        """Append a check: the run fails with this error unless `fine`, a bool, is true everywhere."""
        if isinstance(fine, Uniform):
            if not bool(fine.number):
                raise Unsupported("a check that always fails")
            return
        fusion, axes = self.low.join(fine.shape, [fine])
        number = self.low.shared.check(code, message, location)
        fusion.check(self.low.argument(fusion, fine, fine.shape, axes), self.low.shared.error, number)
