"""Values of a graph: a tensor, a sequence of tensors, or an optional value."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from core.ir import StackType, TensorType
from core.onnx.reading.worlds import Sample

__all__ = ["Array", "Env", "Initial", "Label", "List", "Maybe", "Origin", "Poison", "Tensor", "Value"]


@dataclass(slots=True, eq=False)
class Label:
    """The name of a variable of the program. Tensors that share a label are values of one variable at different times.

    hint: the wished name. wanted: whether the model itself gives this name.
    """

    hint: str
    wanted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Initial:
    """The first value of a parameter or state of the program.

    array: the first value, which the run may change.
    """

    name: str
    array: np.ndarray
    role: Literal["parameter", "state"]


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The op that computes a tensor."""

    op: str
    inputs: tuple[Any, ...]
    attrs: Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor of the graph.

    value:   its elements, if they are known at import and no step changes them.
    initial: its first value, if it is a parameter or a state.
    samples: its type, and perhaps its elements, for each world; empty if its type is the same in all of them.
    label:   its variable of the program; None for a value that no op has used yet.
    origin:  the op that computes it, if it has a single result.
    """

    type: TensorType
    label: Label | None = None
    value: np.ndarray | None = None
    initial: Initial | None = None
    samples: tuple[Sample | None, ...] = ()
    origin: Origin | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    @property
    def is_float(self) -> bool:
        return self.type.is_float

    @property
    def known(self) -> np.ndarray | None:
        """Its elements as an import sees them: a constant, or the first value of a parameter or state."""
        if self.value is not None:
            return self.value
        return None if self.initial is None else self.initial.array


@dataclass(slots=True, eq=False)
class Array:
    """A tensor array of the program: a sequence whose length the run determines."""

    type: StackType
    label: Label | None = None


@dataclass(slots=True, eq=False)
class List:
    """A sequence whose length is known at import.

    rank: of its tensors, where an empty sequence has to tell it.
    """

    items: list[Tensor] = field(default_factory=list)
    dtype: str = "float32"
    rank: int | None = None


@dataclass(slots=True, eq=False)
class Maybe:
    """An optional value: empty, or a tensor or sequence."""

    held: Any = None


@dataclass(slots=True, eq=False)
class Poison:
    """A value of a refused node. Nodes that read it are skipped, because their problem is the same."""


Value = Tensor | Array | List | Maybe | Poison

Env = MutableMapping[str, Value | None]
"""Values by name; None for an input of a function that the call omits."""
