"""The ops of a tape by place, its leaves, its values, and the uses of each variable."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from core.ir import Block, Op, Program, TensorType, Type, Variable
from core.ir.errors import ProgramError
from core.ir.suggest import near
from core.ops.common.types import as_dtype
from core.tape.reader import pointer_of
from core.tape.structure import ReadOps
from core.wire import KEY, Limits
from core.wire.site import Env
from core.wire.versions import Versions

__all__ = ["Change", "TapeLimits", "Trace"]

NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class TapeLimits:
    """Limits of a tape: number of ops, and bytes of all values. `wire` limits one request."""

    ops: int = 20_000
    bytes: int = 2**30
    wire: Limits = field(default_factory=Limits)


@dataclass(slots=True)
class Change:
    """The changes of one call so far, so that they can be undone."""

    places: list[int] = field(default_factory=list)
    leaves: list[str] = field(default_factory=list)
    replaced: dict[str, tuple[Variable, Any]] = field(default_factory=dict)


class Trace:
    """The ops by place, in the order of appending, and the state of their variables.

    env:    name -> variable, for the variables that the client may name. Other variables exist because ops need them.
    types:  of all variables.
    values: of the variables that are computed.
    uses:   variable -> number of op inputs that read it.
    writer: variable -> place of the op that writes it.
    next:   place of the next op.
    whole:  the result of reading all ops of the tape at once, if they came in one request.
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
        self.whole: ReadOps | None = None

    def program(self) -> Program:
        """The tape as a program, whose leaves are parameters and feeds."""
        variables = tuple(self.leaves.values())
        if self.uses[KEY]:
            variables = (*variables, Variable(KEY, TensorType((), "int64"), "key", False))
        return Program(self.block(self.ops.values(), [v.name for v in variables]), variables)

    def put(self, change: Change, name: str, role: Any, value: Any) -> None:
        """Add a leaf, or replace one that no op reads. Raises ProgramError (duplicate_variable)."""
        known = self.leaves.get(name)
        if name in self.types and (known is None or self.uses[name] or name not in self.env):
            why = "written by an op" if known is None else "read by ops on the tape"
            raise ProgramError(
                f"{name!r} is {why}: choose another name", "duplicate_variable", pointer=pointer_of(role, name)
            )
        if known is not None:
            change.replaced[name] = (known, self.values[name])
            self.drop(name)
        change.leaves.append(name)
        self.leaf(Variable(name, TensorType(tuple(value.shape), _name_of(value.dtype)), role), value)

    def leaf(self, variable: Variable, value: Any) -> None:
        self.leaves[variable.name] = variable
        self.types[variable.name] = variable.type
        self.env[variable.name] = self.b.value(variable.name)
        self.store(variable.name, value)

    def define(self, change: Change, op: Op, names: Sequence[str | None]) -> None:
        """Add an op whose types are stored under temporary names."""
        types = [self.types.pop(name) for name in op.outputs]
        several = len(types) > 1
        finals = []
        for i, (type, name) in enumerate(zip(types, names, strict=True)):
            name = name or self.unused_name(f"{op.type}_{self.next}" + (f"_{i}" if several else ""))
            self.types[name] = type
            self.env[name] = self.b.value(name)
            finals.append(name)
        self.add(change, replace(op, outputs=tuple(finals)))

    def add(self, change: Change, op: Op) -> None:
        self.whole = None
        self.ops[self.next] = op
        self.writer.update((name, self.next) for name in op.outputs)
        self.uses.update(op.inputs)
        change.places.append(self.next)
        self.next += 1

    def read_ops(self, places: Sequence[int]) -> ReadOps:
        """The last ops of the tape, at `places`, for `add_again`."""
        ops = {place: self.ops[place] for place in places}
        written = [name for op in ops.values() for name in op.outputs]
        uses = Counter(name for op in ops.values() for name in op.inputs)
        own = set(written)
        read = ReadOps(
            self.next - len(ops),
            ops,
            {name: self.types[name] for name in uses if name and name not in own},
            {name: self.types[name] for name in written},
            {name: self.env[name] for name in written},
            {name: self.writer[name] for name in written},
            uses,
        )
        self.whole = read if len(ops) == len(self.ops) else None
        return read

    def takes(self, read: ReadOps) -> bool:
        """Whether reading the same ops again would give `read`."""
        types, env = self.types, self.env
        return (
            self.next == read.first
            and all(name in env and types[name] == type for name, type in read.given.items())
            and types.keys().isdisjoint(read.types)
        )

    def add_again(self, change: Change, read: ReadOps) -> None:
        """Add ops that were read before. The trace must take them."""
        alone = not self.ops
        self.ops.update(read.ops)
        self.types.update(read.types)
        self.env.update(read.env)
        self.writer.update(read.writer)
        self.uses.update(read.uses)
        change.places.extend(read.ops)
        self.next += len(read.ops)
        self.whole = read if alone else None

    @property
    def is_evaluated(self) -> bool:
        """Whether the output of any op has a value."""
        return len(self.values) > len(self.leaves) + 1  # the key has a value too

    def reaching(self, names: Iterable[str], known: Mapping[str, Any] = NONE) -> list[int]:
        """The places of all ops that `names` depend on, in order. The search stops at variables in `known`."""
        found: set[int] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            place = self.writer.get(name)
            if place is not None and place not in found and name not in known:
                found.add(place)
                waiting += self.ops[place].inputs
        return sorted(found)

    # --- freeing -------------------------------------------------------------------------------------------------

    def release(self, names: Iterable[str]) -> None:
        """End the client's use of `names`. Ops and values that nothing else needs are freed, parameters included.

        Names that are not on the tape are ignored.
        """
        for name in names:
            if name in self.env and name != KEY:
                del self.env[name]
                self.collect(name)

    def renew(self) -> None:
        """Remove everything but the parameters and their values. Random ops draw from a new key afterwards."""
        kept = [v for v in self.leaves.values() if v.role == "parameter" and v.name in self.env]
        values = [self.values[v.name] for v in kept]
        key = self.values[KEY]
        for table in (self.types, self.env, self.leaves, self.values):
            table.clear()  # in place: the builder shares the types
        self.nbytes = 0
        self.set_key(key)
        for variable, value in zip(kept, values, strict=True):
            self.leaf(variable, value)
        self.whole = None
        self.ops.clear()
        self.writer.clear()
        self.uses.clear()
        self.next = 0

    def collect(self, name: str) -> None:
        """Free `name`, and everything that only it needed, if neither the client nor an op can use it."""
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
        self.whole = None
        op = self.ops.pop(place)
        for name in op.inputs:
            self.uses[name] -= 1
            if not self.uses[name]:
                del self.uses[name]
        for name in op.outputs:
            self.drop(name)

    def drop(self, name: str) -> None:
        self.nbytes -= nbytes_of(self.values.pop(name, None))
        self.env.pop(name, None)
        self.types.pop(name, None)
        self.writer.pop(name, None)
        self.leaves.pop(name, None)

    @contextmanager
    def all_or_nothing(self) -> Iterator[Change]:
        """Undo the changes made inside if an error is raised."""
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

    def snapshot(self) -> tuple[Any, ...]:
        """A copy of the state for `restore`. The arrays are not copied."""
        return *(table.copy() for table in self._tables()), self.nbytes, self.next, self.whole

    def restore(self, saved: tuple[Any, ...]) -> None:
        *tables, self.nbytes, self.next, self.whole = saved
        for table, before in zip(self._tables(), tables, strict=True):
            table.clear()  # in place: the builder shares the types
            table.update(before)

    def _tables(self) -> tuple[dict[Any, Any], ...]:
        return self.types, self.env, self.ops, self.writer, self.uses, self.leaves, self.values

    # --- values and types ----------------------------------------------------------------------------------------

    def set_key(self, key: Any) -> None:
        """Set the key of the random ops."""
        self.types[KEY] = TensorType((), "int64")
        self.env[KEY] = self.b.value(KEY)
        self.values[KEY] = key

    def store_all(self, values: Mapping[str, Any], nbytes: int) -> None:
        """Store values of `nbytes` bytes together; none of the variables has one."""
        self.values.update(values)
        self.nbytes += nbytes

    def store(self, name: str, value: Any) -> None:
        self.values[name] = value
        self.nbytes += nbytes_of(value)

    def array_type(self, name: str) -> TensorType:
        """The type of an array that the client may name. Raises ProgramError (unknown_variable, not_an_array)."""
        if name == KEY or name not in self.env:
            hint = near(name, [each for each in self.types if "@" not in each])
            raise ProgramError(f"the tape has no variable {name!r}", "unknown_variable", suggestion=hint)
        type = self.type(name)
        if not isinstance(type, TensorType):
            raise ProgramError(f"{name!r} is {type}, not an array", "not_an_array")
        return type

    def is_float(self, name: str) -> bool:
        return self.types[name].is_float

    def type(self, name: str) -> Type:
        """The type of a variable, with the sizes of its value if it has one."""
        value, known = self.values.get(name), self.types[name]
        if value is None or not isinstance(known, TensorType):
            return known
        return TensorType(tuple(value.shape), known.dtype)

    def block(self, ops: Iterable[Op], params: Sequence[str]) -> Block:
        ops = tuple(ops)
        names = [*params, *(n for op in ops for n in (*op.inputs, *op.outputs) if n)]
        return Block(tuple(params), ops, (), {name: self.types[name] for name in dict.fromkeys(names)})

    def unused_name(self, hint: str) -> str:
        while hint in self.types:
            hint += "_"
        return hint

    def check_limits(self, ops: int, bytes: int) -> None:
        """Raises ProgramError (tape_full) if this many more ops and bytes would exceed the limits."""
        if len(self.ops) + ops > self.limits.ops:
            raise ProgramError(
                f"the tape would hold more than {self.limits.ops} ops",
                "tape_full",
                suggestion="renew the tape, or release variables that are not needed",
            )
        if self.nbytes + bytes > self.limits.bytes:
            raise ProgramError(
                f"the values on the tape would take more than {self.limits.bytes} bytes",
                "tape_full",
                suggestion="renew the tape, or release variables that are not needed",
            )


@cache
def _name_of(dtype: Any) -> str:
    """The name of a dtype; numpy computes it anew for each call."""
    return str(dtype)


def expected_nbytes(type: Type) -> int:
    """Bytes of a value of this type, or 0 if the type does not determine them."""
    if not isinstance(type, TensorType) or not type.is_static:
        return 0
    return math.prod(type.shape) * as_dtype(type.dtype).itemsize


def nbytes_of(value: Any) -> int:
    """Bytes of a value, stacks included."""
    if value is None:
        return 0
    return sum(nbytes_of(v) for v in value) if isinstance(value, list | tuple) else int(value.nbytes)
