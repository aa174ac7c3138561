"""Gradients as further ops of the tape, so that they can be differentiated in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.autodiff.activity import Activity
from core.autodiff.adjoint import Adjoint
from core.backward.unreachable import Unreachable
from core.ir import Op, Program, Type, live
from core.ir.errors import Location
from core.tape.trace import Change, Trace

__all__ = ["record", "why_missing"]


def record(
    trace: Trace, change: Change, target: str, places: Sequence[int], wrt: Sequence[str], seed: str | None
) -> dict[str, str]:
    """Append the ops that compute gradients of `target`. Returns variable of `wrt` -> variable of its gradient.

    places: of the ops that reach `target`.
    seed: variable with the cotangent of `target`; None for ones.
    """
    ops = [trace.ops[p] for p in places]
    written = {name for op in ops for name in op.outputs}
    given = dict.fromkeys([*(n for op in ops for n in op.inputs if n), target, *([seed] if seed else ())])
    block = trace.block(ops, [name for name in given if name not in written])
    a = Adjoint(block)
    ct = a.ones(target) if seed is None else a.b.value(seed)
    found = a.run([(target, ct)], [name for name in dict.fromkeys(wrt) if name in block.types])
    result_of = {a.final(ct.name): name for name, ct in found.items()}
    adjoint = live(a.ops(), result_of)
    trace.check_limits(len(adjoint), 0)
    return _add(trace, change, adjoint, a.part(adjoint, block.params, ()).types, result_of)


def why_missing(trace: Trace, target: str, places: Sequence[int], names: Sequence[str]) -> dict[str, str]:
    """The reason why each of `names` has no gradient, from `core.backward.unreachable`.

    places: of the ops that reach `target`.
    """
    if not names:
        return {}
    path = trace.block([trace.ops[p] for p in places], [])
    read = {name for op in path.ops for name in op.inputs}
    unreachable = Unreachable(Program(path, ()), path, [target], (), Activity())
    reasons = {}
    for name in names:
        if not trace.is_float(name):
            reasons[name] = "integer_dtype"
        elif name in read:
            reasons[name], _ = unreachable.reason(name)
        else:
            reasons[name] = "not_on_path_to_loss" if trace.uses[name] else "unused"
    return reasons


def _add(
    trace: Trace, change: Change, ops: Sequence[Op], types: Mapping[str, Type], result_of: Mapping[str, str]
) -> dict[str, str]:
    """Add the ops of a backward pass under new names. Returns the names of the gradients."""
    named: dict[str, str] = {}
    found: dict[str, str] = {}
    for op in ops:
        for i, name in enumerate(op.outputs):
            primal = result_of.get(name)
            hint = f"{op.type}_{trace.next}_{i}" if primal is None else f"grad_{trace.next}_{primal}"
            final = named[name] = trace.unused_name(hint[: trace.limits.wire.max_name - 8])
            trace.types[final] = types[name]
            if primal is not None:
                trace.env[final] = trace.b.value(final)
                found[primal] = final
        inputs, outputs = (tuple(named.get(n, n) for n in names) for names in (op.inputs, op.outputs))
        trace.add(change, Op(op.type, inputs, outputs, op.attrs, Location(0, trace.next, op.type)))
    return found
