"""Linear-chain conditional random fields (Lafferty, McCallum and Pereira 2001).

Each label of a sequence depends on its neighbours. `emission` [n, time, K] has the score of each label at each time.
`transition` [K + 2, K] has in row 0 the score of each first label, in row 1 of each last label, and in row 2 + i of
each label after label i. `lengths` [n] has the number of times of each sequence; without it all times count. An empty
sequence has the score 0.
"""

from __future__ import annotations

import itertools

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.types import same_dtype
from core.ops.elementwise.arithmetic import stop_gradient
from core.ops.elementwise.logic import where, where_or_zero
from core.ops.indexing.gather import check_index, gather, slice_
from core.ops.indexing.scatter_gather import take_along_axis
from core.ops.reduction.statistics import logsumexp, reduce_any
from core.ops.reduction.sums import reduce_sum
from core.ops.sequence.lattice import check_counts, counts_within, over_steps, steps_within
from core.ops.shape.agreeing import agreed, squared
from core.ops.shape.concat_split import concat
from core.ops.shape.reshape import reshape, squeeze, transpose, unsqueeze

__all__: list[str] = []


def _check_scores(emission: TensorType, transition: TensorType) -> None:
    floats = emission.is_float and same_dtype(emission, transition)
    if not floats or emission.rank != 3 or transition.rank != 2:
        wanted = "emissions [n, time, K] and transitions [K + 2, K]"
        raise ProgramError(f"the CRF takes {wanted}, not {emission} and {transition}", "shape_mismatch")
    labels, (rows, columns) = emission.shape[2], transition.shape
    known = {n for n in (labels, columns) if n != -1} | ({rows - 2} if rows != -1 else set())
    if len(known) > 1 or rows in (0, 1):
        raise ProgramError(
            f"emission {emission} and transition {transition} must have the same number of labels", "shape_mismatch"
        )


def _agreed_scores(emission, transition):
    """Emissions [n, time, K] and transitions [K + 2, K]. Raises ProgramError, or the run has an error."""
    _check_scores(emission.type, transition.type)
    emission, transition = agreed(emission, transition, (2, 1))
    if -1 in transition.shape:
        between = squared(_part(transition, 0, 2))
        transition = concat(_part(transition, 0, 0, 2), between, axis=0)
    emission, transition = agreed(emission, transition, (2, 1))
    return emission, transition


def _part(x, axis, start, end=2**31):
    return slice_(x, axes=(axis,), starts=(start,), ends=(end,))


@op(outputs=("path", "moves", "taken"), no_gradient="its results depend on integers only")
def crf_moves(xp, label, emission, lengths=None):
    """The positions of the scores that a sequence of labels adds up.

    path: [n, time], the labels, 0 after the end. moves: [n, time + 1], the positions of the transitions, in row-major
    order, from the first label to the last. taken: [n, time + 1], whether the sequence has that transition. Only the
    shape of emission matters.
    """
    batch, time, labels = emission.shape
    if label.shape != (batch, time):
        raise ExecutionError(f"labels must have the shape {[batch, time]}, not {list(label.shape)}", "shape_mismatch")
    counts = xp.full(batch, time) if lengths is None else counts_within(xp, lengths, batch, time, "lengths")
    counts = counts[:, None]
    steps = xp.arange(time + 1)[None, :]
    live = steps[:, :-1] < counts
    wrong = live & ((label < 0) | (label >= labels))
    if label.size and bool(wrong.any()):
        found = int(label[wrong].ravel()[0])
        raise ExecutionError(f"labels must be from 0 to {labels - 1}, not {found}", "index_out_of_range")
    path = xp.where(live, label, 0).astype("int64")
    none = xp.zeros((batch, 1), dtype="int64")
    before, after = xp.concatenate([none, path], 1), xp.concatenate([path, none], 1)
    moves = xp.where(steps == 0, after, (before + 2) * labels + after)
    moves = xp.where(steps == counts, labels + before, moves)
    taken = (steps <= counts) & (counts > 0)
    return path, xp.where(taken, moves, 0), taken


@crf_moves.infer
def crf_moves_infer(label, emission, lengths):
    check_index(label, "label")
    if emission.rank != 3 or label.rank != 2:
        raise ProgramError(
            f"needs labels [n, time] for emissions [n, time, K], not {label} for {emission}", "shape_mismatch"
        )
    if any(m != n and -1 not in (m, n) for m, n in zip(label.shape, emission.shape, strict=False)):
        raise ProgramError(f"labels must have the sizes of emission {emission}, not {label}", "shape_mismatch")
    batch, time = emission.shape[:2]
    if lengths is not None:
        check_counts(lengths, batch, "lengths")
    more = -1 if time == -1 else time + 1
    return TensorType((batch, time), "int64"), TensorType((batch, more), "int64"), TensorType((batch, more), "bool")


crf_moves.example(
    lambda: [
        Example(
            (np.array([[2, 1], [0, 9]]), np.zeros((2, 2, 3)), np.array([2, 1])),
            (
                np.array([[2, 1], [0, 0]]),
                np.array([[2, 13, 4], [0, 3, 0]]),
                np.array([[True, True, True], [True, True, False]]),
            ),
        )
    ]
)


@composite
def crf_score(emission, transition, label, lengths=None):
    """``sum over t of emission[i, t, label[i, t]]``, plus the scores of the transitions, for labels [n, time]."""
    emission, transition = _agreed_scores(emission, transition)
    path, moves, taken = crf_moves(label, emission, lengths)
    live = steps_within(emission, lengths)
    columns = unsqueeze(path, axes=(2,))
    emitted = squeeze(take_along_axis(emission, columns, axis=2), axes=(2,))
    moved = gather(reshape(transition, shape=(-1,)), moves)
    return reduce_sum(where_or_zero(live, emitted), axes=(1,)) + reduce_sum(where_or_zero(taken, moved), axes=(1,))


@composite
def crf_partition(emission, transition, lengths=None):
    """The logarithm of the sum of ``exp(crf_score)`` over all possible labels, one number for each sequence."""
    emission, transition = _agreed_scores(emission, transition)
    live = steps_within(emission, lengths)

    # the sum over one step, or over no step
    first = reduce_sum(_part(emission, 1, 0, 1), axes=(1,)) + _part(transition, 0, 0, 1)
    later = transpose(_part(emission, 1, 1), axes=(1, 0, 2))
    alive = unsqueeze(transpose(_part(live, 1, 1), axes=(1, 0)), axes=(2,))

    def step(before, fixed, now):
        emitted, alive = now
        ways = unsqueeze(before, axes=(2,)) + fixed[0]
        return where(alive, emitted + logsumexp(ways, axes=(1,)), before)

    last = over_steps(step, first, (_part(transition, 0, 2),), (later, alive))
    total = logsumexp(last + _part(transition, 0, 1, 2), axes=(1,))
    return where_or_zero(reduce_any(live, axes=(1,)), total)


@composite(outputs=("loss",))
def linear_chain_crf(emission, transition, label, lengths=None):
    """``crf_partition - crf_score``: minus the log-likelihood of the labels [n, time], one number for each sequence."""
    score = crf_score(emission, transition, label, lengths)
    return crf_partition(emission, transition, lengths) - score


@op(no_gradient="its result is an integer")
def crf_decoding(xp, emission, transition, lengths=None):
    """The labels [n, time] with the highest `crf_score`: int64, 0 after the end of a sequence (Viterbi 1967).

    Of equally good ones it returns those with the smaller label at the last time at which they differ.
    """
    batch, time, labels = emission.shape
    if transition.shape != (labels + 2, labels):
        raise ExecutionError(
            f"transition must have the shape {[labels + 2, labels]}, not {list(transition.shape)}", "shape_mismatch"
        )
    counts = xp.full(batch, time) if lengths is None else counts_within(xp, lengths, batch, time, "lengths")
    out = xp.zeros((batch, time), dtype="int64")
    if not out.size:
        return out
    start, end, follows = transition[0], transition[1], transition[2:]
    best, back = emission[:, 0] + start, []
    for t in range(1, time):
        ways = best[:, :, None] + follows
        back.append(xp.argmax(ways, axis=1))
        best = xp.where((t < counts)[:, None], emission[:, t] + xp.max(ways, axis=1), best)
    label = xp.argmax(best + end, axis=1)
    for t in range(time - 1, -1, -1):
        out[:, t] = xp.where(t < counts, label, 0)
        if t:
            before = xp.take_along_axis(back[t - 1], label[:, None], axis=1)[:, 0]
            label = xp.where(t < counts, before, label)
    return out


@crf_decoding.infer
def crf_decoding_infer(emission, transition, lengths):
    _check_scores(emission, transition)
    if emission.shape[2] == 0:
        raise ProgramError(f"emission must have at least one label, not {emission}", "shape_mismatch")
    if lengths is not None:
        check_counts(lengths, emission.shape[0], "lengths")
    return TensorType(emission.shape[:2], "int64")


@composite(outputs=("score", "path"))
def viterbi_decode(emission, transition, lengths=None):
    """The highest `crf_score` of each sequence, and its labels (`crf_decoding`).

    The gradient is that of `crf_score` with these labels.
    """
    path = crf_decoding(stop_gradient(emission), stop_gradient(transition), lengths)
    return crf_score(emission, transition, path, lengths), path


def _scores(emission, transition, n):
    """(score, labels) of all sequences of labels of length n."""
    for labels in itertools.product(range(emission.shape[1]), repeat=n):
        score = sum(emission[t, k] for t, k in enumerate(labels))
        score += sum(transition[2 + a, b] for a, b in itertools.pairwise(labels))
        if n:
            score += transition[0, labels[0]] + transition[1, labels[-1]]
        yield score, labels


def _each(f, emission, transition, lengths):
    return np.array([f(list(_scores(e, transition, n))) for e, n in zip(emission, lengths, strict=True)])


def _total(scores):
    return np.log(sum(np.exp(s) for s, _ in scores))


def _of(labels, emission, transition, lengths):
    rows = zip(emission, labels, lengths, strict=True)
    return np.array([{b: a for a, b in _scores(e, transition, n)}[tuple(k[:n])] for e, k, n in rows])


def _paths(emission, transition, lengths):
    found = [max(_scores(e, transition, n))[1] for e, n in zip(emission, lengths, strict=True)]
    return np.array([(*labels, *(0,) * (emission.shape[1] - len(labels))) for labels in found])


_E = np.sin(np.arange(18.0) * 5).reshape(2, 3, 3)
_T = np.cos(np.arange(15.0) * 3).reshape(5, 3)
_L, _N = np.array([[2, 0, 1], [1, 1, -5]]), np.array([3, 2])
_ALL = np.array([3, 3])
_PAIR = (_E[:, :, :2], _T[:4, :2])
_BITS = np.array([[0, 1, 1], [1, 0, 1]])
_GONE = np.array([0, 1])


def _loss(emission, transition, labels, lengths):
    return _each(_total, emission, transition, lengths) - _of(labels, emission, transition, lengths)


crf_score.example(
    lambda: [
        Example((_E, _T, _L, _N), (_of(_L, _E, _T, _N),)),
        Example((*_PAIR, _BITS), (_of(_BITS, *_PAIR, _ALL),)),
        Example((*_PAIR, _BITS, _GONE), (_of(_BITS, *_PAIR, _GONE),)),
        Example((_E[:, :0], _T, _L[:, :0]), (np.zeros(2),)),
    ]
)
crf_partition.example(
    lambda: [
        Example((_E, _T, _N), (_each(_total, _E, _T, _N),)),
        Example(_PAIR, (_each(_total, *_PAIR, _ALL),)),
        Example((*_PAIR, _GONE), (_each(_total, *_PAIR, _GONE),)),
        Example((_E[:, :0], _T), (np.zeros(2),)),
    ]
)
linear_chain_crf.example(
    lambda: [
        Example((_E, _T, _L, _N), (_loss(_E, _T, _L, _N),)),
        Example((*_PAIR, _BITS), (_loss(*_PAIR, _BITS, _ALL),)),
        Example((*_PAIR, _BITS, _GONE), (_loss(*_PAIR, _BITS, _GONE),)),
        Example((_E[:0], _T, _L[:0]), (np.zeros(0),)),
    ]
)
crf_decoding.example(
    lambda: [
        Example((_E, _T, _N), (_paths(_E, _T, _N),)),
        Example(_PAIR, (_paths(*_PAIR, _ALL),)),
        Example((*_PAIR, _GONE), (_paths(*_PAIR, _GONE),)),
        Example((_E[:, :0], _T), (np.zeros((2, 0), int),)),
    ]
)


def _best(scores):
    return max(scores)[0]


viterbi_decode.example(
    lambda: [
        Example((_E, _T, _N), (_each(_best, _E, _T, _N), _paths(_E, _T, _N))),
        Example(_PAIR, (_each(_best, *_PAIR, _ALL), _paths(*_PAIR, _ALL))),
        Example((*_PAIR, _GONE), (_each(_best, *_PAIR, _GONE), _paths(*_PAIR, _GONE))),
    ]
)
