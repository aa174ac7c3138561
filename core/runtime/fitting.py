"""Sizes that the types of an op leave open: the run refuses those that type inference refuses where it knows them.

A kernel alone may take sizes that do not fit: numpy repeats a single row, and reads nothing of an array without rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.ir import TensorType, Type
from core.ir.builder import output_types
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import OpSpec

__all__ = ["FittingSizes", "fitting_sizes"]

MOST = 64
"""Shapes of operands that are remembered as fitting, for each op."""


@dataclass(frozen=True, slots=True, eq=False)
class FittingSizes:
    """The sizes of the operands of one op, of which some are open.

    types: of the operands; None for an empty optional slot.
    found: the shapes that fit.
    """

    spec: OpSpec
    types: tuple[Type | None, ...]
    attrs: Mapping[str, Any]
    found: set[tuple[Any, ...]] = field(default_factory=set)

    def check(self, operands: Sequence[Any]) -> None:
        """Raises ExecutionError (shape_mismatch) if inference refuses the shapes of `operands`."""
        shapes = tuple([getattr(x, "shape", None) for x in operands])
        if shapes in self.found:
            return
        given = [
            TensorType(tuple(shape), type.dtype) if isinstance(type, TensorType) and shape is not None else type
            for shape, type in zip(shapes, self.types, strict=True)
        ]
        try:
            output_types(self.spec, tuple(given), self.attrs)
        except ProgramError as error:
            raise ExecutionError(f"{self.spec.name}: {error}", "shape_mismatch") from error
        if len(self.found) >= MOST:
            self.found.clear()
        self.found.add(shapes)


def fitting_sizes(spec: OpSpec, types: Sequence[Type | None], attrs: Mapping[str, Any]) -> FittingSizes | None:
    """A check that the open sizes of the operands of an op fit; None if all are known, or if it runs inner blocks."""
    opened = any(isinstance(type, TensorType) and not type.is_static for type in types)
    return FittingSizes(spec, tuple(types), attrs) if opened and spec.kind != "control" else None
