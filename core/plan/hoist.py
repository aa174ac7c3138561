"""Hoisting from loops: one product for several trips, for products that do not depend on earlier trips.

The gradient of a weight is the sum of a product over all trips. The operands of the trips are adjacent in memory, where
a loop records them or in memory that is allocated here. So the products of several trips are one product with a longer
sum: long enough to run at full speed and to be shared by threads, with one pass over the result instead of many.

A product with a weight whose result the loop only records is computed for several trips at once, too: it has more rows.

The product of a weight with the next row of a sequence, or with the next element of a stack, is computed for several
rows ahead. The number of trips may be unknown, so it takes a few rows and not all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from core.ir.errors import InternalError
from core.plan.flow import Ahead, Branch, Elements, Hoisted, Loop, Recording, Span
from core.plan.growing import ArrayWork
from core.plan.instructions import Gather, Gemm, Instruction, Interpreted, Kernel, Limited, Rows, ScatterAdd
from core.plan.memory import Root, View, bytes_of, contiguous

__all__ = ["hoist_products", "hoist_rows"]


def hoist_products(loop: Loop, own: Collection[Root], terms: int) -> Loop:
    """`loop` with products that it only adds to a state, or only records, computed every few trips.

    own:   arena roots that the body allocated.
    terms: fewest terms of a sum, or rows of a result, that are worth a pass over the result or over a weight.
    """
    sums = {s.now for s in loop.states if s.now is s.following}
    fixed = ((s, e) for s, e in loop.records if not isinstance(s, Recording))  # a growing stack may move
    lasting = (*loop.over, *fixed)
    elements = {e for _, e in lasting if isinstance(e, Root)}
    computed, changing = _computed(loop), _changing(loop, own)
    recorded = _only_written(loop) & elements
    hoisted: dict[Gemm, Hoisted] = {}
    renamed: dict[Root, Root] = {}
    memories: dict[Root, Root] = {}
    taken: dict[Root, int] = {}
    for each in loop.body.instructions:
        if not isinstance(each, Gemm) or len(each.c.shape) != 2 or each.then is not None:
            continue
        if each.accumulate and each.c.root in sums:
            operands = [_transposed(each.a), each.b]
        elif not each.accumulate and each.c.root in recorded and _whole(each.c) and each.b.root not in changing:
            operands = [each.a]
        else:
            continue
        # products that share an operand keep it in one memory, so they join equally many trips
        others = {taken[v.root] for v in operands if v.root in taken}
        trips = min(others) if others else _trips(operands[0].shape[0], terms, loop.length)
        if (
            len(others) > 1
            or trips < 2
            or not all(_whole(v) and (v.root in elements or v.root in computed) for v in operands)
        ):
            continue
        kept = []
        for root in dict.fromkeys(v.root for v in operands if v.root not in elements):
            element = renamed.setdefault(root, Root(root.nbytes, "element", root.name))
            memory = memories.setdefault(root, Root(trips * root.nbytes, "arena", root.name))
            taken[root] = trips
            kept.append((element, memory))
        one, many = (_joined(each, renamed, n) for n in (1, trips))
        hoisted[each] = Hoisted(one, many, trips, tuple(kept))
    return replace(_without(loop, hoisted, renamed), hoisted=tuple(hoisted.values())) if hoisted else loop


def _joined(each: Gemm, names: Mapping[Root, Root], count: int) -> Gemm:
    """The product of `count` trips: its sums have the terms of all of them, or it has the rows of all of them.

    names: its roots in the body -> those of the joint product, if they are others.
    """
    rows = lambda view: _rows(view, names.get(view.root, view.root), count)
    if each.accumulate:
        return replace(each, a=_transposed(rows(_transposed(each.a))), b=rows(each.b))
    return replace(each, a=rows(each.a), c=rows(each.c))


def hoist_rows(loop: Loop, counters: Collection[Root], own: Collection[Root], height: int) -> Loop:
    """`loop` with products of consecutive rows computed for several rows ahead.

    counters: int64 states that grow by one in each trip. own:      arena roots that the body allocated.
    height:   fewest rows that are worth a pass over the weight.
    """
    changing = _changing(loop, own)
    taken = {
        i.out.root: i
        for i in loop.body.instructions
        if isinstance(i, Gather) and i.index.root in counters and _reads_matrix(i) and i.x.root not in changing
    }
    elements = {e for s, e in loop.over if isinstance(s, Elements | Span) and isinstance(e, Root)} - _written(loop)
    computed = _computed(loop)
    ahead: dict[Gemm, Ahead] = {}
    begun: set[Root] = set()
    for each in loop.body.instructions:
        before = begun.copy()
        begun.update(each.writes())
        if not isinstance(each, Gemm) or each.accumulate or each.then is not None or each.b.root in changing:
            continue
        if each.a.root not in taken and each.a.root not in elements:
            continue
        trips = _trips(each.c.shape[0], height, loop.length)
        whole = len(each.c.shape) == 2 and _whole(each.a) and _whole(each.c)
        if trips < 2 or not whole or each.c.root not in computed or each.c.root in before:
            continue
        source = taken.get(each.a.root)
        row = Root(each.a.root.nbytes, "element", each.a.root.name) if source else each.a.root
        element = Root(each.c.root.nbytes, "element", each.c.root.name)
        memory = Root(trips * element.nbytes, "arena", element.name)
        one, many = (_joined(each, {each.a.root: row, each.c.root: element}, n) for n in (1, trips))
        at = (source.x, source.index) if source else None
        ahead[each] = Ahead(at, row, one, many, trips, ((element, memory),))
    names = {each.c.root: made.kept[0][0] for each, made in ahead.items()}
    return replace(_without(loop, ahead, names), ahead=tuple(ahead.values())) if ahead else loop


def _reads_matrix(each: Gather) -> bool:
    """Whether a gather takes rows of a matrix without gaps."""
    return each.x.shape[0] == 1 and each.x.strides == contiguous(each.x.shape)


def _without(loop: Loop, gone: Collection[Instruction], names: Mapping[Root, Root]) -> Loop:
    """`loop` without the instructions `gone` of its body, and with the roots of the others renamed."""
    left = (_renamed(each, names) for each in loop.body.instructions if each not in gone)
    return replace(loop, body=replace(loop.body, instructions=tuple(left)))


def _rows(view: View, root: Root, count: int) -> View:
    """The matrix of the shape of `view` that is all of `root`; or `count` adjacent ones as one matrix."""
    rows, columns = view.shape
    return View(root, view.dtype, (count * rows, columns), (columns, 1))


def _elements(loop: Loop) -> Iterator[Root]:
    """The roots of stack elements in the body."""
    return (e for _, e in (*loop.over, *loop.records) if isinstance(e, Root))


def _changing(loop: Loop, own: Collection[Root]) -> set[Root]:
    """The roots that do not have the same content in all trips."""
    return {*own, *(r for s in loop.states for r in (s.now, s.following)), *_elements(loop)}


def _written(loop: Loop) -> set[Root]:
    return {r for i in loop.body.instructions for r in i.writes()}


def _only_written(loop: Loop) -> set[Root]:
    """The roots that one instruction of the body writes, and that no other one touches."""
    touched = Counter(r for i in loop.body.instructions for r in {*i.reads(), *i.writes()})
    return {r for i in loop.body.instructions for r in i.writes() if touched[r] == 1}


def _computed(loop: Loop) -> set[Root]:
    """The arena roots that every trip computes, and that no inner loop or branch touches."""
    inner = (i for i in loop.body.instructions if isinstance(i, Loop | Branch))
    shared = {r for i in inner for r in (*i.reads(), *i.writes())}
    return {r for r in _written(loop) if r.place == "arena" and r not in shared}


def _trips(k: int, least: int, length: int | None) -> int:
    """The number of trips whose products of `k` terms or rows have at least `least` together, if there are so many.

    length: the number of all trips, if it is known. Few are left then that a joint product does not cover.
    """
    fewest = -(-least // k)
    if length is None:
        return fewest
    return length // max(length // fewest, 1)


def _transposed(view: View) -> View:
    return replace(view, shape=view.shape[::-1], strides=view.strides[::-1])


def _whole(view: View) -> bool:
    """Whether a matrix is all of its root, stored by rows without gaps."""
    laid = all(n == 1 or s == t for n, s, t in zip(view.shape, view.strides, contiguous(view.shape), strict=True))
    return laid and view.offset == 0 and view.root.nbytes == bytes_of(view.shape, view.dtype)


def _renamed(each: Instruction, names: Mapping[Root, Root]) -> Instruction:
    """`each`, which is no loop or branch, with its roots renamed."""
    if isinstance(each, Rows | Kernel | Interpreted):
        return replace(each, views=tuple(_views(each.views, names)))
    if isinstance(each, Gemm):
        a, b, c = _views((each.a, each.b, each.c), names)
        return replace(each, a=a, b=b, c=c)
    if isinstance(each, Limited):
        inner = _renamed(each.instruction, names)
        assert isinstance(inner, Rows | Gemm | Gather | Kernel)
        first, second = (None if v is None else next(iter(_views([v], names))) for v in each.last)
        (length,) = _views([each.length], names)
        return replace(each, instruction=inner, length=length, last=(first, second))
    if isinstance(each, Gather | ScatterAdd):
        x, index, out = _views((each.x, each.index, each.out), names)
        return replace(each, x=x, index=index, out=out)
    if isinstance(each, ArrayWork):
        given = {field.name: getattr(each, field.name) for field in fields(each)}
        return replace(each, **{name: _array_renamed(part, names) for name, part in given.items()})
    if not names.keys().isdisjoint((*each.reads(), *each.writes())):
        raise InternalError(f"cannot rename the buffers of {type(each).__name__}: it would use memory of another loop")
    return each


def _array_renamed(part: Any, names: Mapping[Root, Root]) -> Any:
    """A part of an instruction on arrays with its roots renamed. A span keeps its positions."""
    if isinstance(part, View):
        return replace(part, root=names.get(part.root, part.root))
    if isinstance(part, Elements | Span) and part.view.root in names:
        view = _array_renamed(part.view, names)
        return replace(part, view=view, of=part.places) if isinstance(part, Span) else replace(part, view=view)
    return part


def _views(views: Iterable[View], names: Mapping[Root, Root]) -> Iterable[View]:
    return (replace(v, root=names.get(v.root, v.root)) for v in views)
