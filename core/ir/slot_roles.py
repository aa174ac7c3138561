"""The roles of parameters that an op declares in its signature: ``def layer_norm(x, scale: Scale = None, ...)``.

A role says what an input is for where its values could not tell: the first values of a parameter depend on it
(core.optim.parameter_roles).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

__all__ = ["Divisor", "Factor", "Role", "Scale", "Shift", "Slope", "SlotRole", "Spread", "Table", "Term", "role_of"]

Role = Literal["scale", "shift", "spread", "table", "slope", "divisor", "factor", "term"]


@dataclass(frozen=True, slots=True)
class SlotRole:
    """The role of an input slot, as an annotation of the kernel's parameter."""

    role: Role


Scale = Annotated[Any, SlotRole("scale")]
"""Multiplies normalised values."""

Shift = Annotated[Any, SlotRole("shift")]
"""Is added to normalised values, or is their running mean."""

Spread = Annotated[Any, SlotRole("spread")]
"""A variance that values are divided by the root of."""

Table = Annotated[Any, SlotRole("table")]
"""A table whose rows are looked up."""

Slope = Annotated[Any, SlotRole("slope")]
"""The slope of an activation for negative inputs."""

Divisor = Annotated[Any, SlotRole("divisor")]
"""Divides."""

Factor = Annotated[Any, SlotRole("factor")]
"""An operand of a product: a scale if it is a vector that the product broadcasts."""

Term = Annotated[Any, SlotRole("term")]
"""An operand of a sum: a bias if it is a vector that the sum broadcasts."""


def role_of(annotation: Any) -> Role | None:
    """The role in the annotation of a kernel's parameter."""
    return next((each.role for each in get_args(annotation)[1:] if isinstance(each, SlotRole)), None)
