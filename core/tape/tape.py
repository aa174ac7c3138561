"""The tape: a program that grows while it runs.

A client appends ops and gets their values at once (`immediate`, as in PyTorch and Chainer) or on request (`lazy`, as in
DyNet: only the ops that a requested value needs are run, each once). `gradients` runs the backward pass over the ops
that reach the target, in reverse order. Lists of ops with the same structure share one compiled step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Literal

import numpy as np

from core.backward.append_backward import check_seed
from core.compiler.compile import key_of
from core.ir import Program, TensorType, Type
from core.ir.errors import ExecutionError, ProgramError, below, pointing_to
from core.ir.recursion import headroom
from core.runtime.run import RunLimits
from core.tape.reader import parse_ops, pointer_of, read_ops
from core.tape.record import record, why_missing
from core.tape.results import Appended, Evaluated, Extension, Gradients
from core.tape.steps import Form, Steps
from core.tape.structure import Plan, Structure
from core.tape.trace import Change, TapeLimits, Trace, expected_nbytes, nbytes_of
from core.wire import KEY, write
from core.wire.records import RawProgram

__all__ = ["Backward", "Mode", "Tape", "TapeLimits"]

Mode = Literal["immediate", "lazy"]
Backward = tuple[str, Sequence[str] | None, Any]
"""The arguments of `Tape.gradients` in one request: target, wrt, seed."""

REPEATS = 8
"""Runs of one plan on one tape after which it becomes machine code. Compiling takes about as long as a hundred runs.

The number of runs decides and not their time, so that equal requests give equal bits.
"""

NONE: Mapping[str, Any] = {}


class Tape:
    """Ops in the order of appending, and their values.

    A call that raises leaves the tape unchanged. The place of an op is its number in the order of appending; it does
    not change when other ops are freed.
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
        """seed: of random ops. steps: the cache of compiled steps, which tapes may share. xp: numpy or cupy."""
        self.mode = mode
        self.seed = seed
        self.renewals = 0
        self.steps = Steps() if steps is None else steps
        self._xp = xp
        self._trace = Trace(limits or TapeLimits())
        self._set_key()

    # --- contents ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of ops on the tape."""
        return len(self._trace.ops)

    @property
    def types(self) -> Mapping[str, Type]:
        """Types of all variables on the tape."""
        return self._trace.types

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self._trace.nbytes

    @property
    def parameters(self) -> list[str]:
        """Parameters that the client may name, in the order of appending."""
        return [v.name for v in self._trace.leaves.values() if v.role == "parameter" and v.name in self._trace.env]

    @property
    def computed(self) -> frozenset[str]:
        """Variables that have a value."""
        return frozenset(self._trace.values) - {KEY}

    def program(self) -> Program:
        """The tape as a program, whose leaves are parameters and feeds."""
        return self._trace.program()

    def write(self) -> dict[str, Any]:
        """The tape as a JSON document."""
        return write(self.program())

    # --- appending -----------------------------------------------------------------------------------------------

    def append(
        self,
        ops: Sequence[Any] = (),
        *,
        parameters: Mapping[str, Any] = NONE,
        constants: Mapping[str, Any] = NONE,
        requested: Sequence[str] | None = (),
        renew: bool = False,
        limits: RunLimits | None = None,
    ) -> list[Appended]:
        """Add leaves with their values, then ops. On an error nothing is added.

        ops:       as in a JSON program. Outputs without names get names. A leaf that no op reads may be given again.
        requested: variables whose values must be computed afterwards; None for all that these ops write.
        renew:     renew the tape first.

        Raises InvalidProgram with every problem, each with the place of the op, its slot and variable, and a pointer
        such as ``/ops/0/inputs/x/0``. Raises ProgramError (control_flow_on_tape, tape_full), and the errors of a run.
        """
        added = self.extend(
            Structure(ops),
            parameters=parameters,
            constants=constants,
            requested=requested,
            renew=renew,
            limits=limits,
        )
        return self.appended(added.places)

    def extend(
        self,
        structure: Structure,
        *,
        parameters: Mapping[str, Any] = NONE,
        constants: Mapping[str, Any] = NONE,
        requested: Sequence[str] | None = (),
        renew: bool = False,
        backward: Backward | None = None,
        limits: RunLimits | None = None,
    ) -> Extension:
        """`append`, for ops that come again. With `backward`, run a backward pass too, as `gradients` does.

        Appending a structure again under the same circumstances does not read its ops again: a tape that is renewed
        before each iteration adds the same ops at the same places, with the same types. On an error nothing is added.
        """
        leaves = {n: ("parameter", self._xp.asarray(v)) for n, v in parameters.items()}
        for name, value in constants.items():
            if name in leaves:
                raise ProgramError(
                    f"{name!r} is both a parameter and a constant",
                    "duplicate_variable",
                    pointer=pointer_of("feed", name),
                )
            leaves[name] = ("feed", self._xp.asarray(value))
        with headroom(), self._renewed(renew), self._trace.all_or_nothing() as change:
            repeated = self._add(structure, leaves, change)
            for i, name in enumerate(requested or ()):
                with pointing_to(f"/return_values/{i}"):
                    self._trace.array_type(name)
            asked = list(requested or ())
            if requested is None or self.mode == "immediate":
                asked += [name for place in change.places for name in self._trace.ops[place].outputs]
            self._compute(asked, limits)
            found = None
            if backward is not None:
                with below("/backward"):
                    found = self.gradients(*backward, limits)
        return Extension(tuple(change.places), repeated, found)

    def _add(self, structure: Structure, leaves: Mapping[str, tuple[str, Any]], change: Change) -> bool:
        """Add leaves and ops; whether the ops were read before."""
        trace, read = self._trace, structure.read
        size = sum(int(value.nbytes) for _, value in leaves.values())
        if read is not None and not trace.types.keys() & leaves.keys() & read.types.keys():
            trace.check_limits(len(read.ops), size)
            self._put(leaves, change)
            if trace.takes(read):
                trace.add_again(change, read)
                return True
            raw = parse_ops(structure.documents, leaves, trace.next, trace.limits.wire)
        else:
            raw = parse_ops(structure.documents, leaves, trace.next, trace.limits.wire)
            trace.check_limits(len(structure), size)
            self._put(leaves, change)
        self._read(raw, change)
        structure.read = trace.read_ops(change.places)
        return False

    def _put(self, leaves: Mapping[str, tuple[str, Any]], change: Change) -> None:
        for name, (role, value) in leaves.items():
            self._trace.put(change, name, role, value)

    def _read(self, raw: RawProgram, change: Change) -> None:
        trace = self._trace
        names = {n for op in raw.blocks[0].ops for n in (*op.read_names(), *op.written_names())}
        known = {name: trace.env[name] for name in names if name in trace.env}
        try:
            read_ops(
                raw, trace.env, trace.versions, trace.limits.wire, lambda op, names: trace.define(change, op, names)
            )
        finally:
            for name in names:  # the reader sets names whose definition was wrong to None
                if trace.env.get(name, self) is None:
                    del trace.env[name]
                    trace.env.update({name: known[name]} if name in known else {})

    def appended(self, places: Iterable[int]) -> list[Appended]:
        """The ops at `places`, with the types known so far."""
        ops = self._trace.ops
        return [
            Appended(p, ops[p].type, tuple((name, self._trace.type(name)) for name in ops[p].outputs)) for p in places
        ]

    # --- values --------------------------------------------------------------------------------------------------

    def evaluate(self, names: Sequence[str], limits: RunLimits | None = None) -> Evaluated:
        """The values of `names`. Runs only the ops that they depend on and that have no values yet.

        Raises ProgramError (unknown_variable, not_an_array, tape_full), ExecutionError with the place of the op.
        """
        for name in names:
            self._trace.array_type(name)
        with headroom():
            ran = self._compute(names, limits)
        return Evaluated({name: self._trace.values[name] for name in names}, ran)

    def _compute(self, names: Sequence[str], limits: RunLimits | None) -> tuple[int, ...]:
        """Compute the values of `names`. Returns the places of the ops that were run."""
        if not names:
            return ()
        trace = self._trace
        if trace.is_evaluated:
            if not (places := trace.reaching(names, known=trace.values)):
                return ()
            plan = self._forward_plan(places)
        else:
            plan = self._planned(("forward", *names), lambda: self._forward_plan(trace.reaching(names)))
        trace.check_limits(0, plan.nbytes)
        found = self._run(plan, (), limits)
        nbytes = plan.nbytes if plan.form.is_static else sum(nbytes_of(v) for v in found.values())
        if nbytes != plan.nbytes:
            trace.check_limits(0, nbytes)
        trace.store_all(found, nbytes)
        return tuple(plan.places)

    def _forward_plan(self, places: Sequence[int]) -> Plan:
        form = Form([self._trace.ops[p] for p in places], self._trace.types)
        step = self.steps.forward(form)
        nbytes = sum(expected_nbytes(self._trace.types[form.names[i]]) for i in step.writes)
        return Plan(places, form, step, nbytes=nbytes)

    def _planned(self, key: Hashable, make: Callable[[], Plan]) -> Plan:
        """The plan under `key` of the ops on this tape: it must depend on nothing else."""
        whole = self._trace.whole
        if whole is None:
            return make()
        found = whole.plans.get(key)
        if found is None:
            found = whole.plans[key] = make()
        return found

    def _run(self, plan: Plan, more: Sequence[Any], limits: RunLimits | None) -> dict[str, Any]:
        if plan.runs == REPEATS:
            try:
                plan.step = self.steps.as_machine_code(plan.form, plan.step)
            except ExecutionError as error:
                if error.code != "compiler_failed":
                    raise  # otherwise the step goes on as it is
        plan.runs += 1
        return plan.step.run(plan.form, self._trace.values, more, limits or RunLimits(), self._xp)

    # --- gradients -----------------------------------------------------------------------------------------------

    def gradients(
        self,
        target: str,
        wrt: Sequence[str] | None = None,
        seed: Any = None,
        limits: RunLimits | None = None,
    ) -> Gradients:
        """Run the backward pass over the ops that reach `target`. The tape stays as it is.

        target: a floating-point variable, with one element unless `seed`, its cotangent, is given.
        wrt:    any variables; None means all parameters.

        Raises ProgramError (unknown_variable, loss_not_float, loss_not_scalar, target_grad_shape,
        no_gradient_registered), and the errors of a run.
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
                with pointing_to("/target_gradient"):
                    check_seed(target, _type_of(value), _type_of(seed))
            asked = tuple((name, self._trace.types[name]) for name in (target, *wrt))
            plan = self._planned(("backward", asked), lambda: self._backward_plan(target, wrt))
            found = self._run(plan, [seed], limits)
        places, playback = plan.places, plan.step.playback
        assert playback is not None
        return Gradients(
            value,
            found,
            dict(plan.missing),
            tuple([places[i] for i in playback.played]),
            tuple([(plan.form.names[int(n[1:])], None if i is None else places[i]) for n, i in playback.final]),
            ran,
        )

    def _backward_plan(self, target: str, wrt: Sequence[str]) -> Plan:
        places = self._trace.reaching([target])
        form = Form([self._trace.ops[p] for p in places], self._trace.types, [target])
        differentiable = [name for name in wrt if name in form.number and self._trace.is_float(name)]
        step = self.steps.backward(form, target, differentiable)
        reached = {form.names[i] for i in step.writes}
        missing = why_missing(self._trace, target, places, [name for name in wrt if name not in reached])
        return Plan(places, form, step, missing)

    def record_gradients(
        self,
        target: str,
        wrt: Sequence[str] | None = None,
        seed: str | None = None,
        limits: RunLimits | None = None,
    ) -> tuple[dict[str, str], dict[str, str], list[Appended]]:
        """Append the ops that compute the gradients, so that they can be used and differentiated like any others.

        seed: a variable with the cotangent of `target`.
        Returns (variable -> variable of its gradient, variable -> reason for a missing gradient, the ops).
        Raises the errors of `gradients`, and ProgramError (tape_full).
        """
        wrt = self._wrt(wrt)
        self._check_target(target, seeded=seed is not None)
        if seed is not None:
            with pointing_to("/target_gradient"):
                check_seed(target, self._trace.types[target], self._trace.array_type(seed))
        places = self._trace.reaching([target])
        differentiable = [name for name in wrt if self._trace.is_float(name)]
        with headroom(), self._trace.all_or_nothing() as change:
            gradients = record(self._trace, change, target, places, differentiable, seed)
            if self.mode == "immediate":
                self._compute(list(gradients.values()), limits)
        missing = why_missing(self._trace, target, places, [name for name in wrt if name not in gradients])
        return gradients, missing, self.appended(change.places)

    def _wrt(self, wrt: Sequence[str] | None) -> list[str]:
        if wrt is None:
            return self.parameters
        for i, name in enumerate(wrt):
            with pointing_to(f"/wrt/{i}"):
                self._trace.array_type(name)
        return list(wrt)

    def _check_target(self, target: str, seeded: bool) -> None:
        with pointing_to("/target"):
            self._check_type_of_target(target, seeded)

    def _check_type_of_target(self, target: str, seeded: bool) -> None:
        type = self._trace.array_type(target)
        if not type.is_float:
            raise ProgramError(f"{target!r} is {type}, not floating-point", "loss_not_float")
        if not seeded and any(n not in (1, -1) for n in type.shape):
            raise ProgramError(
                f"{target!r} must have one element, not {type}",
                "loss_not_scalar",
                suggestion="reduce it first with mean or reduce_sum, or give its cotangent",
            )

    # --- freeing -------------------------------------------------------------------------------------------------

    def release(self, names: Iterable[str]) -> None:
        """End the client's use of `names`. Ops and values that nothing else needs are freed, parameters included.

        Names that are not on the tape are ignored.
        """
        self._trace.release(names)

    def renew(self) -> None:
        """Remove everything but the parameters and their values. Random ops draw from a new key afterwards."""
        self._trace.renew()
        self.renewals += 1
        self._set_key()

    @contextmanager
    def _renewed(self, renew: bool) -> Iterator[None]:
        """Renew the tape if `renew` is set, and restore it if an error is raised inside."""
        if not renew:
            yield
            return
        saved, renewals = self._trace.snapshot(), self.renewals
        self.renew()
        try:
            yield
        except BaseException:
            self._trace.restore(saved)
            self.renewals = renewals
            raise

    def _set_key(self) -> None:
        self._trace.set_key(self._xp.asarray(key_of(self.seed, self.renewals)))


def _type_of(value: Any) -> TensorType:
    return TensorType(tuple(value.shape), str(value.dtype))
