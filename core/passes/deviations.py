"""Factors leave sums of deviations from a mean: ``sum(k * (x - mean(x))) = k * sum(x - mean(x))``.

The gradient of a variance contains such a sum, whose factor k is itself the result of a sum over the same elements.
With k outside, one pass over memory is enough for both sums.

A sum of deviations is zero but for rounding, so it cannot overflow where its multiple does not. float16 is the
exception: the mean of numbers near 1000 is rounded by up to 1/4, and the sum of a million such deviations is infinite.
The sum is computed and not replaced by zero, so that infinities and NaNs reach the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from core.ir import Block, Op, StackType, TensorType, with_inner
from core.ir.builder import BlockBuilder
from core.ir.registry import lookup
from core.ir.stop import poll

__all__ = ["factor_deviations"]


def factor_deviations(block: Block) -> Block:
    """Write sums of multiples of deviations as multiples of their sums. A sum of deviations is computed once."""
    made = {name: op for op in block.ops for name in op.outputs}
    b = BlockBuilder()
    b.types.update(block.types)
    totals: dict[tuple[str, tuple[int, ...]], str] = {}
    for op in block.ops:
        poll()
        chain = _multiple(block, made, op)
        if chain is None:
            b.ops.append(with_inner(op, factor_deviations))
            continue
        *steps, deviation = chain
        shape = _shape(block, op.outputs[0])
        with b.at(op.location):
            if (deviation.outputs[0], shape) not in totals:
                total = b.emit(op.type, b.value(deviation.outputs[0]), **op.attrs)
                totals[deviation.outputs[0], shape] = total.name
            name = totals[deviation.outputs[0], shape]
            for step in reversed(steps):
                factor = _constant_factor(block, made, step, shape)
                inputs = (b.value(name), b.value(factor)) if factor else (b.value(name),)
                outputs = op.outputs if step is steps[0] else ()
                (value,) = b.append(replace(b.make(step.type, *inputs, **step.attrs), outputs=outputs))
                name = value.name
    return replace(block, ops=tuple(b.ops), types=b.types)


def _multiple(block: Block, made: Mapping[str, Op], op: Op) -> list[Op] | None:
    """The ops from a multiple of deviations, which `op` sums over the axes of their mean, back to the deviations."""
    if op.type not in ("sum_to", "reduce_sum"):
        return None
    type, out = block.types[op.inputs[0]], block.types[op.outputs[0]]
    if isinstance(type, StackType) or isinstance(out, StackType) or type.rank != out.rank or not out.is_static:
        return None
    if type.dtype == "float16":
        return None
    chain: list[Op] = []
    at = made.get(op.inputs[0])
    while at is not None and block.types[at.outputs[0]] == type:
        chain.append(at)
        if at.type == "sub":
            mean = made.get(at.inputs[1])
            factors = [each for each in chain if each.type == "mul"]
            fits = mean is not None and mean.type == "reduce_mean" and mean.inputs[0] == at.inputs[0]
            whole = fits and block.types[at.inputs[0]] == type and block.types[at.inputs[1]] == out
            covers = whole and _covers(block, at.inputs[1], type.shape)
            return chain if covers and factors and all(_keeps_sizes(block, made, f, at) for f in factors) else None
        if at.type == "mul":
            factor = _constant_factor(block, made, at, out.shape)
            if factor is None:
                return None
            at = made.get(at.inputs[1] if _base(made, at.inputs[0]) == factor else at.inputs[0])
        elif at.type == "neg" or (at.type == "scale" and at.attrs["bias"] == 0):
            at = made.get(at.inputs[0])
        else:
            return None
    return None


def _covers(block: Block, mean: str, shape: tuple[int, ...]) -> bool:
    """Whether the mean is one over all axes that it has not: its shape has 1 for each of them."""
    return any(m == 1 != n for m, n in zip(_shape(block, mean), shape, strict=True))


def _keeps_sizes(block: Block, made: Mapping[str, Op], product: Op, deviation: Op) -> bool:
    """Whether a product has the sizes of the deviations: `expand_as` gives its factors the sizes of no other array."""
    expansions = (made.get(name) for name in product.inputs)
    likes = (op.inputs[1] for op in expansions if op is not None and op.type == "expand_as")
    return all(_origin(made, like) == deviation.outputs[0] for like in likes)


def _origin(made: Mapping[str, Op], name: str) -> str:
    """The variable from which elementwise ops of one operand compute `name`; it has the same sizes."""
    op = made.get(name)
    while op is not None and lookup(op.type).elementwise and len({*op.inputs}) == 1:
        name = op.inputs[0]
        op = made.get(name)
    return name


def _constant_factor(block: Block, made: Mapping[str, Op], op: Op, shape: tuple[int, ...]) -> str | None:
    """The operand of a product that is the same along the axes for which `shape` has 1; before it was expanded."""
    if op.type != "mul":
        return None
    for name in op.inputs:
        base = _base(made, name)
        own = _shape(block, base)
        if len(own) <= len(shape) and all(n in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False)):
            return base
    return None


def _base(made: Mapping[str, Op], name: str) -> str:
    op = made.get(name)
    return op.inputs[0] if op is not None and op.type in ("expand", "expand_as") else name


def _shape(block: Block, name: str) -> tuple[int, ...]:
    type = block.types[name]
    assert isinstance(type, TensorType)
    return type.shape
