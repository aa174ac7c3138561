"""The tape: a program that is written while it runs.

A client appends ops and gets their values at once (`immediate`, as PyTorch and Chainer do), or when it asks for one
(`lazy`, as DyNet does: only ops that reach it run, each once). `gradients` plays back, in reverse order, those ops
alone that reach the scalar. What was compiled for one stretch of tape serves every other with the same structure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Literal

import numpy as np

from core.backward.append_backward import check_seed
from core.compiler.compile import key_of
from core.ir import Program, TensorType, Type
from core.ir.errors import ProgramError
from core.ir.recursion import headroom
from core.runtime.run import RunLimits
from core.tape.answers import Appended, Evaluated, Gradients
from core.tape.reader import parsed, pointer_of, read_ops
from core.tape.record import record, why_missing
from core.tape.steps import Form, Steps
from core.tape.trace import Change, TapeLimits, Trace, held, size_of
from core.wire import KEY, write
from core.wire.document import RawProgram

__all__ = ["Mode", "Tape", "TapeLimits"]

Mode = Literal["immediate", "lazy"]
NONE: Mapping[str, Any] = {}


class Tape:
    """Ops in the order in which they were appended, and their values.

    A call that raises leaves the tape as it was. Every op has a place: its number in the order of appending, which it
    keeps when others go.
    """

    def __init__(
        self,
        mode: Mode = "immediate",
        *,
        seed: int = 0,
        steps: Steps | None = None,
        limits: TapeLimits | None = None,
        xp: ModuleType = np,
    ) -> None:
        """seed: of random ops. steps: what is compiled already; tapes may share it. xp: numpy or cupy."""
        self.mode = mode
        self.seed = seed
        self.renewals = 0
        self.steps = Steps() if steps is None else steps
        self._xp = xp
        self._trace = Trace(limits or TapeLimits())
        self._draw()

    # --- looking at it -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Ops on the tape now."""
        return len(self._trace.ops)

    @property
    def types(self) -> Mapping[str, Type]:
        """Of every variable on the tape."""
        return self._trace.types

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self._trace.nbytes

    @property
    def parameters(self) -> list[str]:
        """Those that a client may name, in the order of their appending."""
        return [v.name for v in self._trace.leaves.values() if v.role == "parameter" and v.name in self._trace.env]

    @property
    def computed(self) -> frozenset[str]:
        """The variables whose values are known."""
        return frozenset(self._trace.values) - {KEY}

    def program(self) -> Program:
        """The tape as a program: its leaves are the parameters and feeds."""
        return self._trace.program()

    def write(self) -> dict[str, Any]:
        """The same as a document of the wire."""
        return write(self.program())

    # --- appending -----------------------------------------------------------------------------------------------

    def append(
        self,
        ops: Sequence[Any] = (),
        *,
        parameters: Mapping[str, Any] = NONE,
        constants: Mapping[str, Any] = NONE,
        ask: Sequence[str] | None = (),
        renew: bool = False,
        limits: RunLimits | None = None,
    ) -> list[Appended]:
        """Put leaves with their values, then ops, on the tape: all of them or, if something is wrong, none.

        ops:   as on the wire; outputs that are not named get names. A leaf that no op reads may be put again.
        ask:   variables whose values must be there afterwards; None for all that these ops write.
        renew: begin anew first.

        Raises InvalidProgram with all that is wrong, each with the place of the op, its slot and variable, and a
        pointer such as ``/ops/0/inputs/x/0``. Raises ProgramError (control_flow_on_tape, tape_full), and what running
        raises.
        """
        leaves = {n: ("parameter", self._xp.asarray(v)) for n, v in parameters.items()}
        for name, value in constants.items():
            if name in leaves:
                raise ProgramError(f"{name!r} is given twice", "duplicate_variable", pointer=pointer_of("feed", name))
            leaves[name] = ("feed", self._xp.asarray(value))
        with headroom(), self._renewed(renew), self._trace.all_or_nothing() as change:
            raw = parsed(ops, leaves, self._trace.next, self._trace.limits.wire)
            self._trace.check_room(len(ops), sum(int(v.nbytes) for _, v in leaves.values()))
            for name, (role, value) in leaves.items():
                self._trace.put(change, name, role, value)
            self._read(raw, change)
            written = [n for p in change.places for n in self._trace.ops[p].outputs]
            for name in ask or ():
                self._trace.known(name)
            self._compute([*(written if ask is None or self.mode == "immediate" else ()), *(ask or ())], limits)
        return [self._appended(place) for place in change.places]

    def _read(self, raw: RawProgram, change: Change) -> None:
        trace = self._trace
        names = {n for op in raw.blocks[0].ops for n in (*op.read_names(), *op.written_names())}
        known = {name: trace.env[name] for name in names if name in trace.env}
        try:
            read_ops(
                raw, trace.env, trace.versions, trace.limits.wire, lambda op, names: trace.define(change, op, names)
            )
        finally:
            for name in names:  # the reader marks those whose definition is wrong
                if trace.env.get(name, self) is None:
                    del trace.env[name]
                    trace.env.update({name: known[name]} if name in known else {})

    def _appended(self, place: int) -> Appended:
        op = self._trace.ops[place]
        return Appended(place, op.type, tuple((name, self._trace.type(name)) for name in op.outputs))

    # --- values --------------------------------------------------------------------------------------------------

    def evaluate(self, names: Sequence[str], limits: RunLimits | None = None) -> Evaluated:
        """The values of `names`. Only ops that reach them and have not run yet are run.

        Raises ProgramError (unknown_variable, not_an_array, tape_full), ExecutionError with the place of the op.
        """
        for name in names:
            self._trace.known(name)
        with headroom():
            ran = self._compute(names, limits)
        return Evaluated({name: self._trace.values[name] for name in names}, ran)

    def _compute(self, names: Iterable[str], limits: RunLimits | None) -> tuple[int, ...]:
        """Make the values of `names` known; the places of the ops that had to run."""
        places = self._trace.reaching(names, known=self._trace.values)
        if not places:
            return ()
        ops = [self._trace.ops[p] for p in places]
        self._trace.check_room(0, sum(size_of(self._trace.types[name]) for op in ops for name in op.outputs))
        form = Form(ops, self._trace.types)
        found = self.steps.forward(form).run(form, self._trace.values, (), limits or RunLimits(), self._xp)
        self._trace.check_room(0, sum(held(v) for v in found.values()))
        for name, value in found.items():
            self._trace.store(name, value)
        return tuple(places)

    # --- gradients -----------------------------------------------------------------------------------------------

    def gradients(
        self,
        target: str,
        wrt: Sequence[str] | None = None,
        seed: Any = None,
        limits: RunLimits | None = None,
    ) -> Gradients:
        """Play back the ops that reach `target`. Nothing is added to the tape.

        target: a floating-point variable, of one element unless there is a `seed`, its cotangent.
        wrt:    any variables; None means all parameters.

        Raises ProgramError (unknown_variable, loss_not_float, loss_not_scalar, target_grad_shape,
        no_gradient_registered), and what running raises.
        """
        wrt = self._wrt(wrt)
        self._check_target(target, seeded=seed is not None)
        with headroom():
            ran = self._compute([target], limits)
            value = self._trace.values[target]
            if seed is None:
                seed = self._xp.ones(value.shape, value.dtype)
            else:
                seed = self._xp.asarray(seed)
                check_seed(target, _type_of(value), _type_of(seed))
            places = self._trace.reaching([target])
            form = Form([self._trace.ops[p] for p in places], self._trace.types, [target])
            asked = [name for name in wrt if name in form.number and self._trace.is_float(name)]
            step = self.steps.backward(form, target, asked)
            found = step.run(form, self._trace.values, [seed], limits or RunLimits(), self._xp)
        assert step.playback is not None
        return Gradients(
            value,
            found,
            why_missing(self._trace, target, places, [name for name in wrt if name not in found]),
            tuple(places[i] for i in step.playback.played),
            tuple((form.names[int(n[1:])], None if i is None else places[i]) for n, i in step.playback.final),
            ran,
        )

    def record_gradients(
        self,
        target: str,
        wrt: Sequence[str] | None = None,
        seed: str | None = None,
        limits: RunLimits | None = None,
    ) -> tuple[dict[str, str], dict[str, str], list[Appended]]:
        """Append the ops that compute the gradients, so that they can be used, and differentiated, like any others.

        seed: a variable that holds the cotangent of `target`.
        Returns (variable -> the variable that is its gradient, variable -> why there is none, the ops).
        Raises what `gradients` raises, and ProgramError (tape_full).
        """
        wrt = self._wrt(wrt)
        self._check_target(target, seeded=seed is not None)
        if seed is not None:
            check_seed(target, self._trace.types[target], self._trace.known(seed))
        places = self._trace.reaching([target])
        asked = [name for name in wrt if self._trace.is_float(name)]
        with headroom(), self._trace.all_or_nothing() as change:
            gradients = record(self._trace, change, target, places, asked, seed)
            if self.mode == "immediate":
                self._compute(gradients.values(), limits)
        missing = why_missing(self._trace, target, places, [name for name in wrt if name not in gradients])
        return gradients, missing, [self._appended(place) for place in change.places]

    def _wrt(self, wrt: Sequence[str] | None) -> list[str]:
        if wrt is None:
            return self.parameters
        for name in wrt:
            self._trace.known(name)
        return list(wrt)

    def _check_target(self, target: str, seeded: bool) -> None:
        type = self._trace.known(target)
        if not type.is_float:
            raise ProgramError(f"{target!r} is {type}, not floating-point", "loss_not_float")
        if not seeded and any(n not in (1, -1) for n in type.shape):
            raise ProgramError(
                f"{target!r} is {type}: it must have one element",
                "loss_not_scalar",
                suggestion="reduce it first, with mean or reduce_sum, or give its cotangent",
            )

    # --- forgetting ----------------------------------------------------------------------------------------------

    def release(self, names: Iterable[str]) -> None:
        """The client will not name these any more. What nothing else needs is freed, ops and values; parameters too.

        Names that are not on the tape are passed over.
        """
        self._trace.release(names)

    def renew(self) -> None:
        """Begin anew: only the parameters and their values stay. Random ops will draw other numbers."""
        self._trace.renew()
        self.renewals += 1
        self._draw()

    @contextmanager
    def _renewed(self, renew: bool) -> Iterator[None]:
        """Renew, and put everything back if what follows fails."""
        if not renew:
            yield
            return
        kept, renewals = self._trace.copied(), self.renewals
        self.renew()
        try:
            yield
        except BaseException:
            self._trace.restore(kept)
            self.renewals = renewals
            raise

    def _draw(self) -> None:
        self._trace.draw_from(self._xp.asarray(key_of(self.seed, self.renewals)))


def _type_of(value: Any) -> TensorType:
    return TensorType(tuple(value.shape), str(value.dtype))
