"""Row-sparse gradients with arrays of known size, for executors that cannot hold sizes known only when a step runs.

`merge_rows` returns as many rows as its ids have distinct numbers. This pass replaces it by `merge_rows_padded`, whose
results have room for as many rows as there may be, and follows these results: what is computed for each row is computed
for the room after the last row too, and is cut off from the results of the block. Sums over rows leave it out.

A merge whose rows reach an op that is not listed here stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from core.ir import HOLE, Block, Op, TensorType
from core.ir.builder import BlockBuilder, Value
from core.ir.registry import lookup
from core.ir.stop import poll
from core.ops.common.types import as_dtype

__all__ = ["BoundedRows", "Pick", "bound_rows"]

Pick = tuple[int, int | None]
"""A result of the original block: its number among the results of the new block, and the number of its count, if only
so many of its first rows belong to it."""

Parts = tuple[tuple[int, str], ...]
"""An array of rows, part by part: the room of each part, and the variable of its count."""

FOR_ALL = frozenset({"check_finite", "clip_by_global_norm", "clip_by_norm"})
"""Ops that return each operand, changed, and for which zeros count nothing."""

NEUTRAL = {"reduce_sum": 0, "reduce_all": True, "reduce_any": False}
"""Reductions, and the number that counts nothing."""


@dataclass(frozen=True, slots=True)
class BoundedRows:
    """block: of known sizes, with distinct results. picks: for each result of the original block."""

    block: Block
    picks: tuple[Pick, ...]


def bound_rows(block: Block) -> BoundedRows | None:
    """`block` with room for the rows that it merges; None if it merges none, or all stay as they are."""
    merges = [op for op in block.ops if op.type == "merge_rows"]
    left: set[str] = set()  # merges that stay, by their first result
    while len(left) < len(merges):
        try:
            return _Rewriting(block, frozenset(left)).run()
        except _Refusal as refusal:
            left |= refusal.merges
    return None


class _Refusal(Exception):
    """An op that the rows of these merges cannot reach."""

    def __init__(self, merges: frozenset[str]) -> None:
        super().__init__()
        self.merges = merges


class _Rewriting:
    """parts: arrays of rows with room. sources: the merges that they come from. zero: those with zeros in the room.

    Merges by the same ids have the same rows and counts: those of the first one.
    """

    def __init__(self, block: Block, left: frozenset[str]) -> None:
        self.block, self.left = block, left
        self.b = BlockBuilder()
        self.b.params.extend(block.params)
        self.b.types.update(block.types)
        self.b.stopped.update(block.stopped)
        self.parts: dict[str, Parts] = {}
        self.sources: dict[str, frozenset[str]] = {}
        self.zero: set[str] = set()
        self._valid: dict[Parts, Value] = {}
        self._same: dict[tuple[Any, ...], tuple[str, Parts]] = {}
        self._renamed: dict[str, str] = {}

    def run(self) -> BoundedRows | None:
        for op in self.block.ops:
            poll()
            self.b.location = op.location
            if not self._renamed.keys().isdisjoint(op.inputs):
                op = replace(op, inputs=tuple(self._renamed.get(n, n) for n in op.inputs))
            given = [n for n in op.inputs if n in self.parts]
            if op.type == "merge_rows" and op.outputs[0] not in self.left and self._merges(op, given):
                continue
            if given:
                self._follow(op, given)
            else:
                self.b.ops.append(op)
        if not self.parts:
            return None
        results: dict[str, int] = {}
        picks = []
        for name in (self._renamed.get(n, n) for n in self.block.results):
            parts = self.parts.get(name)
            if parts is not None and len(parts) > 1:
                raise _Refusal(self.sources[name])
            at = results.setdefault(name, len(results))
            picks.append((at, None if parts is None else results.setdefault(parts[0][1], len(results))))
        return BoundedRows(replace(self.b.build(results), index=self.block.index), tuple(picks))

    def _merges(self, op: Op, given: Sequence[str]) -> bool:
        """Replace a merge; False if its sizes are open, or if it merges nothing."""
        x, ids, like = op.inputs
        types = [self.b.types[n] for n in op.inputs]
        if not all(isinstance(t, TensorType) and t.is_static and 0 not in t.shape for t in types):
            return False
        if given and (x not in self.parts or self.parts.get(ids) != self.parts[x] or like in self.parts):
            return False
        kept = (self._mask(self.parts[x]).name,) if given else (HOLE,)
        rows, values = op.outputs
        count = self.b.fresh("count")
        self.b.append(replace(op, type="merge_rows_padded", inputs=(*op.inputs, *kept), outputs=(rows, values, count)))
        room = self.b.types[rows].shape[0]  # type: ignore[union-attr]
        key = (ids, types[2].shape[0], op.attrs["padding_idx"], kept)  # type: ignore[union-attr]
        first, parts = self._same.setdefault(key, (rows, ((room, count),)))
        source = frozenset({rows, first}).union(*(self.sources[n] for n in given))
        self._define([rows, values], parts, source)
        if first != rows:  # the same rows of another table
            self._renamed[rows] = first
        self.zero |= {rows, values}
        return True

    def _follow(self, op: Op, given: Sequence[str]) -> None:
        """Append an op that reads arrays with room."""
        source = frozenset().union(*(self.sources[n] for n in given))
        parts = self.parts[given[0]]
        together = all(self.parts[n] == parts for n in given)
        if op.type == "concat":
            if op.attrs["axis"] != 0 or len(given) < len(op.inputs):
                raise _Refusal(source)
            self.b.append(op)
            self._define(op.outputs, tuple(part for n in op.inputs for part in self.parts[n]), source)
            if self.zero.issuperset(given):
                self.zero.add(op.outputs[0])
        elif op.type == "gather" and given == [op.inputs[1]] and op.attrs["axis"] == 0:
            self.b.append(op)
            self._define(op.outputs, parts, source)
        elif op.type == "scatter_add_like" and together and tuple(given) == op.inputs[:2] and op.attrs["axis"] == 0:
            self.b.append(replace(op, inputs=(self._filled(op.inputs[0], 0), *op.inputs[1:])))
        elif together and lookup(op.type).elementwise and self._aligned(op, given):
            self.b.append(op)
            self._define(op.outputs, parts, source)
            if self._keeps_zero(op):
                self.zero.update(op.outputs)
        elif op.type in FOR_ALL:
            self.b.append(replace(op, inputs=tuple(self._filled(n, 0) for n in op.inputs)))
            for name, out in zip(op.inputs, op.outputs, strict=True):
                if name in self.parts:
                    self._define([out], self.parts[name], source)
        elif op.type in NEUTRAL and (op.attrs["axes"] is None or 0 in self._axes(op)):
            (x,) = op.inputs
            self.b.append(replace(op, inputs=(self._filled(x, NEUTRAL[op.type]),)))
        else:
            raise _Refusal(source)

    def _define(self, names: Sequence[str], parts: Parts, source: frozenset[str]) -> None:
        self.parts.update(dict.fromkeys(names, parts))
        self.sources.update(dict.fromkeys(names, source))

    def _aligned(self, op: Op, given: Sequence[str]) -> bool:
        """Whether the axis of rows is the first one of the result, and no other operand has as many axes there."""
        types = {n: self.b.types[n] for n in op.inputs if n != HOLE}
        if not all(isinstance(t, TensorType) for t in types.values()):
            return False
        rank = max(t.rank for t in types.values())  # type: ignore[union-attr]
        return all(
            t.rank == rank if n in given else t.rank < rank or t.shape[0] == 1  # type: ignore[union-attr]
            for n, t in types.items()
        )

    def _axes(self, op: Op) -> set[int]:
        type = self.b.types[op.inputs[0]]
        assert isinstance(type, TensorType)
        return {a % type.rank for a in op.attrs["axes"]}

    def _keeps_zero(self, op: Op) -> bool:
        """Whether zeros in the room of its only operand stay zeros."""
        type = self.b.types[op.inputs[0]]
        if len(op.inputs) != 1 or op.inputs[0] not in self.zero or not isinstance(type, TensorType):
            return False
        with np.errstate(all="ignore"):
            found: Any = lookup(op.type).body(np, np.zeros(1, as_dtype(type.dtype)), **op.attrs)
        return not np.any(found)

    def _filled(self, name: str, number: float | bool) -> str:
        """The array `name` with `number` in its room, if it is an array of rows."""
        if name not in self.parts or (name in self.zero and number == 0):
            return name
        type = self.b.types[name]
        assert isinstance(type, TensorType)
        valid = self._mask(self.parts[name])
        column = self.b.emit("reshape", valid, shape=(type.shape[0], *(1 for _ in type.shape[1:])))
        filled: Value = self.b.emit("where", column, self.b.value(name), self.b.constant(number, type.dtype))
        return filled.name

    def _mask(self, parts: Parts) -> Value:
        """For each row whether it is one."""
        if parts not in self._valid:
            each = [
                self.b.emit("less_than", self.b.emit("range", end=float(room), dtype="int64"), self.b.value(count))
                for room, count in parts
            ]
            self._valid[parts] = each[0] if len(each) == 1 else self.b.emit("concat", *each, axis=0)
        return self._valid[parts]
