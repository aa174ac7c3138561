"""Loops as `Loop`, branches as `If`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from onnx import ValueInfoProto

from core.ir import Block, StackType, TensorType
from core.onnx.writing.arrays import (
    Stack,
    append,
    at,
    empty,
    flattened,
    join,
    length,
    one,
    open_tensors,
    put_together,
    reversed_stack,
)
from core.onnx.writing.blocks import OpSite, Val
from core.onnx.writing.graph import Graph, Tensor, value_info
from core.onnx.writing.registry import writes


def inner_graph(w: OpSite) -> tuple[Graph, OpSite]:
    """An inner graph, and the place of the loop or branch in it."""
    inner = w.inner()
    return inner.graph, inner


def _tensors(value: Val) -> list[Tensor]:
    return open_tensors(value) if isinstance(value, Stack) else [value]


def _own(site: OpSite, x: Tensor, taken: set[str]) -> Tensor:
    """x as a value that a node of this graph computes and that is no output of the graph yet."""
    if x.name not in site.graph.made or x.name in taken:
        x = replace(site.node("Identity", x), shape=x.shape)
    taken.add(x.name)
    return x


def _infos(tensors: Sequence[Tensor]) -> list[ValueInfoProto]:
    return [value_info(t.name, t.type) for t in tensors]


def _param(site: OpSite, value: Val, type: TensorType | None, hint: str) -> tuple[Val, list[Tensor]]:
    """A parameter of an inner graph that takes `value`, and its tensors."""
    if isinstance(value, Stack):
        tensors = [replace(t, name=site.model.fresh(hint)) for t in open_tensors(value)]
        return put_together(value, tensors), tensors
    assert type is not None
    tensor = Tensor(hint if site.model.claim(hint) else site.model.fresh(hint), type.dtype, type.shape)
    return tensor, [tensor]


@dataclass(frozen=True, slots=True)
class _Body:
    """The body of a `Loop`. site: the place of the loop in it. trips: the length of each stack, outside of it.

    params: the tensors of carried values. results: those of the block, as values.
    """

    site: OpSite
    counter: Tensor
    go_on: Tensor
    params: list[Tensor]
    trips: list[int | Tensor]
    results: list[Any]


def _body(
    w: OpSite, block: Block, state: list[Any], fixed: Sequence[Any], stacks: Sequence[Any], reverse: bool
) -> _Body:
    """Write the body of a loop.

    A trip may add an array of another shape to a stack of arrays of one shape. Then the stack in `state` gets the form
    for different shapes, and the body is written again.
    """
    while True:
        _, inside = inner_graph(w)
        counter = Tensor(w.model.fresh("trip"), "int64", ())
        go_on = Tensor(w.model.fresh("go_on"), "bool", ())
        params: list[Tensor] = []
        given: list[Val] = []
        for value, name, type in zip(state, block.params, block.param_types, strict=False):
            param, tensors = _param(inside, value, type if isinstance(type, TensorType) else None, name)
            given.append(param)
            params += tensors
        trips = [length(w, s) for s in stacks]
        position = inside.reshape(counter, [1])
        if stacks and reverse:
            last = w.vector([w.arith("Sub", trips[0], 1)])
            position = inside.sub(last, position)
        elements = [at(inside, s, position) for s in stacks]
        results: list[Any] = w.writer.block(inside.graph, block, [*given, *fixed, *elements])
        again = False
        for i, (a, b) in enumerate(zip(state, results, strict=False)):
            if isinstance(a, Stack) and (a.shapes is None) != (b.shapes is None):
                if a.shapes is None:
                    state[i], again = flattened(w, a), True
                else:
                    results[i] = flattened(inside, b)
        if not again:
            return _Body(inside, counter, go_on, params, trips, results)


@writes("loop")
def loop(w: OpSite, *x, sub_block: Block, carried, captured, condition, reverse, **_):
    """A `Loop`. Its state is the carried values; then the records whose shapes may differ from trip to trip."""
    state, fixed, stacks = list(x[:carried]), x[carried : carried + captured], x[carried + captured :]
    written = _body(w, sub_block, state, fixed, stacks, reverse)
    inside, params, results = written.site, written.params, written.results
    outs: list[Tensor] = []
    taken: set[str] = set()
    go_on = inside.reshape(results[0], []) if condition else written.go_on
    outs.append(_own(inside, go_on, taken))
    for value in results[:carried]:
        outs += [_own(inside, t, taken) for t in _tensors(value)]
    initial = [t for value in state for t in (value.tensors if isinstance(value, Stack) else (value,))]
    kept: list[Stack] = []
    scans: list[Tensor] = []
    forms: list[tuple[Literal["scan", "kept"], int]] = []
    for name, value in zip(sub_block.results[carried:], results[carried:], strict=True):
        recorded: Any = sub_block.types[name]
        uniform = inside.uniform_in(sub_block, name)
        if isinstance(value, Tensor) and uniform:
            forms.append(("scan", len(scans)))
            scans.append(_own(inside, replace(value, shape=recorded.shape), taken))
            continue
        packed = value.shapes is None if isinstance(value, Stack) else False
        depth = value.depth + 1 if isinstance(value, Stack) else 1
        element = recorded.array if isinstance(recorded, StackType) else recorded
        start = empty(w, element, depth, packed)
        so_far: Any
        so_far, tensors = _param(inside, start, None, f"{name}.kept")
        params += tensors
        new = one(inside, value, packed)
        following = join(inside, new, so_far) if reverse else append(inside, so_far, value)
        outs += [_own(inside, t, taken) for t in open_tensors(following)]
        initial += start.tensors
        forms.append(("kept", len(kept)))
        kept.append(following)
    given = _infos([written.counter, written.go_on, *params])
    body = inside.graph.proto("body", given, _infos([*outs, *scans]))
    first = w.reshape(state[0], []) if condition else None
    if first is None and not initial:  # a node must have two inputs
        first = w.const(True, "bool")
    limit = None if condition else w.scalar(_equal(w, written.trips))
    state_types = [*outs[1:], *(replace(t, shape=(-1, *(t.shape or ()))) for t in scans)]
    found = w.nodes(
        "Loop",
        limit,
        first,
        *initial,
        outputs=[(t.dtype, t.shape) for t in state_types],
        body=body,
    )
    rest = iter(found)
    final: list[Val] = [_taken(value, rest) for value in results[:carried]]
    stacked = [_taken(s, rest) for s in kept]
    scanned = list(rest)
    for (form, i), name in zip(forms, sub_block.results[carried:], strict=True):
        if form == "kept":
            final.append(stacked[i])
            continue
        array = sub_block.types[name]
        assert isinstance(array, TensorType)
        stack = Stack(array, scanned[i])
        final.append(reversed_stack(w, stack) if reverse else stack)
    return tuple(final)


def _taken(like: Val, tensors) -> Val:
    """The value of the form of `like` from the next of `tensors`."""
    if isinstance(like, Stack):
        return put_together(like, [next(tensors) for _ in like.tensors])
    return next(tensors)


def _equal(w: OpSite, trips):
    """The number of trips. The run ends with an error if the stacks have different lengths."""
    first = trips[0]
    others = [n for n in trips[1:] if n != first and not (isinstance(n, Tensor) and isinstance(first, Tensor))]
    if not others:
        return first
    known = w.vector([first])
    return w.guarded(known, *(w.node("Equal", known, w.vector([n])) for n in others))


@writes("if_else")
def if_else(w: OpSite, condition, *x, true_block: Block, false_block: Block, **_):
    """An `If` whose branches read the operands from the graph around them."""
    sides = []
    for block in (true_block, false_block):
        graph, inside = inner_graph(w)
        sides.append((graph, inside, w.writer.block(graph, block, list(x))))
    return branches(w, condition, sides)


def branches(w: OpSite, condition, sides):
    """The results of an `If`. sides: (graph, place in it, results) of the two branches."""
    forms: list[list[Val]] = [[], []]
    for a, b in zip(sides[0][2], sides[1][2], strict=True):
        if isinstance(a, Stack) and (a.shapes is None) != (b.shapes is None):
            a, b = (flattened(s[1], v) for s, v in zip(sides, (a, b), strict=True))
        forms[0].append(a)
        forms[1].append(b)
    protos, declared = [], []
    for (graph, inside, _), values in zip(sides, forms, strict=True):
        taken: set[str] = set()
        outs = [_own(inside, t, taken) for v in values for t in _tensors(v)]
        declared.append(outs)
        protos.append((graph, outs))
    shapes = [
        (a.dtype, tuple(m if m == n else -1 for m, n in zip(a.shape, b.shape, strict=True)))
        for a, b in zip(*declared, strict=True)
    ]
    if not shapes:
        return ()
    graphs = [graph.proto(name, [], _infos(outs)) for (graph, outs), name in zip(protos, ("then", "else"), strict=True)]
    found = iter(
        w.nodes(
            "If",
            w.reshape(w.cast(condition, "bool"), []),
            outputs=shapes,
            then_branch=graphs[0],
            else_branch=graphs[1],
        )
    )
    return tuple(_taken(v, found) for v in forms[0])


@writes("select_input")
def select_input(w: OpSite, index, *x):
    """Nested `If`s, of which each takes one value or goes on to the next."""
    at_ = w.reshape(w.cast(index, "int64"), [])
    within = w.node("And", *_bounds(w, at_, len(x)))
    return _chosen(w, w.guarded(at_, within), list(x), 0)


def _bounds(w: OpSite, index: Tensor, count: int) -> tuple[Tensor, Tensor]:
    zero, end = w.const(0, "int64"), w.const(count, "int64")
    return w.node("GreaterOrEqual", index, zero), w.node("Less", index, end)


def _chosen(w: OpSite, index: Tensor, x: list[Tensor], first: int) -> Tensor:
    if len(x) == 1:
        return x[0]
    here, inside = inner_graph(w)
    there, further = inner_graph(w)
    condition = w.node("Equal", index, w.const(first, "int64"))
    rest = _chosen(further, index, x[1:], first + 1)
    return branches(w, condition, [(here, inside, [x[0]]), (there, further, [rest])])[0]


@writes("select_output")
def select_output(w: OpSite, index, x, *like):
    """For each output an `If`: x at the position `index`, zeros elsewhere."""
    at_ = w.reshape(w.cast(index, "int64"), [])
    at_ = w.guarded(at_, w.node("And", *_bounds(w, at_, len(like))))
    out = []
    for i, each in enumerate(like):
        here, inside = inner_graph(w)
        there, zeros = inner_graph(w)
        condition = w.node("Equal", at_, w.const(i, "int64"))
        found = branches(w, condition, [(here, inside, [x]), (there, zeros, [zeros.zeros_like(each)])])
        out += found
    return tuple(out)
