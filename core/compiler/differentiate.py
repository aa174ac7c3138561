"""The backward pass of a query, with or without loss scaling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from core.autodiff.hooks import Hook
from core.backward.append_backward import append_backward, gradients
from core.backward.backward_program import Backward
from core.backward.query import GradientQuery
from core.ir import Block, Program, TensorType, Variable
from core.ir.builder import BlockBuilder, Cotangent, SparseRows, Value
from core.ir.errors import ProgramError, below, pointing_to
from core.ir.names import root_array
from core.optim.loss_scaling import (
    FACTOR,
    STREAK,
    LossScale,
    Scaled,
    all_finite,
    first_factor,
    rounded,
    scaled,
    unscaled,
)
from core.runtime.outputs import Result, Wanted, gradient_step

__all__ = ["ScaledBackward", "differentiate", "differentiate_scaled", "scale_after_update"]


def differentiate(
    program: Program,
    query: GradientQuery,
    fetch: Sequence[str] = (),
    step_of: Callable[[Backward], Block] | None = None,
) -> tuple[Backward, dict[str, str]]:
    """The backward pass of `query`, and the parameters added for cotangents that are inputs of the step.

    step_of: the step whose memory a budget limits; by default the step of `query` that also returns `fetch`.
    Returns the backward pass and, for each added parameter, variable -> name of the step's input.
    """
    step_of = step_of or (lambda backward: gradient_step(backward, query, fetch))
    if query.loss is not None:
        parameters = None if query.parameter_list is None else list(query.parameter_list)
        return append_backward(program, query.loss, parameters, query, step_of), {}
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
            type = program.block.types[root_array(program, target)]
            assert isinstance(type, TensorType)
            name = b.param(type, f"target@SEED@{i}").name
            seeds[name] = f"target_gradients/{i}"
            feeds.append(Variable(name, type, "feed"))
            names.append(name)
        program = replace(program, block=b.build(program.block.results), variables=(*program.variables, *feeds))
    found = gradients(program, query.targets, query.inputs, names, query, step_of)
    return found, seeds


@dataclass(frozen=True, slots=True)
class ScaledBackward:
    """A backward pass, with or without loss scaling.

    backward: the backward pass. Its gradients are those of the unscaled loss, in the dtypes of their parameters.
    exact:    the same gradients, with 16-bit ones in float32, as (variable of the row numbers or None, variable of the
              values); None without loss scaling.
    factor:   variable of the scale of the loss; None without loss scaling.
    finite:   variable of a bool, whether every scaled gradient is finite; None without loss scaling.
    limit:    the largest scale.
    """

    backward: Backward
    seeds: Mapping[str, str] = field(default_factory=dict)
    exact: tuple[tuple[str | None, str], ...] | None = None
    factor: str | None = None
    finite: str | None = None
    limit: float = math.inf

    def exact_gradients(self, b: BlockBuilder) -> dict[str, Cotangent]:
        """The unscaled gradients for the optimiser, row-sparse or dense, before rounding to 16 bits."""
        if self.exact is None:
            return {name: _gradient(b, self.backward, name, grad) for name, grad in self.backward.gradients.items()}
        pairs = zip(self.backward.gradients, self.exact, strict=True)
        return {n: b.value(v) if rows is None else SparseRows(b.value(rows), b.value(v)) for n, (rows, v) in pairs}

    def with_exact_gradients(self) -> Backward:
        """The backward pass whose gradients are the unscaled ones before rounding to 16 bits."""
        if self.exact is None:
            return self.backward
        exact = dict(zip(self.backward.gradients, self.exact, strict=True))
        return replace(
            self.backward,
            params_grads=tuple(
                (name, grad if name not in exact or exact[name][0] is not None else exact[name][1])
                for name, grad in self.backward.params_grads
            ),
            sparse={name: (rows, values) for name, (rows, values) in exact.items() if rows is not None},
        )

    def scaling(self, b: BlockBuilder, scale: LossScale) -> Wanted:
        """The reported values of the loss scale, and its state after the step."""
        assert self.factor is not None and self.finite is not None
        streak = None if scale.interval is None else b.value(STREAK)
        return _scaling(b, scale, b.value(self.factor), streak, b.value(self.finite), self.limit)


def scale_after_update(b: BlockBuilder, scale: LossScale, finite: Value, limit: float) -> tuple[list[Variable], Wanted]:
    """The state of the loss scale as inputs of an update with summed gradients; the reported values and the new state.

    finite: whether the sums are finite. limit: the largest factor that the dtype of the loss can hold.
    """
    held = [Variable(name, type, "state") for name, type in scale.slots.items()]
    state = {v.name: b.param(v.type, v.name) for v in held}
    factor = first_factor(b, scale, limit, state.get(FACTOR))
    return held, _scaling(b, scale, factor, state.get(STREAK), finite, limit)


def differentiate_scaled(
    program: Program,
    query: GradientQuery,
    scale: LossScale | None,
    fetch: Sequence[str] = (),
    step_of: Callable[[ScaledBackward], Block] | None = None,
) -> ScaledBackward:
    """`differentiate`, with the loss multiplied by `scale` and all gradients that leave the step divided by it.

    Raises ProgramError (bad_hook) for a hook with a bound that would have to follow a factor of later steps.
    """
    found = None if scale is None or query.loss is None else scaled(program, query.loss, scale)
    if found is not None:
        assert scale is not None
        query = replace(query, hooks=_scaled_hooks(query.hooks, scale))

    def of(backward: Backward) -> ScaledBackward:
        return ScaledBackward(backward) if found is None else _divided(program, found, backward, fetch)

    budgeted_step = step_of or (lambda each: gradient_step(each.backward, query, fetch))
    differentiated = program if found is None else found.program
    backward, seeds = differentiate(differentiated, query, fetch, lambda backward: budgeted_step(of(backward)))
    return replace(of(backward), seeds=seeds)


def _scaled_hooks(hooks: Sequence[Hook], scale: LossScale) -> tuple[Hook, ...]:
    """The hooks for gradients of the scaled loss. Raises ProgramError (bad_hook)."""
    found = []
    for i, hook in enumerate(hooks):
        with below(f"/hooks/{i}"):
            action = hook.do.scaled(float(np.float32(scale.initial)))
        if action != hook.do and scale.interval is not None:
            message = f"the bound of {hook.do.name} cannot follow a dynamic loss scale; a constant one, or `clip`, can"
            with pointing_to(f"/hooks/{i}"):
                raise ProgramError(message, "bad_hook")
        found.append(replace(hook, do=action))
    return tuple(found)


def _divided(program: Program, found: Scaled, backward: Backward, fetch: Sequence[str]) -> ScaledBackward:
    """The backward pass of `program`, from the backward pass of the same program with a scaled loss."""
    b = BlockBuilder.like(backward.program.block)
    types = {v.name: v.type for v in program.parameters}
    gradients = backward.gradients
    raw = [_gradient(b, backward, name, grad) for name, grad in gradients.items()]
    factor = b.value(found.factor)
    finite = all_finite(raw, factor)
    exact = unscaled(raw, factor)
    returned = {name: rounded(g, types[name]) for name, g in zip(gradients, exact, strict=True)}
    grads = {name: gradients[name] if isinstance(g, SparseRows) else g.name for name, g in returned.items()}
    sparse = {name: (g.rows.name, g.values.name) for name, g in returned.items() if isinstance(g, SparseRows)}
    latest = {**backward.program.latest, found.loss: program.latest.get(found.loss, found.loss)}
    scaled_values = {*backward.grad_to_var, *(values for _, values in backward.sparse.values())}
    for name in fetch:
        if (variable := latest.get(name, name)) in scaled_values and variable in b.types:
            latest[name] = _share(b, variable, factor)
    recorded = {key: _share(b, variable, factor) for key, variable in backward.recorded.items()}
    divided = replace(
        backward,
        program=replace(backward.program, block=b.build(backward.program.block.results), latest=latest),
        params_grads=tuple((name, grads.get(name)) for name, _ in backward.params_grads),
        sparse=sparse,
        recorded=recorded,
        ready_at={name: at - found.ops for name, at in backward.ready_at.items()},
    )
    pairs = tuple((g.rows.name, g.values.name) if isinstance(g, SparseRows) else (None, g.name) for g in exact)
    return ScaledBackward(divided, {}, pairs, found.factor, finite.name, found.limit)


def _share(b: BlockBuilder, variable: str, factor: Value) -> str:
    """The variable of a gradient divided by the factor, in the dtype of the gradient."""
    value = b.value(variable)
    (share,) = unscaled([value], factor)
    return rounded(share, value.type).name  # type: ignore[union-attr]


def _gradient(b: BlockBuilder, backward: Backward, name: str, grad: str) -> Cotangent:
    """The gradient of the parameter `name` in the variable `grad`, row-sparse if it exists in that form."""
    if name in backward.sparse:
        rows, values = backward.sparse[name]
        return SparseRows(b.value(rows), b.value(values))
    return b.value(grad)


def _scaling(
    b: BlockBuilder, scale: LossScale, factor: Value, streak: Value | None, finite: Value, limit: float
) -> Wanted:
    """The reported values of the loss scale, and its state after the step."""
    reported = [
        (Result("scaling", "loss_scale"), factor.name),
        (Result("scaling", "skipped"), b.emit("logical_not", finite).name),
    ]
    if streak is None:
        return reported
    new = scale.after(factor, streak, finite, limit)
    state = [(Result("optimizer_state", n), v.name) for n, v in zip((FACTOR, STREAK), new, strict=True)]
    return [*reported, *state]
