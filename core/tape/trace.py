"""The list of a tape: ops in their places, leaves, values, and who uses what."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from core.ir import Block, Op, Program, TensorType, Type, Variable
from core.ir.errors import ProgramError
from core.ops.common.types import as_dtype
from core.tape.reader import pointer_of
from core.wire import KEY, Limits
from core.wire.site import Env
from core.wire.versions import Versions

__all__ = ["Change", "TapeLimits", "Trace"]

NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class TapeLimits:
    """How much a tape may hold: ops, and bytes of all its values. wire: what one document may hold."""

    ops: int = 20_000
    bytes: int = 2**30
    wire: Limits = field(default_factory=Limits)


@dataclass(slots=True)
class Change:
    """What one call has done so far, so that it can be undone."""

    places: list[int] = field(default_factory=list)
    leaves: list[str] = field(default_factory=list)
    replaced: dict[str, tuple[Variable, Any]] = field(default_factory=dict)


class Trace:
    """Ops by place, in the order in which they were added, and what is known of their variables.

    env:    name -> variable, for those that the client may name. The others are there because something needs them.
    types:  of all variables. values: of those that are computed.
    uses:   how many inputs of ops a variable is.
    writer: variable -> place of the op that writes it.
    next:   the place of the next op.
    """

    def __init__(self, limits: TapeLimits) -> None:
        self.limits = limits
        self.versions = Versions()
        self.b = self.versions.builder
        self.types = self.b.types
        self.env: Env = {}
        self.ops: dict[int, Op] = {}
        self.writer: dict[str, int] = {}
        self.uses: Counter[str] = Counter()
        self.leaves: dict[str, Variable] = {}
        self.values: dict[str, Any] = {}
        self.nbytes = 0
        self.next = 0

    def program(self) -> Program:
        """The tape as a program: its leaves are the parameters and feeds."""
        variables = tuple(self.leaves.values())
        if self.uses[KEY]:
            variables = (*variables, Variable(KEY, TensorType((), "int64"), "key", False))
        return Program(self.block(self.ops.values(), [v.name for v in variables]), variables)

    def put(self, change: Change, name: str, role: Any, value: Any) -> None:
        known = self.leaves.get(name)
        place = pointer_of(role, name)
        if name in self.types and (known is None or self.uses[name] or name not in self.env):
            why = "written by an op" if known is None else "read by ops on the tape"
            raise ProgramError(f"{name!r} is {why}; choose another name", "duplicate_variable", pointer=place)
        if known is not None:
            change.replaced[name] = (known, self.values[name])
            self.drop(name)
        change.leaves.append(name)
        self.leaf(Variable(name, TensorType(tuple(value.shape), str(value.dtype)), role), value)

    def leaf(self, variable: Variable, value: Any) -> None:
        self.leaves[variable.name] = variable
        self.types[variable.name] = variable.type
        self.env[variable.name] = self.b.value(variable.name)
        self.store(variable.name, value)

    def define(self, change: Change, op: Op, names: Sequence[str | None]) -> None:
        """Add an op whose types are known under temporary names."""
        types = [self.types.pop(name) for name in op.outputs]
        several = len(types) > 1
        finals = []
        for i, (type, name) in enumerate(zip(types, names, strict=True)):
            name = name or self.free(f"{op.type}_{self.next}" + (f"_{i}" if several else ""))
            self.types[name] = type
            self.env[name] = self.b.value(name)
            finals.append(name)
        self.add(change, replace(op, outputs=tuple(finals)))

    def add(self, change: Change, op: Op) -> None:
        self.ops[self.next] = op
        self.writer.update((name, self.next) for name in op.outputs)
        self.uses.update(op.inputs)
        change.places.append(self.next)
        self.next += 1

    def reaching(self, names: Iterable[str], known: Mapping[str, Any] = NONE) -> list[int]:
        """The places of all ops whose outputs lead to `names`, in order; not those behind what is `known`."""
        found: set[int] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            place = self.writer.get(name)
            if place is not None and place not in found and name not in known:
                found.add(place)
                waiting += self.ops[place].inputs
        return sorted(found)

    # --- forgetting ----------------------------------------------------------------------------------------------

    def release(self, names: Iterable[str]) -> None:
        """The client will not name these any more. What nothing else needs is freed, ops and values; parameters too.

        Names that are not on the tape are passed over.
        """
        for name in names:
            if name in self.env and name != KEY:
                del self.env[name]
                self.collect(name)

    def renew(self) -> None:
        """Begin anew: only the parameters and their values stay. Random ops will draw other numbers."""
        for name in [n for n in self.types if n != KEY]:
            variable = self.leaves.get(name)
            if variable is None or variable.role != "parameter" or name not in self.env:
                self.drop(name)
        self.ops.clear()
        self.writer.clear()
        self.uses.clear()
        self.next = 0

    def collect(self, name: str) -> None:
        """Free `name`, and what only led to it, if nobody can use it any more."""
        waiting = [name]
        while waiting:
            each = waiting.pop()
            if each in self.env or self.uses[each] or each not in self.types:
                continue
            place = self.writer.get(each)
            if place is None:
                self.drop(each)
                continue
            op = self.ops[place]
            if not any(out in self.env or self.uses[out] for out in op.outputs):
                self.remove(place)
                waiting += op.inputs

    def remove(self, place: int) -> None:
        op = self.ops.pop(place)
        for name in op.inputs:
            self.uses[name] -= 1
            if not self.uses[name]:
                del self.uses[name]
        for name in op.outputs:
            self.drop(name)

    def drop(self, name: str) -> None:
        self.nbytes -= held(self.values.pop(name, None))
        self.env.pop(name, None)
        self.types.pop(name, None)
        self.writer.pop(name, None)
        self.leaves.pop(name, None)

    @contextmanager
    def all_or_nothing(self) -> Iterator[Change]:
        change, began = Change(), self.next
        try:
            yield change
        except BaseException:
            for place in reversed(change.places):
                self.remove(place)
            for name in change.leaves:
                self.drop(name)
            for variable, value in change.replaced.values():
                self.leaf(variable, value)
            self.next = began
            raise

    def copied(self) -> tuple[Any, ...]:
        """What `restore` takes: everything that is on the tape, the values themselves not copied."""
        return *(table.copy() for table in self._tables()), self.nbytes, self.next

    def restore(self, kept: tuple[Any, ...]) -> None:
        *tables, self.nbytes, self.next = kept
        for table, before in zip(self._tables(), tables, strict=True):
            table.clear()  # in place: the builder shares the types
            table.update(before)

    def _tables(self) -> tuple[dict[Any, Any], ...]:
        return self.types, self.env, self.ops, self.writer, self.uses, self.leaves, self.values

    # --- small things --------------------------------------------------------------------------------------------

    def draw_from(self, key: Any) -> None:
        """Set the key from which random ops draw."""
        self.types[KEY] = TensorType((), "int64")
        self.env[KEY] = self.b.value(KEY)
        self.values[KEY] = key

    def store(self, name: str, value: Any) -> None:
        self.values[name] = value
        self.nbytes += held(value)

    def known(self, name: str) -> TensorType:
        """The type of a variable that a client may name. Raises ProgramError (unknown_variable, not_an_array)."""
        if name == KEY or name not in self.env:
            raise ProgramError(f"the tape has no variable {name!r}", "unknown_variable")
        type = self.type(name)
        if not isinstance(type, TensorType):
            raise ProgramError(f"{name!r} is a {type}, not an array", "not_an_array")
        return type

    def is_float(self, name: str) -> bool:
        return self.types[name].is_float

    def type(self, name: str) -> Type:
        """The type of a variable, with the sizes of its value, where there is one."""
        value, known = self.values.get(name), self.types[name]
        if value is None or not isinstance(known, TensorType):
            return known
        return TensorType(tuple(value.shape), known.dtype)

    def block(self, ops: Iterable[Op], params: Sequence[str]) -> Block:
        ops = tuple(ops)
        names = [*params, *(n for op in ops for n in (*op.inputs, *op.outputs) if n)]
        return Block(tuple(params), ops, (), {name: self.types[name] for name in dict.fromkeys(names)})

    def free(self, hint: str) -> str:
        while hint in self.types:
            hint += "_"
        return hint

    def check_room(self, ops: int, bytes: int) -> None:
        """Raises ProgramError (tape_full) if so much more would not fit."""
        if len(self.ops) + ops > self.limits.ops:
            raise ProgramError(
                f"the tape would hold more than {self.limits.ops} ops",
                "tape_full",
                suggestion="renew the tape, or release what is not needed",
            )
        if self.nbytes + bytes > self.limits.bytes:
            raise ProgramError(
                f"the values on the tape would take more than {self.limits.bytes} bytes",
                "tape_full",
                suggestion="renew the tape, or release what is not needed",
            )


def size_of(type: Type) -> int:
    """Bytes of a value of this type, so far as the type tells."""
    if not isinstance(type, TensorType) or not type.is_static:
        return 0
    return math.prod(type.shape) * as_dtype(type.dtype).itemsize


def held(value: Any) -> int:
    """Bytes of a value, stacks included."""
    if value is None:
        return 0
    return sum(held(v) for v in value) if isinstance(value, list | tuple) else int(value.nbytes)
