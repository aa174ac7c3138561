"""`append_backward` and `gradients`: a program in, the program with its backward pass out.

The forward ops keep their places; the ops of the backward pass follow them. Beside the program come, as data, the
tables that tell what each gradient belongs to, when it is final, and why a gradient that was asked for does not exist.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeGuard

from core.autodiff import Adjoint, Asked
from core.build import BlockBuilder, Cotangent, SparseRows, Value
from core.cost.budget import Budget, Choice, Policies, choose
from core.cotangents import Densified
from core.dependence import Dependence
from core.errors import Location, ProgramError
from core.headroom import headroom
from core.hooks import Hook, Hooks, block_index, called, inner_name, plain
from core.ir import Block, Op, Program, StackType, TensorType, inner_blocks, live
from core.missing import reason_for
from core.ops.control import LoopMemory
from core.passes import optimize
from core.passes.chunk import chunk_loops
from core.passes.recompute import Recomputed, even_cuts, recompute
from core.wire.write import write

__all__ = ["Backward", "Budget", "Choice", "Options", "Unconnected", "append_backward", "gradients"]

Unconnected = Literal["null", "zeros", "error"]
EMPTY = Block((), (), (), {})


@dataclass(frozen=True, slots=True)
class Options:
    """How gradients are computed, whichever are asked for.

    no_grad_set: variables through which nothing flows; ``"1:h"`` names a variable of block 1.
    unconnected: what stands for a gradient that does not exist: null, real zeros, or an error.
    hooks:       what is done to gradients on the way.
    checkpoints: variables at which the forward part is cut: between them it is run again in the backward pass, and
                 only they and what else crosses a cut are kept. ``"1:h"`` names one inside a loop or branch. "auto"
                 cuts block 0 into about as many segments as each has ops. A budget cuts as much of its front as needed.
    loop_memory: what loops keep that do not say so themselves. A budget chooses for each loop.
    policies:    what single loops keep, by the place of the client's op: block and position.
    cuts:        positions in block 0 after which to cut, once loops are written as their policies ask.
    """

    no_grad_set: Collection[str] = ()
    unconnected: Unconnected = "null"
    hooks: tuple[Hook, ...] = ()
    checkpoints: tuple[str, ...] | Literal["auto"] | Budget = ()
    loop_memory: LoopMemory | Budget = "store"
    policies: Policies = ()
    cuts: tuple[int, ...] = ()

    @property
    def budget(self) -> Budget | None:
        """The budget of the step, the tighter one if two are given."""
        given = [each for each in (self.loop_memory, self.checkpoints) if isinstance(each, Budget)]
        return min(given, key=lambda each: (each.bytes, -each.trips), default=None)


@dataclass(frozen=True, slots=True)
class Backward:
    """A program that computes gradients, and what there is to know about them.

    program:        forward ops, then backward ops.
    params_grads:   (requested name, gradient variable or None), in the order of the request.
    grad_to_var:    gradient variable -> forward variable, partial gradients and those inside loops included.
    grad_info_map:  forward variable -> (gradient variable, index of its block).
    forward_of:     for each op of the backward pass, its position in block 0 and the client's op it comes from.
    roles:          of each op of block 0: 0 forward, 256 forward and loss, 257 backward and loss, 1 backward.
    ready_at:       requested name -> position in block 0 of the op after which its gradient is final.
    missing:        requested name -> why it has no gradient.
    cut_at:         requested name -> the op at which its path to the targets ends, where that is one op.
    rewrites:       what had to change in the forward part, in sentences.
    recorded:       "block:name" -> variable that holds what a hook records; inside loops one element a trip.
    hooked:         (number of the hook, "block:name" whose gradient it acts on), in the order of the ops.
    checkpoints:    variables of the forward part that are kept where it is cut.
    sparse:         requested name -> (variable of the rows, variable of their values) of a gradient that is there both
                    ways; the gradient variable itself is the whole table.
    densified:      tables whose gradient could have stayed rows, and what needed it whole.
    choice:         what was chosen for a budget.
    forward:        the block that was differentiated; asked: what the rules of its control flow were asked.
    """

    program: Program
    params_grads: tuple[tuple[str, str | None], ...]
    grad_to_var: Mapping[str, str] = field(default_factory=dict)
    grad_info_map: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    forward_of: tuple[tuple[int, Location | None], ...] = ()
    roles: tuple[int, ...] = ()
    ready_at: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    cut_at: Mapping[str, Location] = field(default_factory=dict)
    rewrites: tuple[str, ...] = ()
    recorded: Mapping[str, str] = field(default_factory=dict)
    hooked: tuple[tuple[int, str], ...] = ()
    checkpoints: tuple[str, ...] = ()
    sparse: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    densified: tuple[Densified, ...] = ()
    choice: Choice | None = None
    forward: Block = field(default=EMPTY, repr=False)
    asked: Mapping[int, Asked] = field(default_factory=dict, repr=False)

    @property
    def gradients(self) -> dict[str, str]:
        """Requested name -> gradient variable, for those that exist."""
        return {name: grad for name, grad in self.params_grads if grad is not None}

    @property
    def role_vars(self) -> tuple[tuple[str, ...], ...]:
        """For each op of block 0 the pairs (parameter, gradient) it makes final, one after the other: Fluid's
        ``op_role_var``, which tells an optimiser or a collective where to step in."""
        parameters = {v.name for v in self.program.parameters}
        found: list[list[str]] = [[] for _ in self.program.block.ops]
        for name, grad in dict(self.params_grads).items():
            if grad is not None and name in parameters and name in self.ready_at:
                found[self.ready_at[name]] += [name, grad]
        return tuple(map(tuple, found))

    def as_document(self) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        with headroom():
            return self._as_document()

    def _as_document(self) -> dict[str, Any]:
        return {
            "program": write(self.program),
            "params_grads": [list(pair) for pair in self.params_grads],
            "grad_to_var": dict(self.grad_to_var),
            "grad_info_map": {name: list(info) for name, info in self.grad_info_map.items()},
            "backward_ops": [
                {"op": i, "forward_block": at.block, "forward_op": at.op, "forward_type": at.type}
                if at is not None
                else {"op": i}
                for i, at in self.forward_of
            ],
            "op_roles": list(self.roles),
            "op_role_vars": [list(pairs) for pairs in self.role_vars],
            "ready_at": dict(self.ready_at),
            "missing": dict(self.missing),
            "rewrites": list(self.rewrites),
            "recorded": dict(self.recorded),
            "hooked": [list(pair) for pair in self.hooked],
            "checkpoints": list(self.checkpoints),
            "sparse": {name: {"rows": rows, "values": values} for name, (rows, values) in self.sparse.items()},
            "densified": [each.as_document() for each in self.densified],
            "memory": self.choice.as_document() if self.choice else None,
        }


def append_backward(
    program: Program,
    loss: str,
    parameter_list: Sequence[str] | None = None,
    options: Options | None = None,
    step_of: StepOf | None = None,
) -> Backward:
    """Append to `program` what computes d loss / d parameter.

    loss:           name of a floating-point variable of one element in block 0.
    parameter_list: names of parameters; None means every trainable one, in the order of their declaration.
    step_of:        the optimised step of an answer, which a budget is about: by default the loss, the gradients and
                    the states.

    Raises ProgramError: loss_not_scalar, loss_not_float, loss_has_stop_gradient, loss_not_in_root, unknown_variable,
    bad_parameter_list, bad_no_grad_set, bad_hook, checkpoint_unknown, no_gradient_registered, budget_too_small.
    """
    target = _root_variable(program, loss, "loss_not_in_root")
    _check_loss(program.block, loss, target)
    if parameter_list is None:
        wanted = [v.name for v in program.parameters if v.trainable]
    else:
        wanted = _names(parameter_list, "bad_parameter_list")
        known = {v.name for v in program.variables if v.role == "parameter"}
        for name in wanted:
            if name not in known:
                raise ProgramError(f"{name!r} is not a parameter of the program", "unknown_variable")
    with headroom():
        return _answer(program, [target], wanted, None, options or Options(), step_of)


def gradients(
    program: Program,
    targets: Sequence[str],
    inputs: Sequence[str],
    target_gradients: Sequence[str | None] | None = None,
    options: Options | None = None,
    step_of: StepOf | None = None,
) -> Backward:
    """Append to `program` the sum of the vector-Jacobian products of `targets` with respect to `inputs`.

    targets:          floating-point variables of block 0, of any shape; one listed twice counts twice.
    inputs:           parameters, feeds, or variables of block 0; one listed twice is answered twice.
    target_gradients: for each target the variable that holds its cotangent, or None for ones.
    step_of:          as of `append_backward`.

    Raises ProgramError: unknown_variable, loss_not_in_root, loss_not_float, target_grad_shape, bad_no_grad_set,
    budget_too_small.
    """
    names = [_root_variable(program, t, "loss_not_in_root") for t in _names(targets, "bad_targets")]
    if not names:
        raise ProgramError("there are no targets", "bad_targets")
    for name in names:
        if not program.block.types[name].is_float or isinstance(program.block.types[name], StackType):
            raise ProgramError(f"target {name!r} is {program.block.types[name]}, not floating-point", "loss_not_float")
    seeds: list[str | None] = [None] * len(names)
    if target_gradients is not None:
        if len(target_gradients) != len(names):
            raise ProgramError(
                f"{len(names)} targets, but {len(target_gradients)} target gradients", "target_grad_shape"
            )
        seeds = [None if s is None else _root_variable(program, s, "unknown_variable") for s in target_gradients]
        for target, seed in zip(names, seeds, strict=True):
            if seed is not None:
                check_seed(target, program.block.types[target], program.block.types[seed])
    wanted = _names(inputs, "bad_inputs")
    with headroom():
        return _answer(program, names, wanted, seeds, options or Options(), step_of)


def check_seed(target: str, wanted: Any, given: Any) -> None:
    """Raises ProgramError (target_grad_shape) if `given` cannot be the cotangent of a value of type `wanted`."""
    fits = (
        given.dtype == wanted.dtype
        and len(given.shape) == len(wanted.shape)
        and all(m == n or -1 in (m, n) for m, n in zip(given.shape, wanted.shape, strict=True))
    )
    if not fits:
        raise ProgramError(f"the target gradient of {target!r} is {given}, not {wanted}", "target_grad_shape")


StepOf = Callable[["Backward"], Block]


def _answer(
    program: Program,
    targets: list[str],
    wanted: list[str],
    seeds: list[str | None] | None,
    options: Options,
    step_of: StepOf | None,
) -> Backward:
    """The backward pass; within a budget, if there is one."""
    budget = options.budget
    if budget is None:
        return _backward(program, targets, wanted, seeds, options)
    loops, cuts = isinstance(options.loop_memory, Budget), isinstance(options.checkpoints, Budget)
    options = replace(
        options,
        loop_memory="store" if loops else options.loop_memory,
        checkpoints=() if cuts else options.checkpoints,
    )
    found: dict[Any, Backward] = {}

    def compiled(policies: Policies, cuts: tuple[int, ...]) -> tuple[Backward, Block]:
        concrete = replace(options, policies=policies, cuts=cuts)
        backward = found[policies, cuts] = _backward(program, targets, wanted, seeds, concrete)
        return backward, (step_of or (lambda each: _default_step(each, targets)))(backward)

    apart = not options.hooks and not options.checkpoints and options.loop_memory == "store"
    choice = choose(budget, compiled, loops, cuts, apart)
    return replace(found[choice.key], choice=choice)


def _default_step(backward: Backward, targets: Sequence[str]) -> Block:
    program = backward.program
    results = [*targets, *backward.gradients.values(), *backward.recorded.values()]
    results += [program.latest[v.name] for v in program.states if v.name in program.latest]
    return optimize(replace(program.block, results=tuple(dict.fromkeys(results))))


def _backward(
    program: Program,
    targets: list[str],
    wanted: list[str],
    seeds: list[str | None] | None,
    options: Options,
) -> Backward:
    no_grad_set, unconnected = options.no_grad_set, options.unconnected
    block = _with_memory(program.block, options)
    before = block
    variables = {name: _root_variable(program, name, "unknown_variable", entry=True) for name in wanted}
    cut, inner_cut = _cut(program, no_grad_set)
    if inner_cut:
        found_inside = {(number, name) for number, name in inner_cut if called(block, 0, number, name)}
        cut.update(n for number, name in inner_cut for n in called(block, 0, number, name))
        block = _stop_inside(block, inner_cut, found_inside)
        _check_inner(inner_cut - found_inside, "bad_no_grad_set")
    depends = Dependence()
    roles = {v.name: v.role for v in program.variables}
    hooks = Hooks(options.hooks, roles)
    _check_hooks(program, options.hooks)
    a = Adjoint(block, cut=cut, depends=depends, hooks=hooks)
    trainable = {v.name for v in program.variables if v.trainable or v.role != "parameter"}
    wrt = [v for v in dict.fromkeys(variables.values()) if v in trainable or v not in block.params]
    loss_op = next((op for op in block.ops if targets[-1] in op.outputs), None)
    location = loss_op.location if loss_op is not None else None
    with a.b.at(location and replace(location, adjoint=True)):
        given = [
            (t, a.b.value(s) if s is not None else _ones(a, t))
            for t, s in zip(targets, seeds or [None] * len(targets), strict=True)
        ]
    by_rows = a.run_by_rows(given, wrt)
    found = {v: _whole(a, v, ct) for v, ct in by_rows.items()}
    tables = {v: (a.final(ct.rows.name), a.final(ct.values.name)) for v, ct in by_rows.items() if _stays(ct, a, v)}

    found_names = {v: a.final(ct.name) for v, ct in found.items()}
    missing: dict[str, str] = {}
    cut_at: dict[str, Location | None] = {}
    for name, variable in variables.items():
        if variable not in found_names:
            named = set(_plain(no_grad_set))
            missing[name], cut_at[name] = reason_for(program, block, variable, targets, cut, named, depends)
    if missing and unconnected == "error":
        name, why = next(iter(missing.items()))
        raise ProgramError(f"{name!r} has no gradient: {why}", "no_gradient")
    if missing and unconnected == "zeros":
        for name in missing:
            variable = variables[name]
            found_names[variable] = a.final(a.b.zeros_like(a.b.value(variable)).name)
    recorded = {key: a.final(_as_array(a.b, ct).name) for key, ct in a.cotangents.recorded.items()}
    results = [found_names[v] for v in dict.fromkeys(variables.values()) if v in found_names] + list(recorded.values())
    results += [name for table in tables.values() for name in table]
    adjoint_ops = live(a.ops(), results)
    again = None
    if cuts := (list(options.cuts), set()) if options.cuts else _cuts(program, block, options.checkpoints):
        again = recompute(a.part(a.primal, block.params, block.results), adjoint_ops, *cuts)
        adjoint_ops = again.ops
        a.b.types.update(again.types)
    forward = a.part((*a.primal, *adjoint_ops), block.params, block.results)

    n = len(a.primal)
    written = {name: i for i, op in enumerate(forward.ops) for name in op.outputs}
    present = {*written, *_names_inside(adjoint_ops)}
    origin = {g: v for g, v in a.cotangents.origin.items() if g in written}
    return Backward(
        program=replace(program, block=forward),
        params_grads=tuple((name, found_names.get(variables[name])) for name in wanted),
        grad_to_var={g: v for g, v in a.origins().items() if g in present},
        grad_info_map={v: (g, 0) for g, v in origin.items() if "@RENAME@" not in g and not g.endswith("@VALUES")},
        forward_of=tuple((n + i, op.location) for i, op in enumerate(adjoint_ops)),
        roles=_roles(forward, n, targets),
        ready_at={name: written[g] for name, v in variables.items() if (g := found_names.get(v)) in written},
        missing=missing if unconnected == "null" else {},
        cut_at={name: at for name, at in cut_at.items() if at is not None},
        rewrites=tuple(_rewrites(before, forward, again)),
        recorded=recorded,
        hooked=tuple(hooks.applied),
        checkpoints=again.kept if again else (),
        sparse={name: tables[v] for name, v in variables.items() if v in tables},
        densified=tuple(a.cotangents.densified),
        forward=block,
        asked={i: replace(ask, adjoint=tuple(map(a.final, ask.adjoint))) for i, ask in a.asked.items()},
    )


def _stays(ct: Cotangent, a: Adjoint, variable: str) -> TypeGuard[SparseRows]:
    """Whether a gradient is answered as rows: the shape of the table must be known for that."""
    return isinstance(ct, SparseRows) and a.b.types[variable].is_static


def _whole(a: Adjoint, variable: str, ct: Cotangent) -> Value:
    """A gradient as one array. What reads rows does without it, so it tells only of those that do not stay rows."""
    return a.cotangents.whole(variable, ct, None if _stays(ct, a, variable) else "open_size")


def _with_memory(block: Block, options: Options) -> Block:
    """`block` with its loops written as their memory policies ask, checkpoints inside them included."""
    named = options.checkpoints if isinstance(options.checkpoints, tuple | list) else ()
    inner = {n for n in map(inner_name, named) if n[0]}
    if inner:
        found = {(number, name) for number, name in inner if called(block, 0, number, name)}
        block = _with_checkpoints(block, inner, found)
        _check_inner(inner - found, "checkpoint_unknown")
    assert not isinstance(options.loop_memory, Budget)
    return chunk_loops(block, options.loop_memory, dict(options.policies))


def _check_inner(unknown: Collection[tuple[int, str]], code: str) -> None:
    for number, name in sorted(unknown):
        raise ProgramError(f"there is no variable {name!r} in block {number}", code)


def _with_checkpoints(block: Block, names: Collection[tuple[int, str]], found: set[tuple[int, str]]) -> Block:
    """`block` with the control flow whose inner blocks are named recomputing all but those variables."""
    ops = []
    for op in block.ops:
        attrs, kept = dict(op.attrs), set(op.attrs.get("checkpoints", ()))
        for attr, inner in inner_blocks(op):
            for number, name in names:
                if here := called(inner, block_index(inner), number, name):
                    found.add((number, name))
                    kept.update(map(plain, here))
            attrs[attr] = _with_checkpoints(inner, names, found)
        if kept:
            attrs["checkpoints"] = tuple(sorted(kept))
            attrs["memory"] = "recompute" if attrs["memory"] == "store" else attrs["memory"]
        ops.append(replace(op, attrs=attrs) if attrs else op)
    return replace(block, ops=tuple(ops))


def _cuts(
    program: Program, block: Block, checkpoints: tuple[str, ...] | Literal["auto"] | Budget
) -> tuple[list[int], set[str]] | None:
    """The positions in block 0 after which to cut, and the variables to keep there; None for no cut."""
    if checkpoints == "auto":
        return even_cuts(block, max(1, round(math.sqrt(len(block.ops))))), set()
    assert not isinstance(checkpoints, Budget)
    written = {name: i for i, op in enumerate(block.ops) for name in op.outputs}
    kept = set()
    for name in checkpoints:
        number, name = inner_name(name)
        if number:
            kept.update(called(block, 0, number, name)[-1:])
            continue
        try:
            kept.add(_root_variable(program, name, "checkpoint_unknown"))
        except ProgramError as error:
            raise ProgramError(error.message, "checkpoint_unknown") from None
    return (sorted({written[n] for n in kept if n in written}), kept) if kept else None


def _check_hooks(program: Program, hooks: Sequence[Hook]) -> None:
    """Raises ProgramError (bad_hook) for a hook on a variable that does not exist."""
    for hook in hooks:
        if hook.variable is None:
            continue
        blocks = [(0, program.block), *((block_index(b), b) for b in _inner(program.block))]
        if not any(called(block, index, *hook.place) for index, block in blocks):
            _check_inner([hook.place], "bad_hook")


def _as_array(b: BlockBuilder, ct: Value) -> Value:
    """What was recorded, as a plain array: one row a trip, the trips of inner loops one after the other."""
    while isinstance(ct.type, StackType) and isinstance(ct.type.element, StackType):
        ct = b.emit("array_flatten", ct)
    if isinstance(ct.type, StackType):
        assert isinstance(ct.type.element, TensorType)
        ct = b.emit("array_join", ct, shape=ct.type.element.shape, dtype=ct.type.element.dtype)
    return ct


def _ones(a: Adjoint, target: str) -> Value:
    """The cotangent of a target by default. A constant where the shape is known, else shaped like the target."""
    type = a.b.types[target]
    assert isinstance(type, TensorType)
    if type.is_static:
        return a.b.constant(1.0, type.dtype, type.shape)
    return a.b.emit("full_like", a.b.value(target), value=1.0)


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


def _names(names: Any, code: str) -> list[str]:
    """A list of names from a list, tuple or set; a bare string is a mistake that would be read letter by letter."""
    if isinstance(names, str) or not isinstance(names, list | tuple | set | frozenset):
        raise ProgramError("must be a list of names", code)
    if not all(isinstance(n, str) for n in names):
        raise ProgramError("must hold names only", code)
    return sorted(names) if isinstance(names, set | frozenset) else list(names)


def _root_variable(program: Program, name: str, elsewhere: str, entry: bool = False) -> str:
    """The variable that `name` means in block 0: its last version, or the entry value of a leaf (`entry`)."""
    if not isinstance(name, str):
        raise ProgramError("a name must be a string", "unknown_variable")
    types = program.block.types
    if not entry and name in program.latest:
        return program.latest[name]
    if name in types:
        return name
    if any(name in block.types for block in _inner(program.block)):
        raise ProgramError(
            f"{name!r} lives in an inner block",
            elsewhere,
            suggestion="let the block write it to a variable that exists outside",
        )
    raise ProgramError(f"there is no variable {name!r}", "unknown_variable")


def _inner(block: Block) -> list[Block]:
    found = [block]
    for each in found:  # grows while it is walked
        found.extend(inner for op in each.ops for _, inner in inner_blocks(op))
    return found[1:]


def _plain(no_grad_set: Collection[str]) -> list[str]:
    return [n.split(":", 1)[1] if n.startswith("0:") else n for n in no_grad_set]


def _cut(program: Program, no_grad_set: Collection[str]) -> tuple[set[str], set[tuple[int, str]]]:
    """The variables of block 0, and the (block, name) pairs of inner ones, through which nothing flows."""
    names = _names(no_grad_set, "bad_no_grad_set")
    cut: set[str] = set()
    inner: set[tuple[int, str]] = set()
    for name in names:
        number, name = inner_name(name)
        if number:
            inner.add((number, name))
            continue
        versions = set(called(program.block, 0, 0, name))
        if not versions:
            raise ProgramError(f"there is no variable {name!r} in block 0", "bad_no_grad_set")
        cut |= versions
    return cut, inner


def _stop_inside(block: Block, names: set[tuple[int, str]], found: set[tuple[int, str]]) -> Block:
    """`block` with those variables of its inner blocks stopped; the names that exist are added to `found`."""
    ops = []
    for op in block.ops:
        attrs = dict(op.attrs)
        for attr, inner in inner_blocks(op):
            index = block_index(inner)
            here = {at: called(inner, index, *at) for at in names}
            found.update(at for at, variables in here.items() if variables)
            stopped = frozenset(n for variables in here.values() for n in variables)
            attrs[attr] = replace(_stop_inside(inner, names, found), stopped=inner.stopped | stopped)
        ops.append(replace(op, attrs=attrs) if attrs else op)
    return replace(block, ops=tuple(ops))


def _roles(block: Block, forward: int, targets: list[str]) -> tuple[int, ...]:
    roles = [256 if set(targets) & set(op.outputs) else 0 for op in block.ops[:forward]]
    seeds = {f"{t}@GRAD" for t in targets}
    roles += [
        257 if op.type in ("fill_constant", "full_like") and seeds & set(op.outputs) else 1
        for op in block.ops[forward:]
    ]
    return tuple(roles)


def _names_inside(ops: Sequence[Op]) -> set[str]:
    """The variables of all blocks inside `ops`."""
    found: set[str] = set()
    level = list(ops)
    while level:
        blocks = [inner for op in level for _, inner in inner_blocks(op)]
        for block in blocks:
            found.update(block.types)
        level = [op for block in blocks for op in block.ops]
    return found


def _rewrites(before: Block, after: Block, again: Recomputed | None) -> list[str]:
    """What a reader should know: extra outputs of loops and branches, renamed versions, and what runs again."""
    said = []
    if again is not None:
        said.append(f"{again.again} ops of the forward part run again in the backward pass")
    for old, new in zip(before.ops, after.ops, strict=False):
        extra = new.outputs[len(old.outputs) :]
        if extra:
            place = f"block {old.location.block}, op {old.location.op}" if old.location else old.type
            said.append(f"{place} ({old.type}) also returns {', '.join(extra)}, which the backward pass reads")
    versions = [m for n in before.types if (m := re.fullmatch(r"(.+)@VER@\d+", n))]
    said.extend(f"{m[1]!r} is written more than once: {m[0]!r} is one of its versions" for m in versions)
    return said
