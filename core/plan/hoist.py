"""Hoisting from loops: one product for several trips, for products that do not depend on earlier trips.

The gradient of a weight is the sum of a product over all trips. The operands of the trips are adjacent in memory, where
a loop records them or in memory that is allocated here. So the products of several trips are one product with a longer
sum: long enough to run at full speed and to be shared by threads, with one pass over the result instead of many.

The product of a weight with the next row of a sequence is computed for several rows ahead, as one product with more
rows. The number of trips is unknown, so it takes a few rows and not all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from core.ir.errors import InternalError
from core.plan.data import (
    Gather,
    Gemm,
    Instruction,
    Interpreted,
    Kernel,
    Limited,
    Root,
    Rows,
    ScatterAdd,
    View,
    bytes_of,
    contiguous,
)
from core.plan.flow import Ahead, Branch, Elements, Hoisted, Loop
from core.plan.growing import ArrayOp

__all__ = ["hoist_products", "hoist_rows"]


def hoist_products(loop: Loop, terms: int) -> Loop:
    """`loop` with products that it only adds to a state computed every few trips, if their operands allow it.

    terms: fewest terms of a sum that are worth a pass over the result.
    """
    sums = {s.now: s for s in loop.states if s.now is s.following}
    lasting = (*loop.over, *((s, e) for s, e in loop.records if isinstance(s, Elements)))  # a growing stack may move
    elements = {e for _, e in lasting if isinstance(e, Root)}
    own = _computed(loop)
    hoisted: dict[Gemm, Hoisted] = {}
    renamed: dict[Root, Root] = {}
    memories: dict[tuple[Root, int], Root] = {}
    for each in loop.body.instructions:
        if not isinstance(each, Gemm) or not each.accumulate or each.c.root not in sums or len(each.c.shape) != 2:
            continue
        trips = _trips(each.a.shape[-1], terms)
        a, b = _transposed(each.a), each.b
        if trips < 2 or not all(_whole(v) and (v.root in elements or v.root in own) for v in (a, b)):
            continue
        kept = []
        for root in dict.fromkeys(v.root for v in (a, b) if v.root not in elements):
            element = renamed.setdefault(root, Root(root.nbytes, "element", root.name))
            memory = memories.setdefault((root, trips), Root(trips * root.nbytes, "arena", root.name))
            kept.append((element, memory))
        one, many = (
            replace(
                each,
                a=_transposed(_rows(a, renamed.get(a.root, a.root), n)),
                b=_rows(b, renamed.get(b.root, b.root), n),
            )
            for n in (1, trips)
        )
        hoisted[each] = Hoisted(one, many, trips, tuple(kept))
    return replace(_without(loop, hoisted, renamed), hoisted=tuple(hoisted.values())) if hoisted else loop


def hoist_rows(loop: Loop, counters: Collection[Root], own: Collection[Root], height: int) -> Loop:
    """`loop` with products of consecutive rows computed for several rows ahead.

    counters: int64 states that grow by one in each trip. own:      arena roots that the body allocated.
    height:   fewest rows that are worth a pass over the weight.
    """
    changing = {*own, *(r for s in loop.states for r in (s.now, s.following)), *_elements(loop)}
    taken = {
        i.out.root: i
        for i in loop.body.instructions
        if isinstance(i, Gather) and i.index.root in counters and i.x.shape[0] == 1 and i.x.root not in changing
    }
    computed = _computed(loop)
    writers = Counter(r for i in loop.body.instructions for r in i.writes())
    ahead: dict[Gemm, Ahead] = {}
    for each in loop.body.instructions:
        if not isinstance(each, Gemm) or each.accumulate or each.a.root not in taken or each.b.root in changing:
            continue
        trips = _trips(each.c.shape[0], height)
        whole = len(each.c.shape) == 2 and _whole(each.a) and _whole(each.c)
        if trips < 2 or not whole or each.c.root not in computed or writers[each.c.root] > 1:
            continue
        source = taken[each.a.root]
        row = Root(each.a.root.nbytes, "element", each.a.root.name)
        element = Root(each.c.root.nbytes, "element", each.c.root.name)
        memory = Root(trips * element.nbytes, "arena", element.name)
        one, many = (replace(each, a=_rows(each.a, row, n), c=_rows(each.c, element, n)) for n in (1, trips))
        ahead[each] = Ahead(source.x, source.index, row, one, many, trips, ((element, memory),))
    names = {each.c.root: made.kept[0][0] for each, made in ahead.items()}
    return replace(_without(loop, ahead, names), ahead=tuple(ahead.values())) if ahead else loop


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


def _computed(loop: Loop) -> set[Root]:
    """The arena roots that every trip computes, and that no inner loop or branch touches."""
    inner = (i for i in loop.body.instructions if isinstance(i, Loop | Branch))
    shared = {r for i in inner for r in (*i.reads(), *i.writes())}
    written = {r for i in loop.body.instructions for r in i.writes()}
    return {r for r in written if r.place == "arena" and r not in shared}


def _trips(k: int, least: int) -> int:
    """The number of trips, a power of two, whose products of `k` terms or rows have at least `least` together."""
    trips = 1
    while trips * k < least:
        trips *= 2
    return trips


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
        assert isinstance(inner, Rows | Gemm | Gather)
        return replace(each, instruction=inner, length=next(iter(_views([each.length], names))))
    if isinstance(each, Gather | ScatterAdd):
        x, index, out = _views((each.x, each.index, each.out), names)
        return replace(each, x=x, index=index, out=out)
    if isinstance(each, ArrayOp):
        number, at = (view and next(iter(_views([view], names))) for view in (each.value, each.index))
        source = each.source
        if isinstance(source, Elements):
            source = Elements(next(iter(_views([source.view], names))))
        return replace(each, source=source, value=number, index=at)
    if not names.keys().isdisjoint((*each.reads(), *each.writes())):
        raise InternalError(f"cannot rename the buffers of {type(each).__name__}: it would use memory of another loop")
    return each


def _views(views: Iterable[View], names: Mapping[Root, Root]) -> Iterable[View]:
    return (replace(v, root=names.get(v.root, v.root)) for v in views)
