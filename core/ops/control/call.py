"""Calls: a function of the client, with the gradient that the client defines for it."""

from __future__ import annotations

from core.autodiff.activity import FLOWS
from core.autodiff.adjoint import Adjoint, pullback
from core.ir import Block, Op
from core.ir.builder import Cotangent, Value
from core.ir.errors import ProgramError
from core.ir.registry import op
from core.ops.common.types import holds, matches

__all__ = ["call"]


@op(control=True, outputs="out")
def call(run, *x, block: Block, gradient: Block | None = None, inputs: tuple[int, ...] = ()):
    """Run `block` on the operands.

    Its gradient is that of `block`, or the block `gradient` if there is one. That takes the operands, the results and
    a cotangent for each result, and returns a cotangent for each of the operands whose positions are `inputs`. The
    other operands get no gradient.
    """
    return block(run, *x)  # type: ignore[operator]


@call.infer
def call_infer(*x, block, gradient, inputs):
    _check("the function", block, x)
    if gradient is None:
        return block.result_types
    results = block.result_types
    if not all(t.is_float for t in results):
        raise ProgramError("a function with its own gradient must return floating-point arrays only", "dtype_mismatch")
    _check("the gradient", gradient, (*x, *results, *results))
    if len(gradient.results) != len(inputs) or not all(0 <= i < len(x) for i in inputs):
        raise ProgramError(
            f"the gradient returns {len(gradient.results)} cotangents for operands {list(inputs)} of {len(x)}",
            "bad_attr",
        )
    for i, type in zip(inputs, gradient.result_types, strict=True):
        if not matches(type, x[i]):
            raise ProgramError(f"the gradient returns {type} for operand {i}, which is {x[i]}", "type_mismatch")
    return results


def _check(what: str, block: Block, given) -> None:
    if len(block.params) != len(given):
        raise ProgramError(f"{what} takes {len(block.params)} values, not {len(given)}", "bad_slot")
    for name, type, wanted in zip(block.params, given, block.param_types, strict=True):
        if not holds(wanted, type):
            raise ProgramError(f"{what} takes {name!r} as {wanted}, not {type}", "type_mismatch")


def _call_flow(op: Op, block: tuple[int, ...], gradient: tuple[int, ...] = ()) -> tuple[int, ...]:
    if op.attrs["gradient"] is None:
        return block
    return (sum(1 << i for i in op.attrs["inputs"]),) * len(op.outputs)


FLOWS["call"] = _call_flow


@call.adjoint
def call_adjoint(a: Adjoint, index: int, op: Op, cts: list[Value | None], wanted: list[bool]) -> list[Cotangent | None]:
    """The ops of the gradient are inlined, so they can be differentiated again like all others."""
    result: list[Cotangent | None] = [None] * len(op.inputs)
    given = [a.b.value(name) for name in op.inputs]
    block, gradient = op.attrs["block"], op.attrs["gradient"]
    if gradient is not None:
        outs = [a.b.value(name) for name in op.outputs]
        whole = [ct or a.b.zeros_like(out) for ct, out in zip(cts, outs, strict=True)]
        for i, out in zip(op.attrs["inputs"], a.b.inline(gradient, [*given, *outs, *whole]), strict=True):
            result[i] = out
        return result
    seeded = [i for i, ct in enumerate(cts) if ct is not None]
    wrt = [p for p, w in zip(block.params, wanted, strict=True) if w]
    pulled = pullback(block, seeded, wrt, a.cotangents.densified, a.cotangents.hooks)
    with a.b.at(None):  # each op keeps its own location, in the function
        found = a.b.inline(pulled.block, [*given, *(ct for ct in cts if ct is not None)])
    for name, ct in pulled.by_name(found).items():
        result[block.params.index(name)] = ct
    return result
