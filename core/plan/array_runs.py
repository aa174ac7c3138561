"""Arrays of runs: lowerings of ops that divide the elements of an array, and put them in a row again."""

from __future__ import annotations

from dataclasses import replace

from core.ir import HOLE, Op
from core.plan.array_elements import element_type, shape_of
from core.plan.array_memory import RECORD_BYTES, add_array, begun, change, copied, moved, new_stack, recorded
from core.plan.array_rules import rule
from core.plan.flow import Elements, Flattened, Growing, Recording, Source, Span
from core.plan.growing import ArrayOp, Flatten, MakeRuns
from core.plan.lowering import Lowering
from core.plan.memory import bytes_of
from core.plan.plan import NOT_COVERED
from core.plan.unsupported import Unsupported

__all__ = ["complete", "kept_runs", "sum_of_runs"]


def kept_runs(low: Lowering, runs: Recording) -> Recording:
    """An array of runs with a copy of their elements, for the same purpose. Raises Unsupported for runs of runs."""
    assert runs.source is not None
    shape = shape_of(runs.source)
    size = runs.element.stack.slot_bytes if isinstance(runs.element, Recording) else 0
    copy = recorded(low, runs.source, size if shape is None else bytes_of(*shape), kept=True)
    return _divided(low, copy, runs, lent=False)


def _divided(
    low: Lowering,
    source: Source,
    like: Recording | None,
    order: int = 0,
    exact: bool = False,
    check: int = 0,
    lent: bool = True,
) -> Recording:
    """An array of runs of the elements of `source`, which nothing changes from now on; see `MakeRuns`, `Recording`."""
    element: Recording | Span
    if isinstance(source, Elements | Span):
        element = Span(source.view)
    elif isinstance(source, Growing):
        element = Recording(source.stack, loose=True)
    else:
        element = replace(source, length=None, loose=True, source=None)
    how = {"loose": True, "lent": lent, "source": source, "order": order, "whole": like is None or exact}
    runs = Recording(new_stack(low, RECORD_BYTES), element, **how)  # type: ignore[arg-type]
    low.add(MakeRuns(None, source, runs, like, order, exact, check, location=low.location))
    return runs


def _lasting(low: Lowering, op: Op, name: str) -> Source:
    """The array `name`, which `op` reads, in memory that nothing changes until a loop around it makes the next trip."""
    element_type(low, low.types[name])
    source = moved(low, name)
    if not isinstance(source, Growing):
        return source
    made = change(low, op, name)
    return made if made.stack in low.shared.stacks[low.first_stack :] else copied(low, name)


def _runs(low: Lowering, name: str) -> Recording:
    """The array of runs `name`. Raises Unsupported unless its elements lie one by one in memory."""
    entry = low.entry(name)
    if not isinstance(entry, Recording) or not isinstance(entry.element, Recording | Span):
        raise Unsupported("tensor arrays of tensor arrays")
    if isinstance(entry.element, Recording) and entry.element.element is not None:
        raise Unsupported("tensor arrays of tensor arrays")
    return entry


@rule("array_chunks")
def _chunks(low: Lowering, op: Op) -> None:
    low.define(op.outputs[0], _divided(low, _lasting(low, op, op.inputs[0]), None, op.attrs["order"]))


@rule("array_regroup")
def _regroup(low: Lowering, op: Op) -> None:
    """A cotangent may have fewer elements than the runs if a program ends in the middle of them."""
    like, partial = _runs(low, op.inputs[1]), op.attrs["partial"]
    code = NOT_COVERED if partial else "shape_mismatch"
    message = "a tensor array does not have as many elements as the runs that it is divided into"
    check = low.shared.check(code, message, op.location)
    low.define(op.outputs[0], _divided(low, _lasting(low, op, op.inputs[0]), like, 0, not partial, check))


@rule("array_flatten")
def _flatten(low: Lowering, op: Op) -> None:
    element_type(low, low.types[op.outputs[0]])
    like = _runs(low, op.inputs[1]) if len(op.inputs) > 1 and op.inputs[1] != HOLE else None
    order, runs = 0 if like is not None else op.attrs["order"], _runs(low, op.inputs[0])
    whole = runs.whole and like is None and order in (0, runs.order)
    low.define(op.outputs[0], runs.source if whole else Flattened(runs, like, order))


def _alike(low: Lowering, op: Op, runs: Recording, other: Recording) -> None:
    """The code covers only runs that are as long as those of another array: others are rare."""
    check = low.shared.check(NOT_COVERED, "runs of different lengths", op.location)
    low.add(ArrayOp(None, runs, "alike", other=other, check=check, location=op.location))


def complete(low: Lowering, op: Op) -> None:
    """An array of runs as the cotangent of another one."""
    runs = _runs(low, op.inputs[0])
    _alike(low, op, runs, _runs(low, op.inputs[1]))
    low.define(op.outputs[0], runs)


def sum_of_runs(low: Lowering, op: Op) -> None:
    """The sum of all elements in a row, divided again."""
    first, *others = (_runs(low, name) for name in op.inputs)
    element = low.types[op.inputs[0]].element  # type: ignore[union-attr]
    made = begun(low, element)
    low.add(Flatten(made, first, None, 0, location=op.location))
    for each in others:
        _alike(low, op, first, each)
        term = begun(low, element)
        low.add(Flatten(term, each, None, 0, location=op.location))
        add_array(low, made, term)
    low.define(op.outputs[0], _divided(low, made, first))
