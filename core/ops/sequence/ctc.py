"""Connectionist temporal classification (Graves et al. 2006): the loss of labels whose times are unknown."""

from __future__ import annotations

import itertools

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.ranges import Size
from core.ops.elementwise.arithmetic import cast
from core.ops.elementwise.logic import where
from core.ops.elementwise.math import clip
from core.ops.elementwise.rounding import isinf
from core.ops.indexing.gather import check_index, gather
from core.ops.indexing.scatter_gather import take_along_axis
from core.ops.nn.softmax_loss import Reduction, reduced
from core.ops.reduction.statistics import logsumexp
from core.ops.sequence.lattice import check_counts, counts_within, masked, over_steps
from core.ops.shape.creation import fill_zeros_like

__all__: list[str] = []


@op(
    outputs=("states", "origin", "open", "live", "final", "start"),
    no_gradient="its results depend on integers only",
)
def ctc_lattice(xp, label, input_lengths, label_lengths, log_probs, *, blank: Size = 0):
    """The lattice of `ctc_loss`: blank, label 0, blank, label 1, ..., blank are states s = 0 to 2 L of a sequence.

    states: [time, n, 2 L + 1], the class of each state, the same at all times.
    origin: [2 L + 1, 3], the states that come before state s: s, s - 1 and s - 2.
    open:   [n, 2 L + 1, 3], whether s can follow each of them: a blank between two different labels may be skipped.
    live:   [time, n, 1], the times that count.
    final:  [n, 2 L + 1], the states in which a path may end.
    start:  [n, 2 L + 1], 0 for state 0, in which every path begins, else -inf.

    Only the shape and dtype of log_probs matter.
    """
    time, batch, classes = log_probs.shape
    if label.shape[0] != batch:
        raise ExecutionError(f"there are {label.shape[0]} labels for {batch} sequences", "shape_mismatch")
    counts_within(xp, input_lengths, batch, time, "input_lengths")
    counts = counts_within(xp, label_lengths, batch, label.shape[1], "label_lengths")[:, None]
    if not blank < classes:
        raise ExecutionError(f"the blank {blank} is not one of {classes} classes", "index_out_of_range")
    there = xp.arange(label.shape[1])[None, :] < counts
    wrong = there & ((label < 0) | (label >= classes) | (label == blank))
    if label.size and bool(wrong.any()):
        found = int(label[wrong].ravel()[0])
        raise ExecutionError(
            f"labels must be from 0 to {classes - 1} and not the blank {blank}, not {found}", "index_out_of_range"
        )
    size = 2 * label.shape[1] + 1
    states = xp.full((batch, size), blank, dtype="int64")
    states[:, 1::2] = xp.where(there, label, blank)
    numbers = xp.arange(size)
    origin = xp.maximum(numbers[:, None] - xp.arange(3)[None, :], 0).astype("int64")
    open = xp.ones((batch, size, 3), bool)
    open[:, :1, 1] = False
    open[:, :, 2] = (numbers % 2 == 1) & (numbers > 1)
    open[:, 2:, 2] &= states[:, 2:] != states[:, :-2]
    live = (xp.arange(time)[:, None] < input_lengths[None, :])[:, :, None]
    final = (numbers[None, :] == 2 * counts) | (numbers[None, :] == 2 * counts - 1)
    start = xp.full((batch, size), -np.inf, dtype=log_probs.dtype)
    start[:, 0] = 0
    return xp.broadcast_to(states, (time, batch, size)), origin, open, live, final, start


@ctc_lattice.infer
def ctc_lattice_infer(label, input_lengths, label_lengths, log_probs, *, blank):
    check_index(label, "label")
    if not log_probs.is_float or log_probs.rank != 3 or label.rank != 2:
        wanted = "log-probabilities [time, n, classes] and labels [n, L]"
        raise ProgramError(f"ctc_loss takes {wanted}, not {log_probs} and {label}", "shape_mismatch")
    time, batch, classes = log_probs.shape
    if label.shape[0] != batch and -1 not in (label.shape[0], batch):
        raise ProgramError(f"label must have one row for each of {batch} sequences, not {label}", "shape_mismatch")
    check_counts(input_lengths, batch, "input_lengths")
    check_counts(label_lengths, batch, "label_lengths")
    if -1 < classes <= blank:
        raise ProgramError(f"the blank {blank} is not one of {classes} classes", "bad_attr")
    size = -1 if label.shape[1] == -1 else 2 * label.shape[1] + 1
    return (
        TensorType((time, batch, size), "int64"),
        TensorType((size, 3), "int64"),
        TensorType((batch, size, 3), "bool"),
        TensorType((time, batch, 1), "bool"),
        TensorType((batch, size), "bool"),
        TensorType((batch, size), log_probs.dtype),
    )


def _lattice():
    closed, open = [True, False, False], [True, True, False]
    yield Example(
        (np.array([[1]]), np.array([2]), np.array([1]), np.zeros((2, 1, 2))),
        (
            np.array([[[0, 1, 0]]] * 2),
            np.array([[0, 0, 0], [1, 0, 0], [2, 1, 0]]),
            np.array([[closed, open, open]]),
            np.ones((2, 1, 1), bool),
            np.array([[False, True, True]]),
            np.array([[0.0, -np.inf, -np.inf]]),
        ),
    )


ctc_lattice.example(_lattice)


@composite(outputs=("loss",))
def ctc_loss(
    log_probs,
    label,
    input_lengths,
    label_lengths,
    *,
    blank: Size = 0,
    zero_infinity: bool = False,
    reduction: Reduction = "mean",
):
    """``-log P(label)``: the loss of labels whose times are unknown.

    P(label) is the probability that the label remains after one class is drawn at each time, repeated classes are
    merged and blanks are removed.

    log_probs:     [time, n, classes], logarithms of probabilities, for example from `log_softmax`.
    label:         [n, L], int32 or int64; elements after the length of a label are not read.
    input_lengths: [n], the number of times of each sequence. label_lengths: [n], the length of each label.
    reduction:     "mean" divides each loss by the length of its label (at least 1) before it takes the mean.

    If a label needs more time than its sequence has, its loss is inf, or 0 with `zero_infinity`, and its gradient is 0.
    The gradient treats all elements of log_probs as independent: it is minus the probability that a path of the label
    passes there. PyTorch's adds the probability ``exp(log_probs)`` of each element within its sequence, and is NaN for
    an infinite loss. The gradients by the operand of a `log_softmax` are equal, because the difference cancels there.
    """
    lattice = ctc_lattice(label, input_lengths, label_lengths, log_probs, blank=blank)
    states, origin, open, live, final, start = lattice

    def step(before, fixed, now):
        origin, open = fixed
        emitted, live = now
        ways = masked(open, gather(before, origin, axis=1))
        return where(live, emitted + logsumexp(ways, axes=(2,)), before)

    emitted = take_along_axis(log_probs, states, axis=2)
    last = over_steps(step, start, (origin, open), (emitted, live))
    loss = -logsumexp(masked(final, last), axes=(1,))
    if zero_infinity:
        loss = where(isinf(loss), fill_zeros_like(loss), loss)
    if reduction == "mean":
        loss = loss / clip(cast(label_lengths, dtype=loss.dtype), min=1.0)
    return reduced(loss, reduction)


def _collapsed(path, blank):
    return tuple(k for k, _ in itertools.groupby(path) if k != blank)


def _ctc(log_probs, labels, times, sizes, blank=0):
    """The loss by enumeration of all paths, for examples."""
    out = []
    for i, (t, n) in enumerate(zip(times, sizes, strict=True)):
        paths = itertools.product(range(log_probs.shape[2]), repeat=int(t))
        wanted = tuple(labels[i, :n])
        chances = [
            np.exp(sum(log_probs[s, i, k] for s, k in enumerate(p))) for p in paths if _collapsed(p, blank) == wanted
        ]
        out.append(-np.log(sum(chances)) if chances else np.inf)
    return np.array(out)


def _ctc_examples():
    scores = np.sin(np.arange(24.0) * 5).reshape(4, 2, 3)
    x = scores - np.log(np.exp(scores).sum(2, keepdims=True))
    labels, times, sizes = np.array([[1, 2], [2, -7]]), np.array([4, 3]), np.array([2, 1])
    each = _ctc(x, labels, times, sizes)
    yield Example((x, labels, times, sizes), ((each / sizes).mean(),))
    twice, full = np.array([[2, 2], [1, 2]]), np.array([4, 4])
    yield Example((x, twice, full, np.array([2, 2])), (_ctc(x, twice, full, (2, 2)),), {"reduction": "none"})
    last = np.array([[0, 1, 0]])
    yield Example(
        (x[:, :1], last, full[:1], np.array([3])),
        (_ctc(x[:, :1], last, full[:1], (3,), 2).sum(),),
        {"reduction": "sum", "blank": 2},
    )
    short = (x[:1, :1], np.array([[1, 2]]), np.array([1]), np.array([2]))
    yield Example(short, (np.array([np.inf]),), {"reduction": "none"}, smooth=False)
    yield Example(short, (np.array(0.0),), {"zero_infinity": True})
    empty = (x[:2, :, :2], labels[:, :0], np.array([2, 1]), np.array([0, 0]))
    yield Example(empty, (-np.array([x[0, 0, 0] + x[1, 0, 0], x[0, 1, 0]]),), {"reduction": "none"})
    yield Example((x[:, :0], labels[:0], times[:0], sizes[:0]), (np.array(0.0),))


ctc_loss.example(_ctc_examples)
