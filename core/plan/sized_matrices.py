"""Lowerings of linear algebra on batches of matrices whose number only the run tells, and of Fourier transforms of
such batches (`core.plan.sized`).

Beyond their number, matrices are the identity: no check fails there, and no factorisation meets what memory held.
"""

from __future__ import annotations

from core.ir import Op
from core.plan.compose import Maker
from core.plan.entries import Entry, positions
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import Axes, is_one, sizes_of, with_equal
from core.plan.sized import by_image, rule, run, set_sizes, under, whole, within
from core.plan.unsupported import Unsupported

__all__: list[str] = []


@rule(
    "cholesky_factor", "cofactors", "det", "eigh_factor", "eigvalsh_factor", "inverse", "lu", "matrix_exp", "pinv",
    "qr_factor", "slogdet", "svd",
)  # fmt: skip
def _of_each(low: Lowering, op: Op) -> None:
    (x,) = op.inputs
    own = _batch(low, x)
    set_sizes(low, op, [own] * len(op.outputs))
    with by_image(low, own.get(0)):
        run(low, under(low, op, {x: _with_identity(low, x)}))


@rule("solve", "triangular_solve")
def _systems(low: Lowering, op: Op) -> None:
    """Batches of matrices and of right-hand sides are broadcast to each other."""
    ranks = [low.type(n).rank for n in op.inputs]
    if min(ranks) < 2:
        raise Unsupported(f"{op.type} of arrays whose sizes only the run tells")
    rank = max(ranks)
    sizes: Axes = {}
    for axis in range(rank - 2):
        places = [(i, axis - rank + r) for i, r in enumerate(ranks) if axis - rank + r >= 0]
        places = [at for at in places if not is_one(low, op, *at)]
        if len(places) == 2 and any(at[1] in sizes_of(low, op.inputs[at[0]]) for at in places):
            op = with_equal(low, op, *places)
        for i, own in places:
            if own in sizes_of(low, op.inputs[i]):
                sizes[axis] = sizes_of(low, op.inputs[i])[own]
    x, y = op.inputs
    columns = sizes_of(low, y).get(ranks[1] - 1)
    if columns is not None:  # beyond their number, columns of the solution are unspecified
        sizes[rank - 1] = columns
    _batch(low, x)
    _batch(low, y, 1)
    set_sizes(low, op, [sizes])
    alike = ranks[0] == ranks[1] and 0 in sizes_of(low, x) and 0 in sizes_of(low, y)
    with by_image(low, sizes.get(0) if alike else None):
        run(low, under(low, op, {x: _with_identity(low, x)}) if sizes_of(low, x) else op)


@rule("gap_quotient")
def _gaps(low: Lowering, op: Op) -> None:
    x, gap, values = op.inputs
    own = _batch(low, x)
    for axis in own:
        for i in (1, 2):
            op = with_equal(low, op, (0, axis), (i, axis))
    if any(sizes_of(low, n).keys() != own.keys() for n in (gap, values)):
        raise Unsupported(f"{op.type} of arrays whose sizes only the run tells")
    set_sizes(low, op, [own])
    run(low, under(low, op, {op.inputs[0]: whole(low, op.inputs[0])}))


@rule("dft", "real_dft", "real_from_dft")
def _transforms(low: Lowering, op: Op) -> None:
    (x,) = op.inputs
    own, rank = dict(sizes_of(low, x)), low.type(x).rank
    pairs = {rank - 1} if op.type != "real_dft" else set()
    if own.keys() & {op.attrs["axis"] % rank, *pairs}:
        raise Unsupported(f"{op.type} along an axis whose size only the run tells")
    set_sizes(low, op, [own])
    with by_image(low, own.get(0)):
        run(low, op)


@rule("diagonal")
def _diagonal(low: Lowering, op: Op) -> None:
    own, rest = sizes_of(low, op.inputs[0]), _beside(low, op, op.inputs[0])
    set_sizes(low, op, [{rest.index(axis): size for axis, size in own.items()}])
    run(low, op)


@rule("diagonal_into")
def _diagonal_into(low: Lowering, op: Op) -> None:
    like = op.inputs[1]
    for at, axis in enumerate(_beside(low, op, like)):
        if axis in sizes_of(low, like) or at in sizes_of(low, op.inputs[0]):
            op = with_equal(low, op, (0, at), (1, axis))
    set_sizes(low, op, [dict(sizes_of(low, op.inputs[1]))])
    run(low, op)


def _beside(low: Lowering, op: Op, name: str) -> list[int]:
    """The axes of the batch: all but the two of a matrix. Raises Unsupported if a matrix has an open size."""
    rank = low.type(name).rank
    matrix = {op.attrs["axis1"] % rank, op.attrs["axis2"] % rank}
    if matrix & sizes_of(low, name).keys():
        raise Unsupported("matrices whose sizes only the run tells")
    return [axis for axis in range(rank) if axis not in matrix]


def _batch(low: Lowering, name: str, columns: int = 0) -> Axes:
    """The open sizes of a batch of matrices. Raises Unsupported if matrices themselves have open ones.

    columns: 1 if they may have an open number of columns.
    """
    own, rank = dict(sizes_of(low, name)), low.type(name).rank
    if own.keys() & {rank - 2, *range(rank - 1, rank - columns)}:
        raise Unsupported("matrices whose sizes only the run tells")
    return own


def _with_identity(low: Lowering, name: str) -> Entry:
    """A batch of matrices that are the identity beyond the numbers of the batch."""
    of, entry = Maker(low), low.entry(name)
    shape = entry.shape
    same = of(
        "equal", positions((1,) * (len(shape) - 2) + shape[-2:], (*(0 for _ in shape[:-2]), 1, -1)), of.integer(0)
    )
    for axis, size in sizes_of(low, name).items():
        there = within(low, tuple(n if i == axis else 1 for i, n in enumerate(shape)), axis, size)
        entry = of.where(there, entry, of.cast(same, entry.dtype))
    return entry
