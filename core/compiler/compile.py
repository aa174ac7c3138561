"""Compile a program and a query to an executable step: the entry points of the compiler."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import core.ops  # noqa: F401  (fills the registry)
from core.autodiff.cotangents import Densified
from core.backward.append_backward import append_backward, gradients
from core.backward.backward_program import Backward
from core.backward.query import GradientQuery, Options
from core.compiler.backends import CHOSEN
from core.compiler.differentiate import ScaledBackward, differentiate_scaled, scale_after_update
from core.compiler.lookups import lookups_by_rows
from core.compiler.room import Room
from core.compiler.update import apply_update
from core.cost.budget import Budget, Choice
from core.ir import Program, TensorType, Variable
from core.ir.builder import BlockBuilder, Cotangent, SparseRows, Value
from core.ir.errors import ProgramError
from core.ir.precision import is_half
from core.ir.recursion import headroom
from core.optim.clipping import Clip
from core.optim.loss_scaling import LossScale, all_finite
from core.optim.optimizers import Optimizer
from core.passes import optimize
from core.passes.bind import bind
from core.runtime.executable import Executable, Outputs, Update, key_of
from core.runtime.outputs import Wanted, fetched_by, states_of, step_block, wanted_by
from core.runtime.reference import interpreter_of

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
    "Summed",
    "Update",
    "append_backward",
    "bind_shapes",
    "compile_forward",
    "compile_gradient",
    "compile_training",
    "compile_update",
    "gradients",
    "key_of",
    "optimize",
]


@dataclass(frozen=True, slots=True)
class Summed:
    """Gradients that were added up, of a loss with this scale. limit: the largest scale that the loss can hold.

    With a loss scale, an update with sums that are not finite is skipped and lowers the scale, as a step does.
    """

    loss_scale: LossScale | None = None
    limit: float = math.inf


def compile_gradient(
    program: Program,
    query: GradientQuery,
    fetch: Sequence[str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    loss_scale: LossScale | None = None,
    rounds: bool = True,
    room: Room | None = None,
) -> Executable:
    """Compile the step that computes gradients. It updates only the program's own states (in `Outputs.states`).

    fetch:      further variables to return; gradients of intermediate variables are allowed.
    shapes:     shapes of the feeds with open sizes.
    loss_scale: the scale of the loss during the backward pass; the returned gradients are those of the unscaled loss.
    rounds:     whether gradients of 16-bit parameters are rounded to 16 bits. Without, those of a scaled loss are
                float32, for sums.
    room:       instead of `shapes`, compile one step for all feeds that it has room for.
    """
    with headroom():
        found = differentiate_scaled(_sized(program, shapes, room), query, loss_scale, fetch)
        backward = found.backward if rounds else found.with_exact_gradients()
        wanted = wanted_by(backward, query, fetch)
        executable = _executable(backward.program, wanted, found.seeds, backward.missing, backward.densified)
        executable = replace(executable, ready_at=backward.ready_at, choice=backward.choice, loss_scale=loss_scale)
        return _with_room(executable, room)


def compile_forward(
    program: Program,
    fetch: Sequence[str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    room: Room | None = None,
) -> Executable:
    """Compile the step that only evaluates. It returns `fetch` and the program's states.

    shapes, room: as of `compile_gradient`.
    """
    with headroom():
        program = _sized(program, shapes, room)
        return _with_room(_executable(program, fetched_by(program, fetch) + states_of(program), {}, {}), room)


def compile_training(
    program: Program,
    query: GradientQuery,
    optimizer: Optimizer,
    clip: Clip | None = None,
    fetch: Sequence[str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    loss_scale: LossScale | None = None,
    gives_gradients: bool = True,
    open_rates: bool = False,
    room: Room | None = None,
) -> Executable:
    """Compile forward pass, backward pass and optimiser as one step.

    gives_gradients: whether the step returns the gradients too. If not, a gradient that only its update reads may stay
                     row-sparse or be fused into the update.
    clip:            clipping between backward pass and optimiser; `Outputs.gradients` holds the unclipped gradients.
    loss_scale:      the scale of the loss during the backward pass. If a scaled gradient is not finite, parameters,
                     states and optimiser state do not change, and `Outputs.scaling` reports the skipped update.
    open_rates:      whether the learning rates are inputs of the step (core.optim.rates), not constants.
    room:            as of `compile_gradient`.
    """
    with headroom():
        by_name = {v.name: v for v in program.parameters if v.trainable}
        if query.loss is None and by_name.keys().isdisjoint(query.inputs):
            raise ProgramError("training needs a loss, or a trainable parameter among inputs", "bad_query")
        if query.loss is None and loss_scale is not None:
            raise ProgramError("a loss scale needs a loss; scale the target gradients instead", "bad_query")

        def trained_by(backward: Backward) -> list[Variable]:
            return [by_name[name] for name in backward.gradients if name in by_name]

        def with_update(found: ScaledBackward) -> tuple[Program, Wanted, tuple[Densified, ...]]:
            backward = found.backward
            wanted = wanted_by(backward, query, fetch, gives_gradients)
            b = BlockBuilder.like(backward.program.block)
            finite = b.value(found.finite) if found.finite is not None else None
            grads = [g for name, g in found.exact_gradients(b).items() if name in by_name]
            trained = trained_by(backward)
            slots, updated, densified = apply_update(b, optimizer, trained, grads, clip, finite, open_rates)
            if loss_scale is not None and finite is not None:
                updated += found.scaling(b, loss_scale)
                wanted = [
                    (each, _select(finite, name, each.name) if each.place == "states" else name)
                    for each, name in wanted
                ]
            block = b.build(backward.program.block.results)
            variables = (*backward.program.variables, *slots)
            return replace(backward.program, block=block, variables=variables), wanted + updated, densified

        bound = _sized(program, shapes, room)
        if not gives_gradients and not query.hooks and not any("@GRAD" in name for name in fetch):
            bound = lookups_by_rows(bound, by_name, optimizer, clip)
        found = differentiate_scaled(bound, query, loss_scale, fetch, lambda found: step_block(*with_update(found)[:2]))
        backward = found.backward
        trained_program, wanted, densified = with_update(found)
        densified = (*backward.densified, *densified)
        executable = _executable(trained_program, wanted, found.seeds, backward.missing, densified)
        executable = replace(
            executable,
            optimizer=optimizer,
            trained=tuple(trained_by(backward)),
            ready_at=backward.ready_at,
            choice=backward.choice,
            loss_scale=loss_scale,
        )
        return _with_room(executable, room)


def compile_update(
    program: Program,
    names: Sequence[str],
    optimizer: Optimizer,
    clip: Clip | None = None,
    by_rows: Collection[str] = (),
    summed: Summed | None = None,
    open_rates: bool = False,
) -> Update:
    """Compile the step that applies the optimiser to gradients from the client.

    names:   the parameters to update. The gradient of each is the feed ``<name>@GRAD``.
    by_rows: those of `names` with a row-sparse gradient: ``<name>@GRAD`` holds the values of the rows
             ``<name>@GRAD@ROWS``.
    summed:  the gradients are sums that the service added up, those of 16-bit parameters in float32.
    open_rates: as of `compile_training`.
    """
    by_name = {v.name: v for v in program.parameters}
    unknown = [n for n in names if n not in by_name or not by_name[n].trainable]
    if unknown:
        raise ProgramError(f"the program has no trainable parameter {unknown[0]!r}", "unknown_variable")
    b = BlockBuilder()
    trained = tuple(by_name[n] for n in names)
    for v in trained:
        b.param(v.type, v.name)
    types = {}
    for v in trained:
        dtype = "float32" if summed is not None and is_half(v.type) else v.type.dtype
        types[f"{v.name}@GRAD"] = TensorType(v.type.shape, dtype)
        if v.name in by_rows:
            if v.type.rank == 0:
                raise ProgramError(f"{v.name!r} is {v.type} and has no rows", "feed_shape")
            types[f"{v.name}@GRAD"] = TensorType((-1, *v.type.shape[1:]), dtype)
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
    finite = None
    if summed is not None and summed.loss_scale is not None:
        finite = all_finite(given, b.value(trained[0].name))
    slots, updated, densified = apply_update(b, optimizer, trained, given, clip, finite, open_rates)
    if finite is not None and summed is not None and summed.loss_scale is not None:
        held, scaling = scale_after_update(b, summed.loss_scale, finite, summed.limit)
        slots += held
        updated += scaling
    update = Program(b.build([]), (*trained, *feeds, *slots))
    executable = _executable(update, updated, {}, {}, densified)
    return Update(replace(executable, optimizer=optimizer, trained=trained))


def bind_shapes(program: Program, shapes: Mapping[str, Sequence[int]] | None) -> Program:
    """`program` with the shapes of its feeds; other names in `shapes` are ignored. Raises ProgramError (feed_shape)."""
    feeds = {v.name for v in program.feeds}
    sizes = {name: shape for name, shape in (shapes or {}).items() if name in feeds}
    block = bind(program.block, sizes)
    if block is program.block:
        return program
    types = block.types
    variables = tuple(replace(v, type=types[v.name]) for v in program.variables)  # type: ignore[arg-type]
    return replace(program, block=block, variables=variables)


def _sized(program: Program, shapes: Mapping[str, Sequence[int]] | None, room: Room | None) -> Program:
    """`program` with the shapes of its feeds, or with room for many of them."""
    return bind_shapes(program, shapes) if room is None else room.of(program)


def _with_room(executable: Executable, room: Room | None) -> Executable:
    """`executable`, which packs the feeds of each run, and counts the ops of the backward pass as one without room."""
    if room is None:
        return executable
    ready_at = {name: at - room.ops for name, at in executable.ready_at.items()}
    return replace(executable, ready_at=ready_at, packs=room.packed)


def _executable(
    program: Program,
    wanted: Wanted,
    seeds: Mapping[str, str],
    missing: Mapping[str, str],
    densified: tuple[Densified, ...] = (),
) -> Executable:
    by_name = {v.name: v for v in program.variables}
    block = step_block(program, wanted)
    params = tuple(by_name[p] for p in block.params)
    named = tuple(replace(v, name=seeds.get(v.name, v.name)) for v in params)
    layout = tuple(result for result, _ in wanted)
    return Executable(interpreter_of(block), CHOSEN.backend, named, layout, missing, densified)


def _select(finite: Value, new: str, old: str) -> str:
    """The variable `new` if the bool `finite` is true, otherwise `old`."""
    b = finite.builder
    return b.emit("where", finite, b.value(new), b.value(old)).name
