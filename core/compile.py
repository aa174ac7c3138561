"""From a program and a question to something that runs: the table of contents of the compiler."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any, Literal

import numpy as np

import core.ops  # noqa: F401  (fills the registry)
from core.autodiff import Cotangent, Densified
from core.backward import Backward, Budget, Choice, Options, Unconnected, append_backward, gradients
from core.build import BlockBuilder, SparseRows, Value, widened
from core.clipping import Clip
from core.errors import ExecutionError, ProgramError
from core.headroom import headroom
from core.hooks import Hook
from core.ir import Block, Program, TensorType, Variable
from core.loss_scale import FACTOR, STREAK, LossScale, Scaled, all_finite, rounded, scaled, unscaled
from core.ops.control import LoopMemory
from core.ops.types import as_dtype
from core.optim import Optimizer, needs_whole, state_types
from core.passes import optimize
from core.passes.bind import bind
from core.runtime.native import native_plan
from core.runtime.reference import Message, Plan, Run, RunLimits, plan
from core.sparse import RowArray

__all__ = [
    "Backward",
    "Budget",
    "Choice",
    "Clip",
    "Executable",
    "GradientQuery",
    "LossScale",
    "Optimizer",
    "Options",
    "Outputs",
    "Update",
    "append_backward",
    "bound",
    "compile_forward",
    "compile_gradient",
    "compile_training",
    "compile_update",
    "differentiate",
    "gradient_step",
    "gradients",
    "key_of",
    "optimize",
]


STEPS = "@STEPS"
"""The optimiser's count of updates, which a learning-rate schedule reads."""


@dataclass(frozen=True, slots=True)
class GradientQuery:
    """Which gradients are wanted: of a scalar `loss` by parameters, or of `targets` by `inputs`.

    target_gradients: for each target True if its cotangent is given with each step, as ``target_gradients/<i>``,
    and False for ones; empty means ones for all.
    """

    loss: str | None = None
    parameter_list: tuple[str, ...] | None = None
    targets: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    target_gradients: tuple[bool, ...] = ()
    no_grad_set: tuple[str, ...] = ()
    unconnected: Unconnected = "null"
    hooks: tuple[Hook, ...] = ()
    checkpoints: tuple[str, ...] | Literal["auto"] | Budget = ()
    loop_memory: LoopMemory | Budget = "store"

    def __post_init__(self) -> None:
        if (self.loss is None) == (not self.targets):
            raise ProgramError("give either a loss or targets and inputs", "bad_query")
        if self.loss is not None and (self.inputs or self.target_gradients):
            raise ProgramError("inputs and target_gradients go with targets, not with a loss", "bad_query")
        if self.targets and self.parameter_list is not None:
            raise ProgramError("parameter_list goes with a loss, not with targets", "bad_query")

    @property
    def options(self) -> Options:
        """How the gradients are computed, whichever are asked for."""
        return Options(self.no_grad_set, self.unconnected, self.hooks, self.checkpoints, self.loop_memory)


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one step gave. Arrays are on the device the step ran on.

    A gradient of a table may be a RowArray; its new value, and that of an optimiser slot, is one then where the
    optimiser changes these rows alone. scaling: the `loss_scale` of this step, and whether it was `skipped`.

    messages, unsaid: what ops reported, in their order, and how many more were left out.
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
    densified: tuple[Densified, ...] = ()
    messages: tuple[Message, ...] = ()
    unsaid: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """What a result of a block is: the field of `Outputs` it belongs to, and its name there.

    table: the shape of the whole table, if this and the result before it are values and numbers of rows of it.
    """

    place: str
    name: str
    table: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Executable:
    """A block ready to run, and what its parameters and results mean.

    layout:   what each result is; those that hold numbers of rows are in the place "rows".
    ready_at: requested name -> position, in the program with its backward pass, of the op after which its gradient is
              final; the plan has it then at the latest.
    choice:   what was chosen for a budget.
    machine:  the same plan as machine code, where there is any; see `compiled`.
    """

    plan: Plan
    inputs: tuple[Variable, ...]
    layout: tuple[Result, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    densified: tuple[Densified, ...] = ()
    optimizer: Optimizer | None = None
    trained: tuple[Variable, ...] = ()
    choice: Choice | None = None
    ready_at: Mapping[str, int] = field(default_factory=dict)
    loss_scale: LossScale | None = None
    machine: Plan | None = None

    def compiled(self) -> Executable:
        """The same with machine code for this CPU, wherever an op has any; the rest runs as it did."""
        with headroom():
            return replace(self, machine=native_plan(self.plan.block))

    def step(
        self,
        values: Mapping[str, Any],
        seed: int = 0,
        step: int = 0,
        limits: RunLimits | None = None,
        xp: ModuleType = np,
        when_final: Callable[[str, Any], None] | None = None,
    ) -> Outputs:
        """Run once on arrays for every feed, parameter, state and optimiser slot, by name.

        when_final: called with the name and the value of each gradient, once, as soon as it is final: the gradients of
                    last layers come while those of first ones are still being computed. What it raises ends the run.

        The same values, seed and step give the same bytes on the same device.
        Raises ProgramError (feed_missing, feed_unknown, feed_shape, feed_dtype) or ExecutionError.
        """
        args = []
        taken = 0
        for variable in self.inputs:
            if variable.role == "key":
                args.append(xp.asarray(key_of(seed, step)))
                continue
            if variable.name not in values:
                raise ProgramError(f"no value is given for {variable.name!r} ({variable.type})", "feed_missing")
            args.append(_checked(variable, values[variable.name], xp))
            taken += 1
        if taken != len(values):
            unknown = values.keys() - {v.name for v in self.inputs}
            raise ProgramError(f"{min(unknown)!r} is no feed, parameter or state of the program", "feed_unknown")
        limits = limits or RunLimits()
        if self.plan.largest > limits.max_bytes:
            raise ExecutionError(
                f"the step needs an array of {self.plan.largest} bytes, more than {limits.max_bytes}", "too_large"
            )
        run = Run(xp, limits)
        # machine code has its values when it is done, and tells nothing on the way
        chosen = self.machine if self.machine is not None and when_final is None and xp is np else self.plan
        if chosen.direct is not None:
            results = chosen.direct(run, *args)
        else:
            with np.errstate(all="ignore"), headroom():
                watch = None if when_final is None else self._watch(when_final, xp)
                results = chosen(run, *args, watch=watch)
        out: dict[str, Any] = {}
        rows = None
        for each, result in zip(self.layout, results, strict=True):
            value = xp.asarray(result)
            if each.place == "rows":
                rows = value
            elif each.place == "loss":
                out["loss"] = value
            else:
                whole = value if each.table is None else RowArray(rows, value, each.table)
                out.setdefault(each.place, {})[each.name] = whole
        out |= {"messages": tuple(run.messages), "unsaid": run.unsaid}
        return Outputs(missing=self.missing, densified=self.densified, **out)

    def _watch(self, when_final: Callable[[str, Any], None], xp: ModuleType) -> dict[str, Callable[[Any], None]]:
        """Variable of the plan -> what tells its value, under each name that it is the gradient of."""
        names: dict[str, list[Callable[[Any], None]]] = {}
        rows: dict[str, Any] = {}
        for i, (variable, result) in enumerate(zip(self.plan.block.results, self.layout, strict=True)):
            if result.place != "gradients":
                continue
            own = None if result.table is None else self.plan.block.results[i - 1]
            if own is not None:  # the rows are there before their values, or with them
                names.setdefault(own, []).append(partial(rows.__setitem__, own))

            def tell(value: Any, result: Result = result, own: str | None = own) -> None:
                value = xp.asarray(value)
                if own is not None:
                    assert result.table is not None
                    value = RowArray(xp.asarray(rows[own]), value, result.table)
                when_final(result.name, value)

            names.setdefault(variable, []).append(tell)

        def told(listed: Sequence[Callable[[Any], None]]) -> Callable[[Any], None]:
            def tell_all(value: Any) -> None:
                for each in listed:
                    each(value)

            return tell_all

        return {variable: told(listed) for variable, listed in names.items()}

    def initial_state(self) -> dict[str, np.ndarray]:
        """Zeros for every slot of the optimiser, named ``<parameter>/<slot>``."""
        scale = self.loss_scale.slots if self.loss_scale else {}
        zeros = {name: np.zeros(type.shape, as_dtype(type.dtype)) for name, type in scale.items()}
        return zeros | (_optimizer_zeros(self.optimizer, self.trained) if self.optimizer else {})


def compile_gradient(
    program: Program,
    query: GradientQuery,
    fetch: Sequence[str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    loss_scale: LossScale | None = None,
) -> Executable:
    """The step that computes gradients; nothing is updated but the program's own states (in `Outputs.states`).

    fetch:  further variables to return, gradients of intermediates included.
    shapes: of the feeds whose declaration leaves sizes open.
    loss_scale: what the loss is multiplied by on the way; the gradients are those of the loss itself.
    """
    with headroom():
        found = _differentiated(bound(program, shapes), query, loss_scale, fetch)
        backward = found.backward
        wanted = _question(backward, query, fetch)
        executable = _executable(backward.program, wanted, found.seeds, backward.missing, backward.densified)
        return replace(executable, ready_at=backward.ready_at, choice=backward.choice, loss_scale=loss_scale)


def gradient_step(backward: Backward, query: GradientQuery, fetch: Sequence[str] = ()) -> Block:
    """The optimised block that the step of `query` runs."""
    return _step(backward.program, _question(backward, query, fetch))


def compile_forward(
    program: Program, fetch: Sequence[str] = (), shapes: Mapping[str, Sequence[int]] | None = None
) -> Executable:
    """The step that only evaluates: `fetch` and the program's states."""
    with headroom():
        known = bound(program, shapes)
        wanted = [(Result("fetched", name), _variable(known, name)) for name in fetch]
        return _executable(known, wanted + _updates(known), {}, {})


def compile_training(
    program: Program,
    query: GradientQuery,
    optimizer: Optimizer,
    clip: Clip | None = None,
    fetch: Sequence[str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    loss_scale: LossScale | None = None,
) -> Executable:
    """Forward, backward and optimiser as one step.

    clip: what is done to the gradients between the two; those in `Outputs.gradients` are the ones before.
    loss_scale: what the loss is multiplied by on the way. Where a gradient is not finite then, parameters, states and
                the optimiser's state stay as they are, and `Outputs.scaling` says so.
    """
    if query.loss is None:
        raise ProgramError("training needs a loss", "bad_query")
    with headroom():
        by_name = {v.name: v for v in program.parameters}

        def trained_by(found: _Differentiated) -> tuple[Program, Wanted, tuple[Densified, ...]]:
            backward = found.backward
            wanted = _question(backward, query, fetch)
            b = BlockBuilder.like(backward.program.block)
            finite = b.value(found.finite) if found.finite is not None else None
            trained = [by_name[name] for name in backward.gradients]
            slots, updated, densified = _apply(b, optimizer, trained, found.whole(b), clip, finite)
            if loss_scale is not None and finite is not None:
                updated += found.scaling(b, loss_scale)
                wanted = [
                    (each, _kept(finite, name, each.name) if each.place == "states" else name) for each, name in wanted
                ]
            block = b.build(backward.program.block.results)
            variables = (*backward.program.variables, *slots)
            return replace(backward.program, block=block, variables=variables), wanted + updated, densified

        found = _differentiated(
            bound(program, shapes), query, loss_scale, step_of=lambda found: _step(*trained_by(found)[:2])
        )
        backward = found.backward
        trained_program, wanted, densified = trained_by(found)
        densified = (*backward.densified, *densified)
        executable = _executable(trained_program, wanted, found.seeds, backward.missing, densified)
        trained = tuple(by_name[name] for name in backward.gradients)
        return replace(
            executable,
            optimizer=optimizer,
            trained=trained,
            ready_at=backward.ready_at,
            choice=backward.choice,
            loss_scale=loss_scale,
        )


@dataclass(frozen=True, slots=True)
class Update:
    """Applies gradients that somebody else computed."""

    executable: Executable

    def step(
        self,
        parameters: Mapping[str, Any],
        gradients: Mapping[str, Any],
        optimizer_state: Mapping[str, Any],
        limits: RunLimits | None = None,
        xp: ModuleType = np,
    ) -> Outputs:
        """New parameters and optimiser state. Only the parameters that have a gradient here take part.

        A gradient that the update was compiled to take as rows is a RowArray, whose rows may come in any order and
        more than once.
        """
        values = dict(optimizer_state) | dict(parameters)
        for name, value in gradients.items():
            if isinstance(value, RowArray):
                values[f"{name}@GRAD@ROWS"], value = value.rows, value.values
            values[f"{name}@GRAD"] = value
        return self.executable.step(values, limits=limits, xp=xp)


def compile_update(
    program: Program,
    names: Sequence[str],
    optimizer: Optimizer,
    clip: Clip | None = None,
    by_rows: Collection[str] = (),
) -> Update:
    """The step that takes gradients of the parameters `names` from the client and applies the optimiser.

    by_rows: those of `names` whose gradient comes as ``<name>@GRAD``, values of rows, and ``<name>@GRAD@ROWS``.
    """
    by_name = {v.name: v for v in program.parameters}
    unknown = [n for n in names if n not in by_name or not by_name[n].trainable]
    if unknown:
        raise ProgramError(f"{unknown[0]!r} is no trainable parameter", "unknown_variable")
    b = BlockBuilder()
    trained = tuple(by_name[n] for n in names)
    for v in trained:
        b.param(v.type, v.name)
    types = {f"{v.name}@GRAD": v.type for v in trained}
    for v in trained:
        if v.name in by_rows:
            if v.type.rank == 0:
                raise ProgramError(f"{v.name!r} is {v.type}, which has no rows", "feed_shape")
            types[f"{v.name}@GRAD"] = TensorType((-1, *v.type.shape[1:]), v.type.dtype)
            types[f"{v.name}@GRAD@ROWS"] = TensorType((-1,), "int64")
    feeds = [Variable(b.param(type, name).name, type, "feed") for name, type in types.items()]
    given: list[Cotangent] = []
    for v in trained:
        value = b.value(f"{v.name}@GRAD")
        if v.name in by_rows:
            rows = b.value(f"{v.name}@GRAD@ROWS")
            given.append(SparseRows(*b.emit("merge_rows", value, rows, b.value(v.name))))
        else:
            given.append(value)
    slots, updated, densified = _apply(b, optimizer, trained, given, clip)
    update = Program(b.build([]), (*trained, *feeds, *slots))
    executable = _executable(update, updated, {}, {}, densified)
    return Update(replace(executable, optimizer=optimizer, trained=trained))


def key_of(seed: int, step: int) -> np.ndarray:
    """The 0-d int64 key that random ops of one step draw from: SplitMix64 of seed and step."""
    z = (seed * 0x9E3779B97F4A7C15 + step * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> shift)) * factor % 2**64
    z ^= z >> 31
    return np.asarray(z - 2**64 if z >= 2**63 else z, dtype=np.int64)


def bound(program: Program, shapes: Mapping[str, Sequence[int]] | None) -> Program:
    """`program` with the sizes of its feeds in `shapes`; other names there are left aside. Raises ProgramError."""
    feeds = {v.name for v in program.feeds}
    sizes = {name: shape for name, shape in (shapes or {}).items() if name in feeds}
    block = bind(program.block, sizes)
    if block is program.block:
        return program
    types = block.types
    variables = tuple(replace(v, type=types[v.name]) for v in program.variables)  # type: ignore[arg-type]
    return replace(program, block=block, variables=variables)


def differentiate(
    program: Program,
    query: GradientQuery,
    fetch: Sequence[str] = (),
    step_of: Callable[[Backward], Block] | None = None,
) -> tuple[Backward, dict[str, str]]:
    """The backward pass, and the parameters added for cotangents that come with the step (variable -> name there).

    A budget is about the step of `query` that returns `fetch` besides, or about `step_of` the backward pass.
    """
    step_of = step_of or (lambda backward: gradient_step(backward, query, fetch))
    if query.loss is not None:
        parameters = None if query.parameter_list is None else list(query.parameter_list)
        return append_backward(program, query.loss, parameters, query.options, step_of), {}
    seeds: dict[str, str] = {}
    names: list[str | None] | None = None
    if query.target_gradients:
        if len(query.target_gradients) != len(query.targets):
            raise ProgramError(
                f"{len(query.targets)} targets, but {len(query.target_gradients)} target gradients",
                "target_grad_shape",
            )
        b = BlockBuilder.like(program.block)
        names, feeds = [], []
        for i, (target, given) in enumerate(zip(query.targets, query.target_gradients, strict=True)):
            if not given:
                names.append(None)
                continue
            type = program.block.types[_variable(program, target)]
            assert isinstance(type, TensorType)
            name = b.param(type, f"target@SEED@{i}").name
            seeds[name] = f"target_gradients/{i}"
            feeds.append(Variable(name, type, "feed"))
            names.append(name)
        program = replace(program, block=b.build(program.block.results), variables=(*program.variables, *feeds))
    found = gradients(program, query.targets, query.inputs, names, query.options, step_of)
    return found, seeds


def _variable(program: Program, name: str) -> str:
    variable = program.latest.get(name, name)
    if variable not in program.block.types:
        raise ProgramError(f"there is no variable {name!r} in block 0", "unknown_variable")
    if not isinstance(program.block.types[variable], TensorType):
        raise ProgramError(f"{name!r} is a {program.block.types[variable]}, not an array", "unknown_variable")
    return variable


Wanted = list[tuple[Result, str]]
"""What is wanted, and the variable that is it."""


def _question(backward: Backward, query: GradientQuery, fetch: Sequence[str]) -> Wanted:
    """The results that are wanted."""
    program = backward.program
    wanted: Wanted = []
    for name, grad in backward.gradients.items():
        if name in backward.sparse:
            wanted += _rows("gradients", name, backward.sparse[name], program.block.types[grad])
        else:
            wanted.append((Result("gradients", name), grad))
    if query.loss is not None:
        wanted.append((Result("loss", query.loss), _variable(program, query.loss)))
    wanted += [(Result("fetched", name), _variable(program, name)) for name in fetch]
    wanted += [(Result("recorded", key), variable) for key, variable in backward.recorded.items()]
    return wanted + _updates(program)


def _rows(place: str, name: str, variables: tuple[str, str], table: Any) -> Wanted:
    """Rows of a table as a result: their numbers, then their values."""
    rows, values = variables
    return [(Result("rows", name), rows), (Result(place, name, table.shape), values)]


def _updates(program: Program) -> Wanted:
    """The states that the program writes."""
    return [(Result("states", v.name), program.latest[v.name]) for v in program.states if v.name in program.latest]


def _step(program: Program, wanted: Wanted) -> Block:
    return optimize(replace(program.block, results=tuple(variable for _, variable in wanted)))


def _executable(
    program: Program,
    wanted: Wanted,
    seeds: Mapping[str, str],
    missing: Mapping[str, str],
    densified: tuple[Densified, ...] = (),
) -> Executable:
    by_name = {v.name: v for v in program.variables}
    block = _step(program, wanted)
    params = tuple(by_name[p] for p in block.params)
    named = tuple(replace(v, name=seeds.get(v.name, v.name)) for v in params)
    return Executable(plan(block), named, tuple(result for result, _ in wanted), missing, densified)


def _checked(variable: Variable, value: Any, xp: ModuleType) -> Any:
    """`value` on the device, if it has the declared type; nothing is converted silently."""
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


@dataclass(frozen=True, slots=True)
class _Differentiated:
    """A backward pass, by a scaled loss or not.

    backward: whose gradients are those of the loss itself, in the dtypes of their parameters.
    exact:    these in float32 where that is 16 bits, as (variable of the rows or None, variable of the values).
    factor, finite: the number that the loss is multiplied by, and whether no gradient overflowed; None without.
    limit:    the largest such number.
    """

    backward: Backward
    seeds: Mapping[str, str] = field(default_factory=dict)
    exact: tuple[tuple[str | None, str], ...] | None = None
    factor: str | None = None
    finite: str | None = None
    limit: float = math.inf

    def whole(self, b: BlockBuilder) -> list[Cotangent]:
        """What the optimiser gets."""
        if self.exact is None:
            return [_gradient(b, self.backward, name) for name in self.backward.gradients]
        return [b.value(v) if rows is None else SparseRows(b.value(rows), b.value(v)) for rows, v in self.exact]

    def scaling(self, b: BlockBuilder, scale: LossScale) -> Wanted:
        """What is answered of the loss scale, and what is kept of it."""
        assert self.factor is not None and self.finite is not None
        factor, finite = b.value(self.factor), b.value(self.finite)
        told = [
            (Result("scaling", "loss_scale"), factor.name),
            (Result("scaling", "skipped"), b.emit("logical_not", finite).name),
        ]
        if scale.interval is None:
            return told
        new = scale.after(factor, b.value(STREAK), finite, self.limit)
        return [*told, *((Result("optimizer_state", n), v.name) for n, v in zip((FACTOR, STREAK), new, strict=True))]


def _differentiated(
    program: Program,
    query: GradientQuery,
    scale: LossScale | None,
    fetch: Sequence[str] = (),
    step_of: Callable[[_Differentiated], Block] | None = None,
) -> _Differentiated:
    """`differentiate`, with the loss multiplied by `scale` and the gradients divided by it again."""
    found = None if scale is None or query.loss is None else scaled(program, query.loss, scale)

    def of(backward: Backward) -> _Differentiated:
        return _Differentiated(backward) if found is None else _divided(program, found, backward)

    measured = step_of or (lambda each: gradient_step(each.backward, query, fetch))
    known = program if found is None else found.program
    backward, seeds = differentiate(known, query, fetch, lambda backward: measured(of(backward)))
    return replace(of(backward), seeds=seeds)


def _divided(program: Program, found: Scaled, backward: Backward) -> _Differentiated:
    """The backward pass of `program` from that of the same with a scaled loss."""
    b = BlockBuilder.like(backward.program.block)
    types = {v.name: v.type for v in program.parameters}
    raw = [_gradient(b, backward, name) for name in backward.gradients]
    factor = b.value(found.factor)
    finite = all_finite(raw, factor)
    exact = unscaled(raw, factor)
    answered = {name: rounded(g, types[name]) for name, g in zip(backward.gradients, exact, strict=True)}
    grads = {name: backward.gradients[name] if isinstance(g, SparseRows) else g.name for name, g in answered.items()}
    sparse = {name: (g.rows.name, g.values.name) for name, g in answered.items() if isinstance(g, SparseRows)}
    latest = {**backward.program.latest, found.loss: program.latest.get(found.loss, found.loss)}
    divided = replace(
        backward,
        program=replace(backward.program, block=b.build(backward.program.block.results), latest=latest),
        params_grads=tuple((name, grads.get(name)) for name, _ in backward.params_grads),
        sparse=sparse,
        ready_at={name: at - found.ops for name, at in backward.ready_at.items()},
    )
    pairs = tuple((g.rows.name, g.values.name) if isinstance(g, SparseRows) else (None, g.name) for g in exact)
    return _Differentiated(divided, {}, pairs, found.factor, finite.name, found.limit)


def _kept(finite: Value, new: str, old: str) -> str:
    """The variable `new` where the bool is true, else `old`."""
    b = finite.builder
    return b.emit("where", finite, b.value(new), b.value(old)).name


def _gradient(b: BlockBuilder, backward: Backward, name: str) -> Cotangent:
    """The gradient of the parameter `name`, as rows where it is there that way."""
    if name in backward.sparse:
        rows, values = backward.sparse[name]
        return SparseRows(b.value(rows), b.value(values))
    return b.value(backward.gradients[name])


def _apply(
    b: BlockBuilder,
    optimizer: Optimizer,
    trained: Sequence[Variable],
    grads: Sequence[Cotangent],
    clip: Clip | None,
    finite: Value | None = None,
) -> tuple[list[Variable], Wanted, tuple[Densified, ...]]:
    """Emit the optimiser for each parameter. The slots it needs, the results that come of it, and what it densified.

    finite: one bool; if it is false, everything keeps its value.
    """
    densified: list[Densified] = []

    def kept(new: Value, old: Value) -> Value:
        return new if finite is None else b.emit("where", finite, new, old)

    def whole(parameter: Variable, grad: Cotangent, why: str | None) -> Cotangent:
        """`grad`, as one array if there is a reason why."""
        if why is None or not isinstance(grad, SparseRows):
            return grad
        densified.append(Densified(f"0:{parameter.name}", why))
        return b.emit("scatter_add_like", grad.values, grad.rows, b.value(parameter.name), axis=0)

    if clip is not None:
        why = clip.needs_whole
        if clip.decay_first:
            if optimizer.decays:
                grads = [whole(v, g, "weight_decay") for v, g in zip(trained, grads, strict=True)]
            grads = [optimizer.decayed(widened(b.value(v.name)), _wide(g)) for v, g in zip(trained, grads, strict=True)]
            optimizer = optimizer.without_decay()
        grads = clip.apply([whole(v, g, why) for v, g in zip(trained, grads, strict=True)])
    slots: list[Variable] = []
    wanted: Wanted = []
    rate = None
    if optimizer.schedule is not None:
        steps = b.param(TensorType((), "int64"), STEPS)
        rate = optimizer.schedule.rate(steps)
        slots.append(Variable(STEPS, steps.type, "state"))
        wanted.append((Result("optimizer_state", STEPS), kept(b.emit("increment", steps), steps).name))
    for parameter, grad in zip(trained, grads, strict=True):
        own = [
            Variable(f"{parameter.name}/{slot}", type, "state")
            for slot, type in state_types(optimizer, parameter.type).items()
        ]
        slots += own
        olds = [b.value(parameter.name), *(b.param(v.type, v.name) for v in own)]
        places = [("parameters", parameter.name), *(("optimizer_state", v.name) for v in own)]
        grad = whole(parameter, grad, needs_whole(optimizer, parameter.type.dtype))
        if isinstance(grad, SparseRows):  # the rows that move, before and after, are all it takes
            before = [b.emit("gather", old, grad.rows, axis=0) for old in olds]
            outs = optimizer.update(before[0], grad.values, before[1:], rate)
            for place, out, old in zip(places, outs, before, strict=True):
                wanted += _rows(*place, (grad.rows.name, kept(out, old).name), parameter.type)
            continue
        outs = optimizer.update(olds[0], grad, olds[1:], rate)
        wanted += [(Result(*place), kept(out, old).name) for place, out, old in zip(places, outs, olds, strict=True)]
    return slots, wanted, tuple(densified)


def _wide(gradient: Cotangent) -> Cotangent:
    """`gradient`, in float32 if it is of 16 bits."""
    if isinstance(gradient, SparseRows):
        return SparseRows(gradient.rows, widened(gradient.values))
    return widened(gradient)


def _optimizer_zeros(optimizer: Optimizer, trained: Sequence[Variable]) -> dict[str, np.ndarray]:
    steps = {STEPS: np.zeros((), dtype="int64")} if optimizer.schedule is not None else {}
    return steps | {
        f"{v.name}/{slot}": np.zeros(type.shape, dtype=as_dtype(type.dtype))
        for v in trained
        for slot, type in state_types(optimizer, v.type).items()
    }
