"""The records of a JSON program: what `document.parse` gives, and the other files of this package read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from core.ir.errors import Location

__all__ = ["Alone", "RawBlock", "RawFunction", "RawOp", "RawProgram", "RawVar", "place_of"]


@dataclass(frozen=True, slots=True)
class RawVar:
    """One declaration of a variable. A temporary may omit shape and dtype. `stack_depth` counts nested stacks."""

    name: str
    dtype: str | None
    shape: tuple[int, ...] | None
    role: str
    trainable: bool
    stop_gradient: bool
    stack_depth: int
    pointer: str


class Alone(tuple[str, ...]):
    """The name in a slot that the document gives as a text, and not in a list."""

    __slots__ = ()


def place_of(slot: str, names: tuple[str, ...], i: int) -> str:
    """The end of the JSON pointer to name `i` of a slot. slot: that of the slot, such as ``inputs/x``."""
    return slot if isinstance(names, Alone) else f"{slot}/{i}"


@dataclass(frozen=True, slots=True)
class RawOp:
    """One op of the document. Each slot is a tuple of names."""

    type: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    attrs: Mapping[str, Any]
    location: Location
    pointer: str

    def read_names(self) -> list[str]:
        return [name for names in self.inputs.values() for name in names]

    def written_names(self) -> list[str]:
        return [name for names in self.outputs.values() for name in names]


@dataclass(frozen=True, slots=True)
class RawBlock:
    """One block of the document. `params` and `results` are None in the open form."""

    idx: int
    parent_idx: int
    vars: Mapping[str, RawVar]
    ops: tuple[RawOp, ...]
    params: tuple[str, ...] | None
    results: tuple[str, ...] | None
    pointer: str


@dataclass(frozen=True, slots=True)
class RawProgram:
    """All blocks by index. `closed` marks the closed form, which the service writes."""

    blocks: tuple[RawBlock, ...]
    closed: bool
    names: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, RawFunction] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RawFunction:
    """A function of a program, called by `call` ops. A result of a gradient may be None."""

    program: RawProgram
    results: tuple[str | None, ...]
    gradient: str | None
    pointer: str
