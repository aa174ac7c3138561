"""The program as data: frozen dataclasses for types, ops, blocks, variables and programs.

A program is one closed block and the roles of its parameters. A block is a list of ops in single-assignment form; a
control-flow op holds inner blocks among its attributes. Blocks are *closed*: a block reads only its own parameters and
the outputs of its own earlier ops. Every pass may rely on closed blocks and must return closed blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from core.ir.errors import Location
from core.ir.stop import poll

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
    """The end of an error message about a dtype outside `known`, with a note if it is a complex dtype."""
    complex = isinstance(given, str) and given.lower().startswith(("complex", "c64", "c128"))
    return f"must be one of {', '.join(known)}" + ("; complex numbers are not supported" if complex else "")


HOLE = ""
"""The entry of `Op.inputs` for an empty optional slot."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a dense array, printed as ``float32[2, 3]``. A size known only at run time is -1."""

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


@dataclass(frozen=True, slots=True, eq=False)
class StackType:
    """A stack of values that a loop recorded: one element for each trip, in the order of the trips.

    array: the type of the arrays in the innermost stacks. depth: the number of stacks in each other. These two identify
    the type, so that a comparison takes the same time at any depth.
    """

    element: Type
    array: TensorType = field(init=False, repr=False)
    depth: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        inner = self.element
        array, depth = (inner.array, inner.depth) if isinstance(inner, StackType) else (inner, 0)
        object.__setattr__(self, "array", array)
        object.__setattr__(self, "depth", depth + 1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StackType):
            return NotImplemented
        return self.depth == other.depth and self.array == other.array

    def __hash__(self) -> int:
        return hash((self.depth, self.array))

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
    """One application of an op: ``outputs = type(*inputs, **attrs)``. An empty optional slot holds `HOLE`."""

    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    location: Location | None = field(default=None, compare=False)


OF_FUNCTION = -1
"""The index of every block inside a function. Names and block numbers of a function are private to it."""


@dataclass(frozen=True, slots=True)
class Block:
    """A closed function from parameters to results.

    types:   the type of every variable of the block, parameters included.
    stopped: variables with a stopped gradient: differentiation treats them as constants.
    index:   the client's number of the block; OF_FUNCTION for a block inside a client's function; None for a block
             that no client wrote.
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
    """A parameter of the program's block and its role.

    feed: an input of each step. parameter: a trained array. state: persists between steps, but is not trained.
    key: the counter from which random ops draw; the runtime supplies it.
    """

    name: str
    type: TensorType
    role: Role
    trainable: bool = True


@dataclass(frozen=True, slots=True)
class Program:
    """A closed block whose parameters are the client's leaf variables.

    latest:  client name -> variable of its last version, if the two names differ.
    aliases: client name -> its name in ONNX models, if the two names differ.
    sizes:   feed -> a name for each of its sizes, None for sizes without one. Names say nothing about a run.
    cut:     larger array, a leaf variable of the compiler -> the feed that ops of the block cut from it.
    """

    block: Block
    variables: tuple[Variable, ...]
    latest: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    cut: Mapping[str, str] = field(default_factory=dict)

    @property
    def roles(self) -> dict[str, Role]:
        """The client's leaf variables and their roles. A feed that is cut from another variable is one of them."""
        return {self.cut.get(v.name, v.name): v.role for v in self.variables}

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
    """The (attribute, block) pairs of a control-flow op; empty for any other op."""
    for name, value in op.attrs.items():
        if isinstance(value, Block):
            yield name, value


def blocks_inside(ops: Iterable[Op]) -> list[Block]:
    """Every block inside `ops`, at any depth, outer blocks first."""
    found = [inner for op in ops for _, inner in inner_blocks(op)]
    for each in found:  # the list grows during the loop
        poll()
        found.extend(inner for op in each.ops for _, inner in inner_blocks(op))
    return found


def with_inner(op: Op, change: Callable[[Block], Block]) -> Op:
    """`op` with `change` applied to each of its inner blocks."""
    poll()  # passes call this function for each op
    for value in op.attrs.values():  # without inner blocks, the common case, the op itself is returned: no copy
        if isinstance(value, Block):
            return replace(op, attrs={k: change(v) if isinstance(v, Block) else v for k, v in op.attrs.items()})
    return op


def live(ops: Sequence[Op], results: Iterable[str]) -> tuple[Op, ...]:
    """The ops that compute `results`, directly or indirectly, in the same order."""
    needed = set(results)
    kept = []
    for op in reversed(ops):
        poll()
        if not needed.isdisjoint(op.outputs):
            kept.append(op)
            needed.update(op.inputs)
    return tuple(reversed(kept))


def reads(ops: Iterable[Op], results: Iterable[str], known: Mapping[str, object] | Collection[str]) -> list[str]:
    """The names in `known` that `ops` or `results` read, in order of first use."""
    found: dict[str, None] = {}
    for op in ops:
        found.update((n, None) for n in op.inputs if n in known)
    found.update((n, None) for n in results if n in known)
    return list(found)


def _lines(block: Block, indent: str = "") -> Iterator[str]:
    yield f"{indent}({', '.join(f'{n}: {block.types[n]}' for n in block.params)}) {{"
    for op in block.ops:
        constants = {k: v for k, v in op.attrs.items() if not isinstance(v, Block)}
        attrs = f" {constants}" if constants else ""
        yield f"{indent}  {', '.join(op.outputs)} = {op.type}({', '.join(op.inputs)}){attrs}"
        for name, inner in inner_blocks(op):
            yield f"{indent}    {name}:"
            yield from _lines(inner, indent + "      ")
    yield f"{indent}  -> {', '.join(block.results)}"
    yield f"{indent}}}"
