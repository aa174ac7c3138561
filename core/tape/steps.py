"""What a tape has compiled, kept by structure: the same ops on the same types need compiling only once.

The names of a tape change from iteration to iteration, and so do the places of its ops. A `Form` is a list of ops
with both taken out: two lists with equal keys are one computation, and share the compiled step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from core.autodiff.activity import Dependence
from core.autodiff.adjoint import Adjoint
from core.compiler.compile import optimize
from core.ir import HOLE, Block, Op, TensorType, Type, live, reads
from core.ir.errors import CoreError, Location
from core.ir.lru import LRU
from core.ir.recursion import headroom
from core.runtime.reference import Plan, Run, RunLimits, plan
from core.tape.playback import Playback, play_back

__all__ = ["Form", "Step", "Steps"]

ROOM = 200_000
"""Ops of all steps kept."""


class Form:
    """Ops without their names and places.

    key:    equal for lists of ops that compute the same from inputs of the same types.
    names:  number of a variable -> its name in this list.
    number: the reverse.
    """

    def __init__(self, ops: Sequence[Op], types: Mapping[str, Type], extra: Sequence[str] = ()) -> None:
        """extra: variables that have a number although perhaps no op reads or writes them."""
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
            # as text, because 0.0 and -0.0, or 1 and True, are equal and not the same
            shapes.append((op.type, ins, outs, repr(tuple(op.attrs.items())) if op.attrs else ""))
        for name in extra:
            number.setdefault(name, len(number))
        self.names = tuple(number)
        self.params = tuple(i for i in range(len(number)) if i not in written)
        self.key: Hashable = (tuple(shapes), self.params, tuple(types[self.names[i]] for i in self.params))

    def block(self) -> Block:
        """The ops as a block whose variables are called by their numbers, and whose places count from 0."""
        called = {name: f"v{i}" for i, name in enumerate(self.names)} | {HOLE: HOLE}
        ops = tuple(
            Op(
                op.type,
                tuple([called[n] for n in op.inputs]),
                tuple([called[n] for n in op.outputs]),
                op.attrs,
                Location(0, k, op.type),
            )
            for k, op in enumerate(self.ops)
        )
        types = {called[name]: self._types[name] for name in self.names}
        return Block(tuple(f"v{i}" for i in self.params), ops, (), types)


@dataclass(frozen=True, slots=True)
class Step:
    """A compiled form.

    reads, writes: numbers of the variables it is given, and of those that its results are values or gradients of.
    playback:      of a backward step, what is played back.
    """

    plan: Plan
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    playback: Playback | None = None

    def run(
        self, form: Form, values: Mapping[str, Any], more: Sequence[Any], limits: RunLimits, xp: ModuleType
    ) -> dict[str, Any]:
        """The results by the names of `form`. more: arguments behind those of `reads`."""
        args = [values[form.names[i]] for i in self.reads]
        with np.errstate(all="ignore"), headroom(), _placed(form):
            results = self.plan(Run(xp, limits), *args, *more)
        types = self.plan.block.result_types
        arrays = [xp.asarray(v) if isinstance(t, TensorType) else v for v, t in zip(results, types, strict=True)]
        return dict(zip([form.names[i] for i in self.writes], arrays, strict=True))


class Steps:
    """Compiled steps by form, as many as there is room for; several tapes may share them.

    compiled, reused: how often a step had to be made, and how often it was there.
    """

    def __init__(self, room: int = ROOM) -> None:
        self._kept: LRU[Step] = LRU(room, _weight, at_least=1)
        self.compiled = 0
        self.reused = 0

    def forward(self, form: Form) -> Step:
        """Computes every variable that the ops of `form` write."""
        return self._step(form, ("forward", form.key), lambda: _forward(form))

    def backward(self, form: Form, target: str, wrt: Sequence[str]) -> Step:
        """Computes the gradients of `target` by those of `wrt` that have one, from values that are known.

        Its last argument is the cotangent of `target`.
        """
        asked = (form.number[target], tuple(sorted({form.number[name] for name in wrt})))
        return self._step(form, ("backward", form.key, asked), lambda: _backward(form, *asked))

    def _step(self, form: Form, key: Hashable, make: Callable[[], Step]) -> Step:
        found = self._kept.get(key)
        if found is not None:
            self.reused += 1
            return found
        with _placed(form):
            found = make()
        self.compiled += 1
        self._kept.put(key, found)
        return found


def _weight(step: Step) -> int:
    return 1 + len(step.plan.instructions)


def _forward(form: Form) -> Step:
    block = form.block()
    writes = [i for i in range(len(form.names)) if i not in set(form.params)]
    with headroom():
        made = plan(optimize(replace(block, results=tuple(f"v{i}" for i in writes))))
    return Step(made, form.params, tuple(writes))


def _backward(form: Form, target: int, wrt: tuple[int, ...]) -> Step:
    block = form.block()
    names = [f"v{i}" for i in wrt]
    depends = Dependence()
    with headroom():
        a = Adjoint(block, depends=depends)
        seed = a.seed(f"v{target}")
        found = a.run([(f"v{target}", seed)], names)
        reached = [name for name in names if name in found]
        results = [a.final(found[name].name) for name in reached]
        ops = live(a.ops(), results)
        known = reads(ops, results, block.types)
        made = plan(optimize(a.part(ops, (*known, seed.name), results)))
    played = play_back(block, depends.active(block, names, ()), set(a.cotangents.origin.values()), reached)
    return Step(made, tuple(int(n[1:]) for n in known), tuple(int(n[1:]) for n in reached), played)


@contextmanager
def _placed(form: Form) -> Iterator[None]:
    """Errors inside, which a step locates by its own count, get the place on the tape."""
    try:
        yield
    except CoreError as error:
        at = error.location
        if at is not None and 0 <= at.op < len(form.ops):
            place = form.ops[at.op].location
            error.location = replace(place, adjoint=at.adjoint) if place is not None else None
        raise
