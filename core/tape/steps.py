"""Compiled steps of a tape, cached by structure: equal ops on equal types are compiled once.

The names on a tape and the places of its ops change from iteration to iteration. A `Form` is a list of ops without
names and places. Two lists with equal keys are the same computation and share a step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from core.autodiff.activity import Activity
from core.autodiff.adjoint import Adjoint
from core.compiler.compile import optimize
from core.cost.memory import Memory
from core.ir import HOLE, Block, Op, TensorType, Type, live, reads
from core.ir.errors import CoreError, Location
from core.ir.lru import LRU
from core.ir.recursion import headroom
from core.runtime.admission import admission_peak, admit
from core.runtime.reference import Interpreter, interpreter_of
from core.runtime.run import Run, RunLimits
from core.tape.playback import Playback, play_back

__all__ = ["Form", "MachineCode", "Step", "Steps"]

MachineCode = Callable[[Hashable, Block], Interpreter]
"""A compiler to machine code. Its first argument is equal for equal blocks."""

CAPACITY = 200_000
"""Most ops in all cached steps together."""


class Form:
    """A list of ops without names and places.

    key:    equal for lists of ops that compute the same results from inputs of the same types.
    names:  number of a variable -> its name in this list.
    number: name of a variable -> its number.
    is_static: whether all variables are arrays of known sizes.
    """

    def __init__(self, ops: Sequence[Op], types: Mapping[str, Type], extra: Sequence[str] = ()) -> None:
        """extra: variables that get a number even if no op reads or writes them."""
        self.ops = ops
        self.number: dict[str, int] = {}
        self._types = types
        number = self.number
        written: set[int] = set()
        shapes: list[Hashable] = []
        for op in ops:
            ins = tuple([-1 if n == HOLE else number.setdefault(n, len(number)) for n in op.inputs])
            outs = tuple([number.setdefault(n, len(number)) for n in op.outputs])
            written.update(outs)
            # attributes as text: 0.0 == -0.0 and 1 == True, but they give different results
            shapes.append((op.type, ins, outs, repr(tuple(op.attrs.items())) if op.attrs else ""))
        for name in extra:
            number.setdefault(name, len(number))
        self.names = tuple(number)
        self.is_static = all(isinstance(t := types[name], TensorType) and t.is_static for name in number)
        self.params = tuple(i for i in range(len(number)) if i not in written)
        self.key: Hashable = _Key((tuple(shapes), self.params, tuple(types[self.names[i]] for i in self.params)))

    def block(self) -> Block:
        """The ops as a block whose variables are named by their numbers, and whose places count from 0."""
        numbered = {name: f"v{i}" for i, name in enumerate(self.names)} | {HOLE: HOLE}
        ops = tuple(
            Op(
                op.type,
                tuple([numbered[n] for n in op.inputs]),
                tuple([numbered[n] for n in op.outputs]),
                op.attrs,
                Location(0, k, op.type),
            )
            for k, op in enumerate(self.ops)
        )
        types = {numbered[name]: self._types[name] for name in self.names}
        return Block(tuple(f"v{i}" for i in self.params), ops, (), types)


class _Key:
    """A value with its hash, which is computed once: that of a long list of ops takes as long as a short step."""

    __slots__ = ("_hash", "_value")

    def __init__(self, value: Hashable) -> None:
        self._value = value
        self._hash = hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Key) and self._value == other._value)


@dataclass(frozen=True, slots=True)
class Step:
    """A compiled form.

    key:      its key in the cache.
    reads:    numbers of the variables that are its arguments.
    writes:   numbers of the variables whose values or gradients are its results.
    playback: the order of the backward pass, for a backward step.
    """

    key: Hashable
    interpreter: Interpreter
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    playback: Playback | None = None
    _peaks: list[Memory] = field(default_factory=list, repr=False, compare=False)

    def _peak(self) -> Memory:
        """The predicted peak of a run, not counting its arguments."""
        if not self._peaks:
            self._peaks.append(admission_peak(self.interpreter))
        return self._peaks[0]

    def run(
        self, form: Form, values: Mapping[str, Any], more: Sequence[Any], limits: RunLimits, xp: ModuleType
    ) -> dict[str, Any]:
        """The results, by their names in `form`. `more` holds the arguments after those of `reads`."""
        args = [values[form.names[i]] for i in self.reads]
        run = Run(xp, limits)
        with np.errstate(all="ignore"), headroom(), _located(form):
            if limits.memory is not None:
                admit(run, self._peak())
            results = self.interpreter(run, *args, *more)
        if self.interpreter.region is None:
            types = self.interpreter.block.result_types
            results = tuple(
                [xp.asarray(v) if isinstance(t, TensorType) else v for v, t in zip(results, types, strict=True)]
            )
        return dict(zip([form.names[i] for i in self.writes], results, strict=True))


class Steps:
    """Compiled steps by form, least recently used first. Several tapes may share them.

    compiled, reused: how often a step was made for a new structure, and how often it was found.
    """

    def __init__(self, capacity: int = CAPACITY, machine: MachineCode | None = None) -> None:
        """machine: compiles blocks for `as_machine_code`; without it, all steps stay as they are."""
        self._machine = machine
        self._cached: LRU[Step] = LRU(capacity, _op_count, at_least=1)
        self.compiled = 0
        self.reused = 0

    def forward(self, form: Form) -> Step:
        """A step that computes every variable that the ops of `form` write."""
        return self._step(form, ("forward", form.key), _forward)

    def backward(self, form: Form, target: str, wrt: Sequence[str]) -> Step:
        """A step that computes the gradients of `target` with respect to those of `wrt` that have one.

        Its arguments are values of the trace and, last, the cotangent of `target`.
        """
        number, numbers = form.number[target], tuple(sorted({form.number[name] for name in wrt}))
        make = partial(_backward, target=number, wrt=numbers)
        return self._step(form, ("backward", form.key, number, numbers), make)

    def as_machine_code(self, form: Form, step: Step) -> Step:
        """`step` as machine code, if this cache compiles and all sizes of `form` are known.

        Raises the exceptions of the compiler that this cache was given.
        """
        if self._machine is None or step.interpreter.region is not None or not form.is_static:
            return step
        key = ("machine", step.key)
        found = self._cached.get(key)
        if found is None:
            made = self._machine(key, step.interpreter.block)
            found = replace(step, key=key, interpreter=made, _peaks=[])
            self._cached.put(key, found)
        return found

    def _step(self, form: Form, key: Hashable, make: Callable[[Form, Hashable], Step]) -> Step:
        found = self._cached.get(key)
        if found is not None:
            self.reused += 1
            return found
        with _located(form):
            found = make(form, key)
        self.compiled += 1
        self._cached.put(key, found)
        return found


def _op_count(step: Step) -> int:
    return 1 + len(step.interpreter.block.ops)


def _forward(form: Form, key: Hashable) -> Step:
    block = form.block()
    writes = [i for i in range(len(form.names)) if i not in set(form.params)]
    with headroom():
        made = interpreter_of(optimize(replace(block, results=tuple(f"v{i}" for i in writes))))
    return Step(key, made, form.params, tuple(writes))


def _backward(form: Form, key: Hashable, target: int, wrt: tuple[int, ...]) -> Step:
    block = form.block()
    names = [f"v{i}" for i in wrt]
    activity = Activity()
    with headroom():
        a = Adjoint(block, activity=activity)
        seed = a.seed(f"v{target}")
        found = a.run([(f"v{target}", seed)], names)
        reached = [name for name in names if name in found]
        results = [a.final(found[name].name) for name in reached]
        ops = live(a.ops(), results)
        known = reads(ops, results, block.types)
        made = interpreter_of(optimize(a.part(ops, (*known, seed.name), results)))
    played = play_back(block, activity.active(block, names, ()), set(a.cotangents.origin.values()), reached)
    return Step(key, made, tuple(int(n[1:]) for n in known), tuple(int(n[1:]) for n in reached), played)


@contextmanager
def _located(form: Form) -> Iterator[None]:
    """Give errors raised inside, whose location counts from 0, the location on the tape."""
    try:
        yield
    except CoreError as error:
        at = error.location
        if at is not None and 0 <= at.op < len(form.ops):
            place = form.ops[at.op].location
            error.location = replace(place, adjoint=at.adjoint) if place is not None else None
        raise
