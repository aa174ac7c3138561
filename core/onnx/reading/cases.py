"""Numbers that depend on a case distinction.

The samples of a value are exact formulas of sizes. An op such as ``minimum`` or ``floor_div`` has cases that the sample
sizes may not show: ``min(size, 64)`` is the size in one run and 64 in another. So the result of such an op is a size of
its own, with numbers of its own, unless bounds or divisors that hold in every run decide the case. Equal ops on equal
numbers have equal results. A comparison that nothing decides has no sample elements.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from core.ir import TensorType, Type
from core.onnx.reading.case_rules import RULES, difference, exactly, fact_of_case, joined_fact
from core.onnx.reading.columns import (
    Samples,
    axes_of,
    axis_of,
    columns,
    equal,
    filled,
    values_of,
    with_size,
    with_values,
)
from core.onnx.reading.worlds import SIZE, WORLDS, Column, Sample, Sizes, number_of, same

__all__ = ["fitted", "settled"]

_MOST = 64
"""Most elements of a value whose cases are examined one by one."""
_END = 2**31 - 1
"""A position from which on an end of a slice means the end of the axis."""
_MOVES = frozenset({
    "assign", "barrier", "broadcast_to", "concat", "diagonal", "expand", "expand_as", "fill_zeros_like", "flip",
    "full_like", "gather", "mask_gradient", "merge_axes", "ones_like", "pad", "pad_constant", "repeat", "reshape",
    "reshape_as", "roll", "shape", "slice", "split", "squeeze", "stack", "stop_gradient", "tile", "transpose", "tril",
    "triu", "unflatten", "unsqueeze", "unstack", "where", "zeros_like", "dynamic_expand", "dynamic_fill",
    "dynamic_reshape", "dynamic_slice",
})  # fmt: skip
"""Ops whose elements are constants or elements of their operands, chosen by shapes and by choosing operands."""
_CHOOSING = {"gather": slice(1, None), "dynamic_slice": slice(1, None), "where": slice(0, 1)}
"""The operands that choose elements."""
_TOTALS = {"reduce_sum": "add", "reduce_prod": "mul"}
_SUMS = frozenset({
    "concat", "dynamic_expand", "dynamic_fill", "merge_axes", "pad", "pad_constant", "repeat", "reshape", "split",
    "tile", "unflatten",
})  # fmt: skip
"""Ops whose sizes are exact formulas of the sizes and elements of their operands."""
_CUTS = frozenset({"crop", "dynamic_range", "dynamic_reshape", "dynamic_slice", "slice", "strided_slice"})
"""Ops whose sizes can equal a size of an operand in all worlds but not in every run."""


def settled(
    sizes: Sizes,
    op: str,
    attrs: Mapping[str, Any],
    operands: Sequence[Samples | None],
    found: Sequence[Type],
    worlds: Sequence[Sequence[Sample | None] | None],
) -> list[list[Sample | None]]:
    """The samples of each result, with each number of a case distinction as a size of its own.

    operands: their samples, None for an omitted one and for a tensor array.
    found:    the types of the results.
    worlds:   the samples of all results in each world, as the op computes them there.
    """
    results = []
    for i, type in enumerate(found):
        samples: Samples = [None if world is None else world[i] for world in worlds]
        if isinstance(type, TensorType) and any(s is not None for s in samples):
            each = _Op(sizes, op, attrs, operands, i)
            samples = each.elements(each.sized(type, samples))
        results.append(list(samples))
    return results


def fitted(sizes: Sizes, operands: Sequence[Samples | None]) -> list[Samples | None] | None:
    """The operands of an op that fits in no world, with each size ``min(size, constant)`` as the size itself.

    An op that needs both to fit fails in the run unless they are equal. None if no operand has such a size.
    """
    changed = False
    found: list[Samples | None] = []
    for samples in operands:
        for axis, column in enumerate(axes_of(samples)):
            whole = sizes.unbounded(column)
            if whole is not column and samples is not None:
                changed = True
                samples = with_size(samples, axis, whole)
        found.append(samples)
    return found if changed else None


class _Op:
    """An op on samples. result: the number of the result."""

    def __init__(
        self, sizes: Sizes, op: str, attrs: Mapping[str, Any], operands: Sequence[Samples | None], result: int
    ) -> None:
        self._sizes = sizes
        self._op = op
        self._attrs = attrs
        self._operands = operands
        self._key = (op, repr(sorted(attrs.items())), result)

    # --- sizes -------------------------------------------------------------------------------------------------

    def sized(self, type: TensorType, samples: Samples) -> Samples:
        """The samples of the result with its open sizes settled."""
        for axis, n in enumerate(type.shape):
            column = axis_of(samples, axis)
            known = [m for m in column if m is not None]
            if n == -1 and known and -1 not in known and not self._is_exact(axis, column):
                samples = with_size(samples, axis, self._size_of_case(axis))
        return samples

    def _is_exact(self, axis: int, column: Column) -> bool:
        """Whether a size is an exact formula of sizes and elements of the operands."""
        if self._op in _SUMS or (self._op not in _CUTS and self._is_of_operand(column)):
            return True
        if self._op == "dynamic_reshape":  # a negative size stands for another one
            targets = self._vector(1)
            return targets is not None and all(number_of(t) == -1 or self._sizes.at_least(t, 0) for t in targets)
        if self._op == "dynamic_range":
            return self._counts_all()
        if self._op in ("slice", "dynamic_slice"):
            cut = self._cut(axis)
            return cut is None or self._keeps(axis_of(self._operands[0] or (), axis), *cut)
        return self._is_constant(elements=False)

    def _is_of_operand(self, column: Column) -> bool:
        """Whether a size is a size of an operand in all worlds."""
        known = [(w, n) for w, n in enumerate(column) if n is not None]
        return any(all(each[w] == n for w, n in known) for x in self._operands for each in axes_of(x))

    def _counts_all(self) -> bool:
        """Whether a range has as many elements as its end is above its start."""
        ends = [self._vector(i) for i in range(3)]
        first, last, by = (None if each is None else each[0] for each in ends)
        if first is None or last is None or by is None:
            return False
        if None not in (number_of(first), number_of(last), number_of(by)):
            return True
        return number_of(by) == 1 and self._sizes.at_least(difference(last, first), 0)

    def _cut(self, axis: int) -> list[Column] | None:
        """Start, end and step of the slice of an axis; None if the axis is not cut."""
        rank = len(axes_of(self._operands[0]))
        axes = [a % rank for a in self._attrs["axes"]]
        if axis not in axes:
            return None
        place = axes.index(axis)
        if self._op == "slice":
            steps = self._attrs.get("steps") or [1] * len(axes)
            return [(int(each[place]),) * WORLDS for each in (self._attrs["starts"], self._attrs["ends"], steps)]
        vectors = [self._vector(i) for i in (1, 2, 3)]
        return [(None,) * WORLDS if each is None else each[place] for each in vectors]

    @staticmethod
    def _keeps(size: Column, start: Column, end: Column, step: Column) -> bool:
        """Whether a slice has all elements of the axis, or is a slice of a known size between known positions."""
        numbers = [number_of(each) for each in (size, start, end, step)]
        if None not in numbers:
            return True
        _, first, last, by = numbers
        if by == 1 and first == 0:
            return same(end, size) or (last is not None and last >= _END)
        whole = first is not None and (first == -1 or first >= _END) and last is not None and last <= -_END
        return by == -1 and whole

    def _size_of_case(self, axis: int) -> Column:
        cut = self._cut(axis) if self._op in ("slice", "dynamic_slice") else None
        if cut is None:
            return self._sizes.case((*self._key, axis, *self._inputs()), SIZE)
        own = axis_of(self._operands[0] or (), axis)
        found = self._sizes.case(("slice", own, *cut), SIZE)
        start, end, step = cut
        if number_of(start) == 0 and number_of(step) == 1:
            self._sizes.bound(found, own, end)
        return found

    def _inputs(self) -> Iterator[Hashable]:
        """All types and elements of the operands."""
        for samples in self._operands:
            yield len(samples or ())
            for s in samples or ():
                yield None if s is None else (s.type, None if s.value is None else s.value.tobytes())

    def _is_constant(self, elements: bool = True) -> bool:
        """Whether no operand differs between the worlds. elements: whether all elements must be known."""
        for samples in self._operands:
            known = [s for s in samples or () if s is not None]
            values = [s.value for s in known if s.value is not None]
            if any(s.type != known[0].type for s in known) or any(not equal(v, values[0]) for v in values):
                return False
            if len(values) < len(known) and (elements or values):
                return False
        return True

    def _vector(self, place: int) -> list[Column] | None:
        """The elements of a scalar or vector; None if they are not known."""
        values = values_of(self._operands[place]) if place < len(self._operands) else []
        known = [v for v in values if v is not None]
        if not known or known[0].ndim > 1 or any(v.shape != known[0].shape for v in known):
            return None
        return list(columns(values))

    # --- elements ----------------------------------------------------------------------------------------------

    def elements(self, samples: Samples) -> Samples:
        """The samples of the result with its elements settled."""
        values = values_of(samples)
        if self._op == "where" and all(v is None for v in values):
            values = self._either(samples)
        known = [v for v in values if v is not None]
        if not known:
            return samples
        if len(known) < 2 or any(v.shape != known[0].shape for v in known):
            return with_values(samples, [None] * WORLDS)
        if self._op == "shape":
            for column in columns(values):
                self._sizes.learn(column, SIZE)
        if self._is_constant() or (self._op in _MOVES and self._chooses_alike()):
            return with_values(samples, values)
        if known[0].size > _MOST:
            return with_values(samples, [None] * WORLDS)
        return with_values(samples, self._by_element(values, known[0]))

    def _chooses_alike(self) -> bool:
        """Whether the operands that choose elements are the same in all worlds."""
        for samples in self._operands[_CHOOSING.get(self._op, slice(0))]:
            known = [v for v in values_of(samples) if v is not None]
            if any(not equal(v, known[0]) for v in known):
                return False
        return True

    def _either(self, samples: Samples) -> list[np.ndarray | None]:
        """The elements of a selection whose condition is open: those that both sides have, and new numbers."""
        sides = [values_of(each) for each in self._operands[1:]]
        types = {s.type for s in samples if s is not None}
        known = [s is not None and all(side and side[w] is not None for side in sides) for w, s in enumerate(samples)]
        if len(types) > 1 or sum(known) < 2:
            return [None] * WORLDS
        shape = types.pop().shape
        if math.prod(shape) > _MOST:
            return [None] * WORLDS
        like = next(v for v in sides[0] if v is not None)
        if like.dtype.kind == "b":
            return [None] * WORLDS
        pairs = zip(*(columns(side, shape) for side in sides), strict=True)
        found = [a if same(a, b) else self._sizes.fresh_number() for a, b in pairs]
        return filled(found, np.empty(shape, like.dtype), known)

    def _by_element(self, values: list[np.ndarray | None], like: np.ndarray) -> list[np.ndarray | None]:
        rule = self._rule(like)
        operands = [list(columns(values_of(each), like.shape)) for each in self._operands] if rule else []
        found: list[Column] = []
        for i, column in enumerate(columns(values)):
            given = [each[i] for each in operands]
            if rule is not None:
                settled = rule(self._sizes, column, given)
            else:
                settled = self._total(column) if self._op in _TOTALS else None
            if settled is None and like.dtype.kind == "b":
                return [None] * WORLDS
            found.append(self._element_of_case(i, given) if settled is None else settled)
        return filled(found, like, [v is not None for v in values])

    def _rule(self, like: np.ndarray) -> Any:
        """The rule for single elements; None if the elements do not depend on single elements of all operands."""
        op = self._op
        if op == "cast":
            given = next(v for v in values_of(self._operands[0]) if v is not None)
            rounds = given.dtype.kind not in "iub" and like.dtype.kind in "iu"
            op = "truth" if like.dtype.kind == "b" else "trunc" if rounds else "kept"
        return RULES.get(op) if all(any(v is not None for v in values_of(x)) for x in self._operands) else None

    def _element_of_case(self, place: int, given: list[Column]) -> Column:
        sizes = self._sizes
        key: tuple[Hashable, ...] = (*self._key, *given) if given else (*self._key, place, *self._inputs())
        found = sizes.case(key, fact_of_case(self._op, [sizes.fact(each) for each in given]))
        if self._op == "minimum":
            sizes.bound(found, *given)
        if self._op in ("mod", "fmod") and all(sizes.at_least(each, 0) for each in given):
            sizes.remainder(found, given[0])
        return found

    def _total(self, column: Column) -> Column | None:
        """The sum or product of a vector, or None if its elements are not known or the number overflows."""
        op, parts = _TOTALS[self._op], self._vector(0)
        if not parts:
            return None
        total: Column | None = parts[0]
        fact = self._sizes.fact(parts[0])
        for each in parts[1:]:
            total = None if total is None else exactly(op, total, each)
            fact = joined_fact(op, fact, self._sizes.fact(each))
        if total != column:
            return None
        self._sizes.learn(column, fact)
        return column
