"""A query answered: by the backward pass of a program, or by that of the program with its loss scaled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from core.gradients.append_backward import append_backward, gradients
from core.gradients.backward_program import Backward
from core.gradients.query import GradientQuery
from core.ir import Block, Program, TensorType, Variable
from core.ir.builder import BlockBuilder, Cotangent, SparseRows
from core.ir.errors import ProgramError
from core.ir.names import root_array
from core.optim.loss_scaling import FACTOR, STREAK, LossScale, Scaled, all_finite, rounded, scaled, unscaled
from core.runtime.outputs import Result, Wanted, gradient_step

__all__ = ["Answered", "differentiate", "differentiate_scaled"]


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
class Answered:
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


def differentiate_scaled(
    program: Program,
    query: GradientQuery,
    scale: LossScale | None,
    fetch: Sequence[str] = (),
    step_of: Callable[[Answered], Block] | None = None,
) -> Answered:
    """`differentiate`, with the loss multiplied by `scale` and the gradients divided by it again."""
    found = None if scale is None or query.loss is None else scaled(program, query.loss, scale)

    def of(backward: Backward) -> Answered:
        return Answered(backward) if found is None else _divided(program, found, backward)

    measured = step_of or (lambda each: gradient_step(each.backward, query, fetch))
    known = program if found is None else found.program
    backward, seeds = differentiate(known, query, fetch, lambda backward: measured(of(backward)))
    return replace(of(backward), seeds=seeds)


def _divided(program: Program, found: Scaled, backward: Backward) -> Answered:
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
    return Answered(divided, {}, pairs, found.factor, finite.name, found.limit)


def _gradient(b: BlockBuilder, backward: Backward, name: str) -> Cotangent:
    """The gradient of the parameter `name`, as rows where it is there that way."""
    if name in backward.sparse:
        rows, values = backward.sparse[name]
        return SparseRows(b.value(rows), b.value(values))
    return b.value(backward.gradients[name])
