"""From a program and a question to something that runs: the table of contents of the compiler."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import core.ops  # noqa: F401  (fills the registry)
from core.answer import Backward
from core.backward import append_backward, gradients
from core.build import BlockBuilder, Cotangent, SparseRows, Value, widened
from core.clipping import Clip
from core.cost.budget import Budget, Choice
from core.cotangents import Densified
from core.errors import ProgramError
from core.executable import Executable, Outputs, Result, Update, key_of
from core.headroom import headroom
from core.ir import Block, Program, TensorType, Variable
from core.loss_scale import FACTOR, STREAK, LossScale, Scaled, all_finite, rounded, scaled, unscaled
from core.optim import STEPS, Optimizer, needs_whole, state_types
from core.options import Options
from core.passes import optimize
from core.passes.bind import bind
from core.query import GradientQuery
from core.runtime.reference import plan

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
    gives_gradients: bool = True,
) -> Executable:
    """Forward, backward and optimiser as one step.

    gives_gradients: whether the gradients are results too; one that only its update reads need not exist as a whole.
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
            wanted = _question(backward, query, fetch, gives_gradients)
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


def _question(backward: Backward, query: GradientQuery, fetch: Sequence[str], gives_gradients: bool = True) -> Wanted:
    """The results that are wanted."""
    program = backward.program
    wanted: Wanted = []
    for name, grad in backward.gradients.items() if gives_gradients else ():
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
