"""`append_backward` and `gradients`: append the backward pass to a program.

The forward ops keep their positions; the ops of the backward pass follow them. The result holds the program and tables
about its gradients: their variables, the positions where they are final, and the reasons for missing gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from core.autodiff.activity import Activity
from core.autodiff.adjoint import Adjoint
from core.autodiff.hooks import Hooks
from core.backward.backward_program import Backward, rewrites, roles
from core.backward.query import Options, check_hooks, cuts, with_memory, without_flow
from core.backward.unreachable import Unreachable
from core.cost.budget import Budget, Policies, choose
from core.ir import Block, Op, Program, StackType, TensorType, blocks_inside, live
from core.ir.builder import BlockBuilder, Cotangent, SparseRows, Value
from core.ir.errors import Location, ProgramError, pointing_to
from core.ir.names import list_of_names, root_variable
from core.ir.recursion import headroom
from core.ir.size import check_size
from core.ir.suggest import near
from core.passes import optimize
from core.passes.recompute import recompute

__all__ = ["Backward", "Options", "append_backward", "check_seed", "gradients"]

StepOf = Callable[[Backward], Block]
"""A function from a backward pass to its optimised step."""


def append_backward(
    program: Program,
    loss: str,
    parameter_list: Sequence[str] | None = None,
    options: Options | None = None,
    step_of: StepOf | None = None,
) -> Backward:
    """Append to `program` the ops that compute d loss / d parameter.

    loss:           name of a floating-point variable of one element in block 0.
    parameter_list: names of parameters; None means all trainable parameters, in the order of their declaration.
    step_of:        the optimised step whose memory a budget limits. By default it returns the loss, the gradients and
                    the states.

    Raises ProgramError: loss_not_scalar, loss_not_float, loss_has_stop_gradient, loss_not_in_root, unknown_variable,
    bad_parameter_list, bad_no_grad_set, bad_hook, checkpoint_unknown, no_gradient_registered, budget_too_small,
    limit_exceeded.
    """
    with pointing_to("/loss"):
        target = root_variable(program, loss, "loss_not_in_root")
        _check_loss(program.block, loss, target)
    if parameter_list is None:
        wanted = [v.name for v in program.parameters if v.trainable]
    else:
        wanted = list_of_names(parameter_list, "bad_parameter_list")
        known = {v.name for v in program.variables if v.role == "parameter"}
        for i, name in enumerate(wanted):
            if name not in known:
                hint, place = near(name, [v.name for v in program.parameters]), f"/parameter_list/{i}"
                text = f"the program has no parameter {name!r}"
                raise ProgramError(text, "unknown_variable", suggestion=hint, pointer=place)
    with headroom():
        return _within_budget(program, [target], wanted, None, options or Options(), step_of)


def gradients(
    program: Program,
    targets: Sequence[str],
    inputs: Sequence[str],
    target_gradients: Sequence[str | None] | None = None,
    options: Options | None = None,
    step_of: StepOf | None = None,
) -> Backward:
    """Append to `program` the sum of the vector-Jacobian products of `targets` with respect to `inputs`.

    targets:          floating-point variables of block 0, of any shape; a target listed twice counts twice.
    inputs:           parameters, feeds, or variables of block 0; an input listed twice is returned twice.
    target_gradients: for each target the variable of its cotangent, or None for ones.
    step_of:          see `append_backward`.

    Raises ProgramError: unknown_variable, loss_not_in_root, loss_not_float, target_grad_shape, bad_no_grad_set,
    budget_too_small.
    """
    names = []
    for i, target in enumerate(list_of_names(targets, "bad_targets")):
        with pointing_to(f"/targets/{i}"):
            name = root_variable(program, target, "loss_not_in_root")
            type = program.block.types[name]
            if not type.is_float or isinstance(type, StackType):
                raise ProgramError(f"target {name!r} is {type}, not floating-point", "loss_not_float")
        names.append(name)
    if not names:
        raise ProgramError("the list of targets is empty", "bad_targets")
    seeds: list[str | None] = [None] * len(names)
    if target_gradients is not None:
        if len(target_gradients) != len(names):
            raise ProgramError(
                f"{len(names)} targets, but {len(target_gradients)} target gradients", "target_grad_shape"
            )
        seeds = [None if s is None else root_variable(program, s, "unknown_variable") for s in target_gradients]
        for target, seed in zip(names, seeds, strict=True):
            if seed is not None:
                check_seed(target, program.block.types[target], program.block.types[seed])
    wanted = list_of_names(inputs, "bad_inputs")
    with headroom():
        return _within_budget(program, names, wanted, seeds, options or Options(), step_of)


def _check_loss(block: Block, loss: str, variable: str) -> None:
    type = block.types[variable]
    if isinstance(type, StackType) or not type.is_float:
        raise ProgramError(f"the loss {loss!r} is {type}, not floating-point", "loss_not_float")
    if any(n != 1 for n in type.shape):
        raise ProgramError(
            f"the loss {loss!r} is {type}: it must have one element",
            "loss_not_scalar",
            suggestion="reduce it first, with mean or reduce_sum",
        )
    if variable in block.stopped:
        raise ProgramError(f"the loss {loss!r} has stop_gradient set", "loss_has_stop_gradient")


def check_seed(target: str, wanted: Any, given: Any) -> None:
    """Raise ProgramError (target_grad_shape) if `given` cannot be the cotangent of a value of type `wanted`."""
    fits = (
        given.dtype == wanted.dtype
        and len(given.shape) == len(wanted.shape)
        and all(m == n or -1 in (m, n) for m, n in zip(given.shape, wanted.shape, strict=True))
    )
    if not fits:
        raise ProgramError(f"the target gradient of {target!r} is {given}, not {wanted}", "target_grad_shape")


def _within_budget(
    program: Program,
    targets: list[str],
    wanted: list[str],
    seeds: list[str | None] | None,
    options: Options,
    step_of: StepOf | None,
) -> Backward:
    """The backward pass; if `options` have a budget, with the policies and cuts that fit it."""
    budget = options.budget
    if budget is None:
        return _backward(_walk(program, targets, wanted, seeds, options))
    loops, cuts = isinstance(options.loop_memory, Budget), isinstance(options.checkpoints, Budget)
    asked = options
    options = replace(
        options,
        loop_memory="store" if loops else options.loop_memory,
        checkpoints=() if cuts else options.checkpoints,
    )
    found: dict[Any, Backward] = {}
    walks: dict[Policies, _Walk] = {}  # cuts add recomputed ops to the same adjoint

    def compiled(policies: Policies, cuts: tuple[int, ...]) -> tuple[Backward, Block]:
        if policies not in walks:
            walks[policies] = _walk(program, targets, wanted, seeds, options, policies)
        backward = found[policies, cuts] = _backward(walks[policies], cuts)
        return backward, (step_of or (lambda each: _default_step(each, targets)))(backward)

    apart = not (options.hooks or options.no_grad_set or options.checkpoints) and options.loop_memory == "store"
    member = "loop_memory" if asked.loop_memory is budget else "checkpoints"
    with pointing_to(f"/{member}/bytes"):
        choice = choose(budget, compiled, loops, cuts, apart)
    return replace(found[choice.key], choice=choice)


def _default_step(backward: Backward, targets: Sequence[str]) -> Block:
    program = backward.program
    results = [*targets, *backward.gradients.values(), *backward.recorded.values()]
    results += [program.latest[v.name] for v in program.states if v.name in program.latest]
    return optimize(replace(program.block, results=tuple(dict.fromkeys(results))))


@dataclass(frozen=True, slots=True)
class _Walk:
    """The walk through the forward ops in reverse, before any forward op is recomputed. Nothing changes it.

    block:     the forward part.
    variables: requested name -> variable.
    grads:     variable -> its dense gradient. tables: variable -> (row numbers, values) of a row-sparse one.
    missing:   requested name -> the reason for a missing gradient, and the place.
    recorded:  the arrays of the `record` hooks.
    adjoint:   the ops that compute gradients and recorded arrays.
    """

    program: Program
    targets: list[str]
    wanted: list[str]
    options: Options
    block: Block
    a: Adjoint
    hooks: Hooks
    variables: dict[str, str]
    grads: dict[str, str]
    tables: dict[str, tuple[str, str]]
    missing: dict[str, tuple[str, Location | None]]
    recorded: dict[str, str]
    adjoint: tuple[Op, ...]


def _walk(
    program: Program,
    targets: list[str],
    wanted: list[str],
    seeds: list[str | None] | None,
    options: Options,
    policies: Policies = (),
) -> _Walk:
    """The walk by `options`, which hold no budget. policies: of loops, from a budget."""
    block = with_memory(program.block, options, policies)
    variables = {}
    for i, name in enumerate(wanted):
        with pointing_to(f"/inputs/{i}"):  # those of a parameter_list are checked already
            variables[name] = root_variable(program, name, "unknown_variable", entry=True)
    cut, inside = without_flow(program, block, options)
    activity = Activity(inside)
    hooks = Hooks(options.hooks, program.roles)
    check_hooks(program, options.hooks)
    a = Adjoint(block, cut=cut, activity=activity, hooks=hooks)
    frozen = {v.name for v in program.parameters if not v.trainable}
    wrt = [v for v in dict.fromkeys(variables.values()) if v not in frozen]
    found = a.run_by_rows(_seeded(a, targets, seeds), wrt)

    grads = {v: a.final(_dense(a, v, ct).name) for v, ct in found.items()}
    tables = {v: (a.final(ct.rows.name), a.final(ct.values.name)) for v, ct in found.items() if _is_sparse(ct, a, v)}
    without = {name: v for name, v in variables.items() if v not in grads}
    unreachable = Unreachable(program, block, targets, cut, activity) if without else None
    missing = {name: unreachable.reason(v) for name, v in without.items()} if unreachable else {}
    if missing and options.unconnected == "error":
        name, (why, _) = next(iter(missing.items()))
        raise ProgramError(f"{name!r} has no gradient: {why}", "no_gradient")
    if options.unconnected == "zeros":
        for name in missing:
            v = variables[name]
            grads[v] = a.final(a.b.zeros_like(a.b.value(v)).name)
    recorded = {key: a.final(_as_array(a.b, ct).name) for key, ct in a.cotangents.recorded.items()}

    results = [grads[v] for v in dict.fromkeys(variables.values()) if v in grads] + list(recorded.values())
    results += [name for table in tables.values() for name in table]
    adjoint = live(a.ops(), results)
    return _Walk(
        program, targets, wanted, options, block, a, hooks, variables, grads, tables, missing, recorded, adjoint
    )


def _backward(walk: _Walk, chosen: tuple[int, ...] = ()) -> Backward:
    """The backward pass of a walk. chosen: cuts, from a budget."""
    program, options, block, a, adjoint = walk.program, walk.options, walk.block, walk.a, walk.adjoint
    grads, missing, variables = walk.grads, walk.missing, walk.variables
    again = None
    if at := cuts(program, block, options, chosen):
        again = recompute(a.part(a.primal, block.params, block.results), adjoint, *at)
        adjoint = again.ops
    joined = a.part((*a.primal, *adjoint), block.params, block.results, again.types if again else None)
    check_size(joined)

    n = len(a.primal)
    written = {name: i for i, op in enumerate(joined.ops) for name in op.outputs}
    present = {*written, *(name for inner in blocks_inside(adjoint) for name in inner.types)}
    origin = {g: v for g, v in a.cotangents.origin.items() if g in written}
    return Backward(
        program=replace(program, block=joined),
        params_grads=tuple((name, grads.get(variables[name])) for name in walk.wanted),
        grad_to_var={g: v for g, v in a.origins().items() if g in present},
        grad_info_map={v: (g, 0) for g, v in origin.items() if g.endswith("@GRAD")},
        forward_of=tuple((n + i, op.location) for i, op in enumerate(adjoint)),
        roles=roles(joined, n, walk.targets, {g for g, v in origin.items() if v in walk.targets}),
        ready_at={name: written[g] for name, v in variables.items() if (g := grads.get(v)) in written},
        missing={name: why for name, (why, _) in missing.items()} if options.unconnected == "null" else {},
        cut_at={name: at for name, (_, at) in missing.items() if at is not None},
        rewrites=rewrites(block, joined, again),
        recorded=walk.recorded,
        hooked=tuple(walk.hooks.applied),
        checkpoints=again.checkpoints if again else (),
        sparse={name: walk.tables[v] for name, v in variables.items() if v in walk.tables},
        densified=tuple(a.cotangents.densified),
        forward=block,
        rule_calls={i: replace(call, adjoint=tuple(map(a.final, call.adjoint))) for i, call in a.rule_calls.items()},
    )


def _seeded(a: Adjoint, targets: Sequence[str], seeds: Sequence[str | None] | None) -> list[tuple[str, Value]]:
    """Each target with its seed: the given cotangent, or ones. The ones get the location of the last target's op."""
    writer = next((op.location for op in a.block.ops if targets[-1] in op.outputs), None)
    with a.b.at(writer and replace(writer, adjoint=True)):
        return [
            (t, a.b.value(s) if s is not None else a.ones(t))
            for t, s in zip(targets, seeds or [None] * len(targets), strict=True)
        ]


def _is_sparse(ct: Cotangent, a: Adjoint, variable: str) -> TypeGuard[SparseRows]:
    """Whether a gradient is also returned row-sparse, which needs a table of static shape."""
    return isinstance(ct, SparseRows) and a.b.types[variable].is_static


def _dense(a: Adjoint, variable: str, ct: Cotangent) -> Value:
    """A gradient as one dense array.

    A gradient that is also returned row-sparse is not reported in `densified`: a reader of its rows removes the dense
    array as dead code.
    """
    return a.cotangents.dense(variable, ct, None if _is_sparse(ct, a, variable) else "open_size")


def _as_array(b: BlockBuilder, ct: Value) -> Value:
    """A recorded cotangent as an array. A stack becomes one row for each trip, the trips of inner loops in order."""
    while isinstance(ct.type, StackType) and isinstance(ct.type.element, StackType):
        ct = b.emit("array_flatten", ct)
    if isinstance(ct.type, StackType):
        assert isinstance(ct.type.element, TensorType)
        ct = b.emit("array_join", ct, shape=ct.type.element.shape, dtype=ct.type.element.dtype)
    return ct
