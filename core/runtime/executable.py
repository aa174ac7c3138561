"""A step that is ready to run: an interpreter, and the meaning of its arguments and results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from core.autodiff.cotangents import Densified
from core.cost.budget import Choice
from core.cost.memory import Memory
from core.ir import Variable
from core.ir.errors import ExecutionError, ProgramError
from core.ir.recursion import headroom
from core.ops.common.types import as_dtype
from core.optim.loss_scaling import LossScale
from core.optim.optimizers import STEPS, Optimizer, state_types
from core.runtime.admission import admission_peak, admit
from core.runtime.backend import Backend
from core.runtime.native import native_interpreter
from core.runtime.outputs import KEPT, Result
from core.runtime.reference import Interpreter
from core.runtime.run import Message, Run, RunLimits
from core.runtime.sparse_rows import RowArray
from core.runtime.times import Times

__all__ = ["Executable", "Outputs", "Update", "checked", "key_of"]


@dataclass(frozen=True, slots=True)
class Outputs:
    """The results of one step. Arrays are on the device that the step ran on.

    A gradient of a table may be a RowArray. Then the new value of the table, and of an optimiser slot, is a RowArray
    too if the optimiser changes these rows alone.

    scaling:          the `loss_scale` of this step, and whether it was `skipped`.
    rates:            group of the optimiser -> learning rate of this step, for groups with a schedule.
    messages, unsaid: messages of reporting ops, in order, and the number of messages beyond the limit.
    """

    loss: Any = None
    gradients: dict[str, Any] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    fetched: dict[str, Any] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    optimizer_state: dict[str, Any] = field(default_factory=dict)
    recorded: dict[str, Any] = field(default_factory=dict)
    scaling: dict[str, Any] = field(default_factory=dict)
    rates: dict[str, Any] = field(default_factory=dict)
    densified: tuple[Densified, ...] = ()
    messages: tuple[Message, ...] = ()
    unsaid: int = 0


@dataclass(frozen=True, slots=True)
class Executable:
    """A block ready to run, and the meaning of its parameters and results.

    backend:  compiles the block when `compiled` is called.
    layout:   the meaning of each result; row numbers of sparse results have the place "rows".
    ready_at: requested name -> position, in the program with its backward pass, of the op after which its gradient is
              final; the interpreter has computed it then at the latest.
    choice:   the memory plan that was chosen for a budget.
    machine:  the block with its regions compiled; None before `compiled`.
    packs:    the values for `step` from those of the program, if they differ (`core.compiler.room`).
    adapts:   whether a run with a larger size than the machine code expects makes other code, whose last bits may
              differ. Otherwise such runs stay in the reference executor, and no run depends on earlier ones.
    """

    interpreter: Interpreter
    backend: Backend
    inputs: tuple[Variable, ...]
    layout: tuple[Result, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    densified: tuple[Densified, ...] = ()
    optimizer: Optimizer | None = None
    trained: tuple[Variable, ...] = ()
    choice: Choice | None = None
    ready_at: Mapping[str, int] = field(default_factory=dict)
    loss_scale: LossScale | None = None
    machine: Interpreter | None = None
    packs: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    adapts: bool = True
    _dtypes: tuple[np.dtype, ...] = field(init=False, repr=False, compare=False)
    _peaks: dict[bool, Memory] = field(init=False, repr=False, compare=False)
    _names: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_peaks", {})
        object.__setattr__(self, "_dtypes", tuple(as_dtype(v.type.dtype) for v in self.inputs))
        object.__setattr__(self, "_names", frozenset(v.name for v in self.inputs))

    @property
    def input_names(self) -> frozenset[str]:
        """The names of all inputs."""
        return self._names

    def on(self, backend: Backend) -> Executable:
        """This step for another backend, not compiled."""
        return replace(self, backend=backend, machine=None)

    def compiled(self, timed: bool = False) -> Executable:
        """This step with compiled regions; ops without machine code run in the reference executor.

        timed: the code measures the time of each of its kernels, for steps with `times`.
        """
        with headroom():
            found = native_interpreter(self.interpreter.block, self.backend, timed, self.updated(), self.adapts)
            return replace(self, machine=found)

    def without_code(self) -> Executable:
        """This step in the reference executor, with the same plan: it takes no further memory."""
        found = replace(self, machine=None)
        object.__setattr__(found, "_peaks", self._peaks)
        return found

    def updated(self) -> dict[int, int]:
        """Results that are new values of inputs -> these inputs."""
        where = {v.name: i for i, v in enumerate(self.inputs)}
        new, old = self.interpreter.block.result_types, self.interpreter.block.param_types
        found = {
            i: where[each.name]
            for i, each in enumerate(self.layout)
            if each.place in KEPT and each.table is None and each.name in where
        }
        return {i: j for i, j in found.items() if new[i] == old[j]}

    def step(
        self,
        values: Mapping[str, Any],
        seed: int = 0,
        step: int = 0,
        limits: RunLimits | None = None,
        xp: ModuleType = np,
        when_final: Callable[[str, Any], None] | None = None,
        times: Times | None = None,
    ) -> Outputs:
        """Run once on arrays for every feed, parameter, state and optimiser slot, by name.

        when_final: called once with the name and the value of each gradient, as soon as it is final: gradients of the
                    last layers come while those of the first layers are still being computed. An exception that it
                    raises ends the run.
        times:      collects the time of each kernel; kernels of machine code are timed if it is `compiled` as timed.

        The same values, seed and step give the same bytes on the same device, as long as the code is the same: a size
        that it does not expect makes other code if the step `adapts`, which may add in another order
        (`core.runtime.expecting`). The step with that size has the bytes of the new code.
        Raises ProgramError (feed_missing, feed_unknown, feed_shape, feed_dtype) or ExecutionError.
        """
        args = self._arguments(values, seed, step, xp)
        limits = limits or RunLimits()
        if self.interpreter.largest > limits.max_bytes:
            raise ExecutionError(
                f"the step needs an array of {self.interpreter.largest} bytes, more than {limits.max_bytes}",
                "too_large",
            )
        run = Run(xp, limits, times=times)
        # machine code returns all values at its end, so it cannot report a gradient before
        chosen = self.interpreter
        if self.machine is not None and when_final is None and self.backend.runs_on(xp):
            chosen = self.machine
        self.admit(run, chosen is self.machine)
        started = time.perf_counter()
        if chosen.region is not None:
            results = chosen.picked(chosen.region(run, *args))
        else:
            with np.errstate(all="ignore"), headroom():
                watch = None if when_final is None else self._watch(when_final, xp)
                results = chosen(run, *args, watch=watch)
        if times is not None:
            times.seconds += time.perf_counter() - started
        return self.outputs([r if isinstance(r, xp.ndarray) else xp.asarray(r) for r in results], run)

    def _arguments(self, values: Mapping[str, Any], seed: int, step: int, xp: ModuleType) -> list[Any]:
        """The arguments of the block, in their order: the checked `values`, and the key of this step."""
        args = []
        taken = 0
        for variable, dtype in zip(self.inputs, self._dtypes, strict=True):
            if variable.role == "key":
                args.append(xp.asarray(key_of(seed, step)))
                continue
            if variable.name not in values:
                raise ProgramError(f"no value is given for {variable.name!r} ({variable.type})", "feed_missing")
            value = values[variable.name]
            if type(value) is not xp.ndarray or value.dtype != dtype or value.shape != variable.type.shape:
                value = checked(variable, value, xp)
            args.append(value)
            taken += 1
        if taken != len(values):
            unknown = values.keys() - self._names
            raise ProgramError(f"the program has no feed, parameter or state {min(unknown)!r}", "feed_unknown")
        return args

    def admit(self, run: Run, as_machine_code: bool) -> None:
        """Refuse `run` if its predicted peak exceeds the memory that is left. Raises OutOfMemory."""
        if run.limits.memory is not None:
            admit(run, self.peak(as_machine_code))

    def peak(self, as_machine_code: bool) -> Memory:
        """The predicted peak of one run of the machine code or of the reference executor, not counting its inputs."""
        found = self._peaks.get(as_machine_code)
        if found is None:
            chosen = self.machine if as_machine_code and self.machine is not None else self.interpreter
            found = self._peaks[as_machine_code] = admission_peak(chosen)
        return found

    def outputs(self, results: Sequence[Any], run: Run | None = None) -> Outputs:
        """`results` of the block by their meaning, with the messages of their `run`."""
        out: dict[str, Any] = {}
        rows = None
        for each, value in zip(self.layout, results, strict=True):
            if each.place == "rows":
                rows = value
            elif each.place == "loss":
                out["loss"] = value
            else:
                whole = value if each.table is None else RowArray(rows, value, each.table)
                out.setdefault(each.place, {})[each.name] = whole
        if run is not None:
            out |= {"messages": tuple(run.messages), "unsaid": run.unsaid}
        return Outputs(missing=self.missing, densified=self.densified, **out)

    def _watch(self, when_final: Callable[[str, Any], None], xp: ModuleType) -> dict[str, Callable[[Any], None]]:
        """Variable of the block -> a function that reports its value under each name that it is the gradient of."""
        names: dict[str, list[Callable[[Any], None]]] = {}
        rows: dict[str, Any] = {}
        for i, (variable, result) in enumerate(zip(self.interpreter.block.results, self.layout, strict=True)):
            if result.place != "gradients":
                continue
            own = None if result.table is None else self.interpreter.block.results[i - 1]
            if own is not None:  # row numbers are computed before their values, or together
                names.setdefault(own, []).append(partial(rows.__setitem__, own))

            def report(value: Any, result: Result = result, own: str | None = own) -> None:
                value = xp.asarray(value)
                if own is not None:
                    assert result.table is not None
                    value = RowArray(xp.asarray(rows[own]), value, result.table)
                when_final(result.name, value)

            names.setdefault(variable, []).append(report)

        def all_of(reports: Sequence[Callable[[Any], None]]) -> Callable[[Any], None]:
            def report_all(value: Any) -> None:
                for report in reports:
                    report(value)

            return report_all

        return {variable: all_of(reports) for variable, reports in names.items()}

    def initial_state(self) -> dict[str, np.ndarray]:
        """Zeros for every slot of the optimiser, named ``<parameter>/<slot>``."""
        scale = self.loss_scale.slots if self.loss_scale else {}
        zeros = {name: np.zeros(type.shape, as_dtype(type.dtype)) for name, type in scale.items()}
        return zeros | (_optimizer_zeros(self.optimizer, self.trained) if self.optimizer else {})


@dataclass(frozen=True, slots=True)
class Update:
    """Applies gradients that the client computed."""

    executable: Executable

    def step(
        self,
        parameters: Mapping[str, Any],
        gradients: Mapping[str, Any],
        optimizer_state: Mapping[str, Any],
        limits: RunLimits | None = None,
        xp: ModuleType = np,
    ) -> Outputs:
        """New values of the parameters that have a gradient here, and of their optimiser state.

        If the update was compiled with a gradient as rows, that gradient is a RowArray whose rows may have any order
        and duplicates.
        """
        values = dict(optimizer_state) | dict(parameters)
        for name, value in gradients.items():
            if isinstance(value, RowArray):
                values[f"{name}@GRAD@ROWS"], value = value.rows, value.values
            values[f"{name}@GRAD"] = value
        return self.executable.step(values, limits=limits, xp=xp)


def key_of(seed: int, step: int) -> np.ndarray:
    """The 0-d int64 key that random ops of one step draw from: SplitMix64 of seed and step."""
    z = (seed * 0x9E3779B97F4A7C15 + step * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> shift)) * factor % 2**64
    z ^= z >> 31
    return np.asarray(z - 2**64 if z >= 2**63 else z, dtype=np.int64)


def checked(variable: Variable, value: Any, xp: ModuleType) -> Any:
    """`value` on the device, if it has the declared type; values are never converted silently.

    Raises ProgramError (feed_shape, feed_dtype).
    """
    value = xp.asarray(value)
    if value.dtype == as_dtype(variable.type.dtype) and value.shape == variable.type.shape:
        return value
    if str(value.dtype) != variable.type.dtype:
        raise ProgramError(
            f"{variable.name!r} is declared as {variable.type}, but is given {value.dtype}", "feed_dtype"
        )
    given, wanted = value.shape, variable.type.shape
    if len(given) != len(wanted) or any(m not in (-1, n) for m, n in zip(wanted, given, strict=True)):
        raise ProgramError(
            f"{variable.name!r} is declared as {variable.type}, but is given the shape {list(given)}", "feed_shape"
        )
    return value


def _optimizer_zeros(optimizer: Optimizer, trained: Sequence[Variable]) -> dict[str, np.ndarray]:
    own = [(v, optimizer.of(v.name)) for v in trained]
    scheduled = any(each.schedule is not None for _, each in own)
    steps = {STEPS: np.zeros((), dtype="int64")} if scheduled else {}
    return steps | {
        f"{v.name}/{slot}": np.zeros(type.shape, dtype=as_dtype(type.dtype))
        for v, each in own
        for slot, type in state_types(each, v.type).items()
    }
