"""The program, as data.

A program is one closed block and the roles of its parameters. A block is a list of ops in single-assignment form; an
op may hold further blocks among its attributes. Blocks are *closed*: they read their own parameters and the outputs
of their own earlier ops, and nothing else. Every pass may rely on that, and must leave it true.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from core.ir.errors import Location

__all__ = [
    "DTYPES",
    "FLOATS",
    "HOLE",
    "INTEGERS",
    "OF_FUNCTION",
    "Block",
    "Op",
    "Program",
    "Role",
    "StackType",
    "TensorType",
    "Type",
    "Variable",
    "blocks_inside",
    "inner_blocks",
    "live",
    "reads",
    "unknown_dtype",
    "with_inner",
]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
DTYPES = ("bool", *INTEGERS, *FLOATS)


def unknown_dtype(given: Any, known: Iterable[str] = DTYPES) -> str:
    """The end of a sentence about a dtype that is none of those `known`; it says why where that is a complex one."""
    complex = isinstance(given, str) and given.lower().startswith(("complex", "c64", "c128"))
    return f"must be one of {', '.join(known)}" + ("; complex numbers are not supported" if complex else "")


HOLE = ""
"""Stands in `Op.inputs` where an optional slot was left empty."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a dense array, written ``float32[2, 3]``; a size that only a run can tell is -1."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('?' if n < 0 else str(n) for n in self.shape)}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def is_static(self) -> bool:
        """Every size is known."""
        return -1 not in self.shape


@dataclass(frozen=True, slots=True)
class StackType:
    """What a loop recorded of one value: one element a trip, in the order of the trips."""

    element: Type

    def __str__(self) -> str:
        return f"stack of {self.element}"

    @property
    def is_float(self) -> bool:
        return self.element.is_float

    @property
    def is_static(self) -> bool:
        return False


Type = TensorType | StackType


@dataclass(frozen=True, slots=True)
class Op:
    """One application: ``outputs = type(*inputs, **attrs)``. An empty optional slot holds `HOLE`."""

    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    location: Location | None = field(default=None, compare=False)


OF_FUNCTION = -1
"""The index of every block of a function: what its blocks and variables are called matters to the function alone."""


@dataclass(frozen=True, slots=True)
class Block:
    """A closed function from parameters to results.

    types:   of every variable of the block, parameters included.
    stopped: variables whose cotangent is dropped, as if they were constants.
    index:   the number that the client gave to the block, OF_FUNCTION for each block of one of the client's functions;
             None for one that is not the client's.
    """

    params: tuple[str, ...]
    ops: tuple[Op, ...]
    results: tuple[str, ...]
    types: Mapping[str, Type]
    stopped: frozenset[str] = frozenset()
    index: int | None = field(default=None, compare=False)

    @property
    def param_types(self) -> tuple[Type, ...]:
        return tuple(self.types[name] for name in self.params)

    @property
    def result_types(self) -> tuple[Type, ...]:
        return tuple(self.types[name] for name in self.results)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


Role = Literal["feed", "parameter", "state", "key"]


@dataclass(frozen=True, slots=True)
class Variable:
    """A parameter of the program's block, and what the client wants with it.

    feed: given with each step. parameter: trained. state: kept between steps, not trained. key: the counter that
    random ops draw from, given by the runtime.
    """

    name: str
    type: TensorType
    role: Role
    trainable: bool = True


@dataclass(frozen=True, slots=True)
class Program:
    """A closed block whose parameters are the client's leaf variables.

    latest: client name -> variable that holds its last version, where that is another one.
    """

    block: Block
    variables: tuple[Variable, ...]
    latest: Mapping[str, str] = field(default_factory=dict)

    def with_role(self, role: Role) -> tuple[Variable, ...]:
        return tuple(v for v in self.variables if v.role == role)

    @property
    def feeds(self) -> tuple[Variable, ...]:
        return self.with_role("feed")

    @property
    def parameters(self) -> tuple[Variable, ...]:
        return self.with_role("parameter")

    @property
    def states(self) -> tuple[Variable, ...]:
        return self.with_role("state")


def inner_blocks(op: Op) -> Iterator[tuple[str, Block]]:
    """The (attribute, block) pairs of a control-flow op; nothing for any other."""
    for name, value in op.attrs.items():
        if isinstance(value, Block):
            yield name, value


def blocks_inside(ops: Iterable[Op]) -> list[Block]:
    """Every block inside `ops`, at any depth, outer ones first."""
    found = [inner for op in ops for _, inner in inner_blocks(op)]
    for each in found:  # grows while it is walked
        found.extend(inner for op in each.ops for _, inner in inner_blocks(op))
    return found


def with_inner(op: Op, change: Callable[[Block], Block]) -> Op:
    """`op` with `change` applied to each of its inner blocks; `op` itself if it has none, as nearly all have none."""
    for value in op.attrs.values():
        if isinstance(value, Block):
            return replace(op, attrs={k: change(v) if isinstance(v, Block) else v for k, v in op.attrs.items()})
    return op


def live(ops: Sequence[Op], results: Iterable[str]) -> tuple[Op, ...]:
    """Those of `ops` that `results` need, in the same order."""
    needed = set(results)
    kept = []
    for op in reversed(ops):
        if not needed.isdisjoint(op.outputs):
            kept.append(op)
            needed.update(op.inputs)
    return tuple(reversed(kept))


def reads(ops: Iterable[Op], results: Iterable[str], known: Mapping[str, object] | Collection[str]) -> list[str]:
    """The names in `known` that `ops` or `results` read, in order of first reading."""
    found: dict[str, None] = {}
    for op in ops:
        found.update((n, None) for n in op.inputs if n in known)
    found.update((n, None) for n in results if n in known)
    return list(found)


def _lines(block: Block, indent: str = "") -> Iterator[str]:
    yield f"{indent}({', '.join(f'{n}: {block.types[n]}' for n in block.params)}) {{"
    for op in block.ops:
        plain = {k: v for k, v in op.attrs.items() if not isinstance(v, Block)}
        attrs = f" {plain}" if plain else ""
        yield f"{indent}  {', '.join(op.outputs)} = {op.type}({', '.join(op.inputs)}){attrs}"
        for name, inner in inner_blocks(op):
            yield f"{indent}    {name}:"
            yield from _lines(inner, indent + "      ")
    yield f"{indent}  -> {', '.join(block.results)}"
    yield f"{indent}}}"
