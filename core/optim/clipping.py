"""Clipping of gradients before the optimiser gets them: bounds on elements or on norms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from core.ir.builder import Cotangent, SparseRows, Value
from core.ir.errors import ProgramError
from core.ir.registry import as_tuple, convert

__all__ = ["Clip"]

By = Literal["value", "norm", "global_norm"]


@dataclass(frozen=True, slots=True)
class Clip:
    """A bound on gradients.

    by:          value: each element is moved to the nearest number within [min, max]; min is -max by default; NaN stays
                 NaN. norm: each gradient whose 2-norm is above max_norm is scaled down to it. global_norm: if the joint
                 2-norm of all gradients of the update is above max_norm, one factor scales them all down to it
                 (Pascanu, Mikolov and Bengio 2013). Norms are computed in float64. If a norm is not finite, its
                 gradients stay as they are.
    decay_first: add the optimiser's weight_decay and l1_decay to the gradients before clipping instead of after.
    Raises ProgramError (bad_query).
    """

    by: By
    max_norm: float | None = None
    min: float | None = None
    max: float | None = None
    decay_first: bool = False

    def __post_init__(self) -> None:
        if self.by == "value":
            if self.max_norm is not None or self.max is None or not self.low <= self.max < math.inf:
                raise ProgramError("clipping by value needs a finite max, and a min not above it", "bad_query")
        elif self.min is not None or self.max is not None or not 0 < (self.max_norm or 0.0) < math.inf:
            raise ProgramError(f"clipping by {self.by} needs a positive max_norm and nothing else", "bad_query")

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Clip:
        """A clip from its JSON form ``{"by": "value", "max": 1.0}``."""
        kinds = {"by": By, "max_norm": float, "min": float, "max": float, "decay_first": bool}
        if raw.keys() - kinds.keys():
            raise ProgramError(f"a clip may only have the members {', '.join(kinds)}", "bad_query")
        try:
            return cls(**{name: convert(kinds[name], value) for name, value in raw.items()})
        except (ValueError, TypeError) as error:
            raise ProgramError(f"invalid clip: {error}", "bad_query") from None

    @property
    def low(self) -> float:
        assert self.max is not None
        return -self.max if self.min is None else self.min

    @property
    def high(self) -> float:
        assert self.max is not None
        return self.max

    @property
    def dense_reason(self) -> str | None:
        """Why rows of a table must become the whole table first, if they must: zeros would not stay zeros."""
        return "clip:value" if self.by == "value" and not self.low <= 0.0 <= self.high else None

    def apply(self, gradients: Sequence[Cotangent]) -> list[Cotangent]:
        """The clipped gradients, in their order. Rows missing from a sparse gradient add nothing to a norm."""
        given = [g.values if isinstance(g, SparseRows) else g for g in gradients]
        clipped = self._applied(given)
        return [
            SparseRows(g.rows, c) if isinstance(g, SparseRows) else c for g, c in zip(gradients, clipped, strict=True)
        ]

    def _applied(self, gradients: Sequence[Value]) -> list[Value]:
        if not gradients:
            return []
        emit = gradients[0].builder.emit
        if self.by == "value":
            return [emit("clip", g, min=self.low, max=self.high) for g in gradients]
        if self.by == "norm":
            return [emit("clip_by_norm", g, max_norm=self.max_norm) for g in gradients]
        return list(as_tuple(emit("clip_by_global_norm", *gradients, max_norm=self.max_norm)))
