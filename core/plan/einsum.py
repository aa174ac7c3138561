"""`einsum` as products of matrices, as batches of them, or as elementwise products."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from core.ir import Op, TensorType
from core.ir.errors import InternalError
from core.ir.precision import is_half
from core.ops.linalg.einsum import terms_of
from core.plan.compose import Maker
from core.plan.entries import Entry
from core.plan.halves import WIDE, lower_wide, narrowed
from core.plan.linear import matrix, paired, product
from core.plan.lowering import Lowering, lowers
from core.plan.memory import Root, View, contiguous, is_matrix
from core.plan.reduce import reduced
from core.plan.shapes import expanded, inverse, reshaped_view, sole_transposition, transposed, with_ones
from core.plan.unsupported import Unsupported

__all__: list[str] = []

LEAST = 32
"""Fewest rows and columns of a product in a batch that is made to save a copy."""


@dataclass(frozen=True, slots=True)
class Term:
    """An operand with one letter for each axis, all different."""

    entry: Entry
    letters: str


@lowers("einsum")
def lower_einsum(low: Lowering, op: Op) -> None:
    """Operands are multiplied in pairs; the pair with the smallest product comes first."""
    type = low.type(op.outputs[0])
    if not type.is_float:
        raise Unsupported(f"einsum of {type.dtype}")
    letters, result, _ = terms_of(op.attrs["equation"], tuple(len(low.type(n).shape) for n in op.inputs))
    sizes: dict[str, int] = {}
    for term, operand in zip(letters, op.inputs, strict=True):
        for c, n in zip(term, low.type(operand).shape, strict=True):
            sizes[c] = max(n, sizes.get(c, 1))
    if is_half(type):
        if _as_pairs(low, op, letters, result, sizes):
            low.stand_alone(op.outputs[0])
            x, y = (Term(low.entry(n), t) for n, t in zip(op.inputs, letters, strict=True))
            found = _product(low, op, x, y, result, sizes, pairs=True).entry
            low.define(op.outputs[0], narrowed(low, found, type))
            return
        if not (low.target.products.rounds and _is_product(letters, result)):
            lower_wide(low, op, lower_einsum)
            return
        low.stand_alone(op.outputs[0])
    name, order = op.outputs[0], tuple(range(len(result)))
    turned = sole_transposition(low, op)
    if turned is not None and any(term.endswith(result[turned[1][-1]]) for term in letters):
        name, order = turned
        result = "".join(result[i] for i in order)
    terms = [_distinct(low, low.entry(n), t, sizes) for t, n in zip(letters, op.inputs, strict=True)]
    while len(terms) > 2:
        i, j, kept = min(_pairs(terms, result), key=lambda each: math.prod(sizes[c] for c in each[2]))
        rest = [t for k, t in enumerate(terms) if k not in (i, j)]
        terms = [*rest, _product(low, op, terms[i], terms[j], kept, sizes)]
    if len(terms) == 1:
        low.stand_alone(name)
        found = _spread(_summed(low, terms[0], result), result, sizes)
    else:
        found = _product(low, op, terms[0], terms[1], result, sizes, name).entry
    low.define(op.outputs[0], transposed(found, inverse(order)))


def _is_product(letters: Sequence[str], result: str) -> bool:
    """Whether an einsum is one product of matrices, or a batch of them, so that only its sums are rounded."""
    if len(letters) != 2:
        return False
    x, y = map(set, letters)
    return bool(x & y - {*result}) and x ^ y <= {*result} and bool(x ^ y)


def _as_pairs(low: Lowering, op: Op, letters: Sequence[str], result: str, sizes: dict[str, int]) -> bool:
    """Whether the target multiplies the 16-bit operands as they are: one product, and no axis is repeated or spread."""
    if low.target.products.rounds or not _is_product(letters, result):
        return False
    x, y = letters
    types = [low.type(n) for n in op.inputs]
    plain = all(
        len(set(term)) == len(term) and type.shape == tuple(sizes[c] for c in term)
        for term, type in zip(letters, types, strict=True)
    )
    _, rows, columns = _axes(x, y, result, sizes)
    m, n, k = (math.prod(sizes[c] for c in part) for part in (rows, columns, {*x} - {*result}))
    return plain and min(m, n) > 1 and low.target.products.pairs(types[0].dtype, m, n, k)


def _distinct(low: Lowering, entry: Entry, letters: str, sizes: dict[str, int]) -> Term:
    """An operand without repeated letters, which select a diagonal, and without letters of size 1 that broadcast."""
    if len(set(letters)) == len(letters) and all(sizes[c] == n for c, n in zip(letters, entry.shape, strict=True)):
        return Term(entry, letters)
    view = low.stored(entry)
    kept = {c: n for c, n in zip(letters, view.shape, strict=True) if n == sizes[c]}
    steps = dict.fromkeys(kept, 0)
    for c, step in zip(letters, view.strides, strict=True):
        if c in kept:
            steps[c] += step
    return Term(replace(view, shape=tuple(kept.values()), strides=tuple(steps.values())), "".join(kept))


def _pairs(terms: list[Term], result: str) -> Iterator[tuple[int, int, str]]:
    """Each pair of operands, with the letters of their product: those that the result or another operand has."""
    for i, a in enumerate(terms):
        for j, b in enumerate(terms[:i]):
            needed = {*result}.union(*(t.letters for k, t in enumerate(terms) if k not in (i, j)))
            yield j, i, "".join(c for c in dict.fromkeys(b.letters + a.letters) if c in needed)


def _summed(low: Lowering, term: Term, kept: str) -> Term:
    """`term`, summed over the letters that are not in `kept`."""
    over = frozenset(i for i, c in enumerate(term.letters) if c not in kept)
    if not over:
        return term
    letters = "".join(c for c in term.letters if c in kept)
    shape = tuple(n for n, c in zip(term.entry.shape, term.letters, strict=True) if c in kept)
    return Term(reduced(low, "sum", term.entry, over, TensorType(shape, term.entry.dtype)), letters)


def _spread(term: Term, result: str, sizes: dict[str, int]) -> Entry:
    """`term` with the axes `result`; letters that it lacks are repeated."""
    order = tuple(term.letters.index(c) for c in result if c in term.letters)
    entry = transposed(term.entry, order)
    shape = tuple(sizes[c] if c in term.letters else 1 for c in result)
    return expanded(with_ones(entry, shape), tuple(sizes[c] for c in result))


def _product(
    low: Lowering, op: Op, first: Term, second: Term, result: str, sizes: dict[str, int], name: str | None = None,
    pairs: bool = False,
) -> Term:  # fmt: skip
    """The product of two operands with the letters `result`.

    name:  the variable of the result, if it is one.
    pairs: whether to multiply pairs of 16-bit numbers; the result is float32.

    Letters of both operands and the result are batch axes; letters of both operands alone are summed over.
    """
    both = set(first.letters) & set(second.letters)
    first, second = (_summed(low, t, "".join({*both, *result})) for t in (first, second))
    x, y = first.letters, second.letters
    batch, rows, columns = _axes(x, y, result, sizes)
    summed = [c for c in x if c in y and c not in result]
    if not summed or not (rows or columns):
        if name:
            low.stand_alone(name)
        along = "".join(dict.fromkeys(x + y)) if summed else result  # sums along axes as they are in memory
        return _elementwise(low, first, second, along, result, sizes)
    a, b = low.stored(first.entry), low.stored(second.entry)
    if set(rows) & set(y) or set(columns) & set(x):
        x, y, a, b = y, x, b, a
    m, n, k = (math.prod(sizes[c] for c in part) for part in (rows, columns, summed))
    lead = tuple(sizes[c] for c in batch)
    a = matrix(low, _grouped(low, _ordered(a, x, [*batch, *rows, *summed], sizes), (*lead, m, k)))
    b = matrix(low, _grouped(low, _ordered(b, y, [*batch, *summed, *columns], sizes), (*lead, k, n)))
    dtype = a.dtype
    if pairs:
        a, b = paired(low, a, b)
        dtype = WIDE
    order = [*batch, *rows, *columns]
    shape = tuple(sizes[c] for c in result)
    if _can_view(shape, result, order, (*lead, m, n)):
        target, accumulates = low.product_destination(name) if name else (low.allocate(shape, dtype), False)
        c = reshaped_view(_ordered(target, result, order), (*lead, m, n))
    else:
        if name:
            low.stand_alone(name)
        stored, accumulates = low.allocate(tuple(sizes[each] for each in order), dtype), False
        c, target = reshaped_view(stored, (*lead, m, n)), _ordered(stored, "".join(order), list(result))
    if c is None:
        raise InternalError(f"no strides describe the product {x},{y}->{result} as matrices {[*lead, m, n]}")
    low.add(product(a, b, c, accumulates, op.location))
    return Term(target, result)


def _elementwise(low: Lowering, a: Term, b: Term, along: str, result: str, sizes: dict[str, int]) -> Term:
    """A product of which no letter is summed, or which is one sum for each element of the result."""
    whole = Maker(low).mul(*(_spread(t, along, sizes) for t in (a, b)))
    return Term(_spread(_summed(low, Term(whole, along), result), result, sizes), result)


def _axes(x: str, y: str, result: str, sizes: dict[str, int]) -> tuple[list[str], list[str], list[str]]:
    """The letters of batches, of rows and of columns in the product of operands with the letters `x` and `y`.

    The first letters of the result may belong to one operand alone. They are rows or columns too, unless the product
    would then have another order than the result and take a copy: batches that share the other operand take none.
    """
    both = {c for c in result if c in x and c in y}
    own = [c for c in result if c not in both]
    first = None
    for number in range(max(len(own) - 1, 1)):
        shared = both.union(own[:number])
        batch = [c for c in result if c in shared]
        rows, columns = ([c for c in result if c in one and c not in shared] for one in (x, y))
        if number and not (rows and columns):
            break
        if rows and columns and result.index(columns[0]) < result.index(rows[0]):  # then rows are contiguous
            rows, columns = columns, rows
        first = first or (batch, rows, columns)
        matrices = tuple(math.prod(sizes[c] for c in part) for part in (rows, columns))
        if number and min(matrices) < LEAST:
            break
        shape = tuple(sizes[c] for c in result)
        if _can_view(shape, result, [*batch, *rows, *columns], (*(sizes[c] for c in batch), *matrices)):
            return batch, rows, columns
    assert first is not None
    return first


def _ordered(view: View, letters: str, order: list[str], sizes: dict[str, int] | None = None) -> View:
    """`view`, whose axes are `letters`, with its axes in another order. sizes: of letters that it may lack."""
    sizes = sizes or {}
    at = [(view.shape[i], view.strides[i]) if (i := letters.find(c)) >= 0 else (sizes[c], 0) for c in order]
    return replace(view, shape=tuple(n for n, _ in at), strides=tuple(step for _, step in at))


def _can_view(shape: tuple[int, ...], letters: str, order: list[str], wanted: tuple[int, ...]) -> bool:
    """Whether a dense array of `shape`, with its axes in `order`, is an array of matrices of shape `wanted`.

    Kernels write rows or columns without gaps, so neither may be interleaved with the matrices of a batch.
    """
    dense = View(Root(0), "", shape, contiguous(shape))
    found = reshaped_view(_ordered(dense, letters, order), wanted)
    return found is not None and is_matrix(found)


def _grouped(low: Lowering, view: View, shape: tuple[int, ...]) -> View:
    """`view` as matrices; a copy if strides cannot view it so."""
    found = reshaped_view(view, shape) or reshaped_view(low.dense(view), shape)
    if found is None:
        raise InternalError(f"cannot view a dense array of shape {list(view.shape)} as matrices {list(shape)}")
    return found
