"""The base of layers: a scope of names, and parameters that are declared once in each program."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Self

from backpass_client.builder.build import current_builder
from backpass_client.builder.symbol import Symbol
from backpass_client.builder.types import Dtype, InvalidOp
from backpass_client.op_results import Results

__all__ = ["Layer", "size_of"]


class Layer:
    """A part of a model with parameters of its own. A subclass computes in `forward`; a call runs it in its scope.

    name: the scope; by default the name of the class. A number follows if another layer has it.
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:
        try:
            inspect.signature(cls).bind(*args, **options)
        except TypeError as error:
            hint = "a layer takes the sizes of its input from its input"
            raise TypeError(f"{cls.__name__}{inspect.signature(cls)}: {error}; {hint}") from None
        return super().__new__(cls)

    def __init__(self, name: str | None = None) -> None:
        self.name = name or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        b = current_builder(f"the layer {self.name!r}")
        if (self, "prefix") not in b.shared:
            b.shared[self, "prefix"] = b.new_prefix(self.name)
        with b.at(b.shared[self, "prefix"]):
            found = self.forward(*inputs, **options)
        return Results.of(type(self).__name__, (), found) if type(found) is tuple else found

    def forward(self, *inputs: Any, **options: Any) -> Any:
        raise NotImplementedError

    def part(self, name: str, made: Callable[[], Layer], like: Symbol) -> Layer:
        """The layer `name` inside of this one, made at the first call in a program."""
        shared = like.builder.shared
        if (self, name) not in shared:
            shared[self, name] = made()
        found: Layer = shared[self, name]
        return found

    def parameter(self, name: str, shape: Sequence[int], like: Symbol, init: Any = None) -> Symbol:
        """The parameter `name` of this layer, of the dtype of `like`; declared at the first call."""
        return self._leaf(name, shape, like, init, "parameter")

    def state(self, name: str, shape: Sequence[int], like: Symbol, init: Any) -> Symbol:
        """The state `name` of this layer, likewise."""
        return self._leaf(name, shape, like, init, "state")

    def _leaf(self, name: str, shape: Sequence[int], like: Symbol, init: Any, role: str) -> Symbol:
        b, type = like.builder, Dtype(like.dtype)[tuple(shape)]
        if (self, name) not in b.shared:
            b.shared[self, name] = b.parameter(name, type, init, True, role=role)
        found: Symbol = b.shared[self, name]
        if found.type != type:
            raise InvalidOp(f"{found!r} was declared by another call of its layer, which now needs {list(shape)}")
        return found


def size_of(x: Symbol, axis: int) -> int:
    """The size of x along `axis`. Raises InvalidOp unless it is a number."""
    if not -x.ndim <= axis < x.ndim:
        raise InvalidOp(f"{x!r} has no axis {axis}")
    size = x.shape[axis]
    if not isinstance(size, int):
        raise InvalidOp(f"axis {axis} of {x!r} must have a size that is a number: a parameter depends on it")
    return size
