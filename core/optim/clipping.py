"""Clipping: bounds on the elements or norms of gradients, applied before the optimiser.

A clip is one of `CLIPPINGS`. To add one, declare one more class here: requests, their schemas and the documentation
follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from core.ir.builder import Cotangent, SparseRows, Value
from core.ir.errors import ProgramError
from core.ir.members import Kind, Kinds, Member, check_members, read_members
from core.ir.registry import as_tuple

__all__ = ["CLIPPINGS", "Clip", "Clipping", "GlobalNorm", "Norm", "Values"]


class Clipping(Kind):
    """A kind of clipping."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_members(self, f"clipping by {self.name}", "bad_query")

    @property
    def dense_reason(self) -> str | None:
        """The reason why sparse gradients must become dense first, if they must: clipping would change their zeros."""
        return None

    def apply(self, gradients: Sequence[Value]) -> Sequence[Value]:
        """The clipped gradients of one update, in their order; there is at least one."""
        raise NotImplementedError


CLIPPINGS: Kinds[Clipping] = Kinds()
"""All kinds of clipping by their names in JSON: the values of `by` in a clip."""


@CLIPPINGS.add
@dataclass(frozen=True, slots=True)
class Values(Clipping):
    """Move each element to the nearest number in [min, max]. NaN stays NaN."""

    name = "value"
    max: Annotated[float, Member("Largest element.")]
    min: Annotated[float | None, Member("Smallest element; `-max` by default.")] = None

    def __post_init__(self) -> None:
        check_members(self, "clipping by value", "bad_query")
        if self.low > self.max:
            raise ProgramError("clipping by value needs a min that does not exceed max", "bad_query")

    @property
    def low(self) -> float:
        return -self.max if self.min is None else self.min

    @property
    def dense_reason(self) -> str | None:
        return None if self.low <= 0.0 <= self.max else "clip:value"

    def apply(self, gradients: Sequence[Value]) -> Sequence[Value]:
        return [g.builder.emit("clip", g, min=self.low, max=self.max) for g in gradients]


@CLIPPINGS.add
@dataclass(frozen=True, slots=True)
class Norm(Clipping):
    """Scale each gradient whose 2-norm exceeds max_norm down to that norm. An infinite or NaN norm changes nothing."""

    name = "norm"
    max_norm: Annotated[float, Member("Largest 2-norm, computed in float64.", gt=0)]

    def apply(self, gradients: Sequence[Value]) -> Sequence[Value]:
        return [g.builder.emit("clip_by_norm", g, max_norm=self.max_norm) for g in gradients]


@CLIPPINGS.add
@dataclass(frozen=True, slots=True)
class GlobalNorm(Clipping):
    """Scale all gradients by one factor if their joint 2-norm exceeds max_norm (Pascanu, Mikolov and Bengio 2013).

    An infinite or NaN norm changes nothing.
    """

    name = "global_norm"
    max_norm: Annotated[float, Member("Largest 2-norm, computed in float64.", gt=0)]

    def apply(self, gradients: Sequence[Value]) -> Sequence[Value]:
        return as_tuple(gradients[0].builder.emit("clip_by_global_norm", *gradients, max_norm=self.max_norm))


@dataclass(frozen=True, slots=True)
class Clip:
    """A bound on gradients between the backward pass and the optimizer.

    Answers return gradients and norms as they are before clipping. NaN stays, and so does infinity unless `by` is
    `value`: ask a step to `require_finite`.
    """

    by: Annotated[Clipping, CLIPPINGS, Member("The bounded quantity.")]
    decay_first: Annotated[
        bool,
        Member("Add the optimizer's weight_decay and l1_decay to the gradients before clipping instead of after."),
    ] = False

    def __post_init__(self) -> None:
        check_members(self, "a clip", "bad_query")

    @classmethod
    def read(cls, raw: Any) -> Clip:
        """A clip from its JSON form ``{"by": "value", "max": 1.0}``."""
        return read_members(cls, raw, "a clip", "bad_query")

    def apply(self, gradients: Sequence[Cotangent]) -> list[Cotangent]:
        """The clipped gradients, in their order. Rows missing from a sparse gradient add nothing to a norm."""
        given = [g.values if isinstance(g, SparseRows) else g for g in gradients]
        clipped = self.by.apply(given) if given else []
        return [
            SparseRows(g.rows, c) if isinstance(g, SparseRows) else c for g, c in zip(gradients, clipped, strict=True)
        ]
