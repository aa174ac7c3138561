"""Losses over very many classes that evaluate only some of them."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np

from core.ir import TensorType
from core.ir.bounds import Bounds
from core.ir.errors import ExecutionError, ProgramError
from core.ir.precision import HALVES
from core.ir.registry import Example, composite, op
from core.ops.common.ranges import Count
from core.ops.elementwise.arithmetic import cast
from core.ops.elementwise.logic import greater_equal, where
from core.ops.elementwise.math import clip, exp, log, log1p, softplus
from core.ops.elementwise.rounding import floor
from core.ops.indexing.gather import check_index, gather
from core.ops.linalg.matmul import matmul
from core.ops.nn.softmax_loss import logistic
from core.ops.reduction.sums import reduce_sum
from core.ops.shape.agreeing import agreed, shaped
from core.ops.shape.creation import fill_zeros_like
from core.ops.shape.reshape import unsqueeze

__all__: list[str] = []

Classes = Annotated[int, Bounds(ge=2, le=2**40)]


@op(outputs=("table", "code"), no_gradient="its results depend on integers only")
def tree_path(xp, label, *, num_classes: Classes):
    """Path from the root of a complete binary tree to each class: inner nodes (-1 beyond the leaf) and branch bits.

    With c = label + num_classes, node i of the path is ``(c >> (i + 1)) - 1``, and its branch bit is bit i of c. Both
    results are int64 [n, depth]. The root is the last node.
    """
    if label.ndim == 2 and label.shape[1] != 1:
        raise ExecutionError(f"labels must be [n] or [n, 1], not {list(label.shape)}", "shape_mismatch")
    flat = label.reshape(-1)
    if flat.size and bool(((flat < 0) | (flat >= num_classes)).any()):
        raise ExecutionError(f"a label is outside 0 to {num_classes - 1}", "index_out_of_range")
    bits = xp.arange(_depth(num_classes))[None, :]
    c = (flat.astype("int64") + num_classes)[:, None]
    node = c >> (bits + 1)
    return xp.where(node > 0, node - 1, -1), xp.where(node > 0, (c >> bits) & 1, 0)


def _depth(num_classes: int) -> int:
    return (2 * num_classes - 1).bit_length() - 1


@tree_path.infer
def tree_path_infer(label, *, num_classes):
    check_index(label, "label")
    rows = _rows(label, label.shape[0] if label.rank else -1)
    return (TensorType((rows, _depth(num_classes)), "int64"),) * 2


def _rows(label: TensorType, batch: int) -> int:
    """The number of rows. Raises ProgramError (shape_mismatch) if the labels are not [n] or [n, 1]."""
    if label.rank not in (1, 2) or (label.rank == 2 and label.shape[1] not in (1, -1)):
        raise ProgramError(f"labels must be [n] or [n, 1], not {label}", "shape_mismatch")
    if label.shape[0] != batch and -1 not in (label.shape[0], batch):
        raise ProgramError(f"labels {label} do not match {batch} rows", "shape_mismatch")
    return label.shape[0]


tree_path.example(
    lambda: [
        Example(
            (np.array([0, 2, 4]),),
            (np.array([[1, 0, -1], [2, 0, -1], [3, 1, 0]]), np.array([[1, 0, 0], [1, 1, 0], [1, 0, 0]])),
            {"num_classes": 5},
        ),
        Example((np.array([[1]]),), (np.array([[0]]), np.array([[1]])), {"num_classes": 2}),
    ]
)


def _checked_rows(x, label, weight, what: str):
    """The operands, with one row of x for each label. Raises ProgramError (shape_mismatch), or the run does."""
    if x.rank != 2 or weight.rank != 2 or not x.type.is_float:
        wanted = "x [n, size] and weight [rows, size]"
        raise ProgramError(f"{what} takes {wanted}, not {x.type} and {weight.type}", "shape_mismatch")
    _rows(label.type, x.shape[0])
    x, label = agreed(x, label, (0, 0))
    x, weight = agreed(x, weight, (1, 1))
    return x, label if label.rank == 1 else shaped(label, (-1, 1)), weight


def _like_label(loss, label):
    return unsqueeze(loss, axes=(1,)) if label.rank == 2 else loss


@composite(outputs=("loss",))
def hierarchical_sigmoid(x, label, weight, bias=None, path_table=None, path_code=None, *, num_classes: Classes = 2):
    """Hierarchical sigmoid loss (Morin and Bengio 2005): cross-entropy of the branch bits on the tree path to the
    label.

    x is [n, size], label [n] or [n, 1], weight [num_classes - 1, size] and bias [num_classes - 1]. The loss has the
    shape of the label. A node with branch bit c contributes the cross-entropy of ``sigmoid(weight[node] @ x +
    bias[node])`` and c.
    The tree is that of `tree_path`, or a custom one: path_table [n, depth] lists the nodes of each row, -1 for none,
    and path_code [n, depth] the branch bits. With a custom tree, weight has one row per node, and label gives only its
    shape.
    """
    x, label, weight = _checked_rows(x, label, weight, "hierarchical_sigmoid")
    if (path_table is None) != (path_code is None):
        raise ProgramError("give both path_table and path_code, or neither", "bad_slot")
    if path_table is None:
        if weight.shape[0] not in (num_classes - 1, -1):
            raise ProgramError(
                f"{num_classes} classes need a weight with {num_classes - 1} rows, not {weight.type}", "shape_mismatch"
            )
        weight = shaped(weight, (num_classes - 1, -1))
        path_table, path_code = tree_path(label, num_classes=num_classes)
    check_index(path_table.type, "path_table")
    if path_table.rank != 2 or path_code.rank != 2:
        raise ProgramError(
            f"path_table and path_code must be [n, depth], not {path_table.type} and {path_code.type}", "shape_mismatch"
        )
    path_table, label = agreed(path_table, label, (0, 0))
    path_code, path_table = agreed(path_code, path_table, (0, 0), (1, 1))
    on_path = greater_equal(path_table, fill_zeros_like(path_table))
    nodes = where(on_path, path_table, fill_zeros_like(path_table))
    rows = gather(weight, nodes) * unsqueeze(x, axes=(1,))
    score = reduce_sum(rows, axes=(2,))
    if bias is not None:
        score = score + gather(bias, nodes)
    each = logistic(score, cast(path_code, dtype=x.dtype))
    return _like_label(reduce_sum(where(on_path, each, fill_zeros_like(each)), axes=(1,)), label)


def _hsigmoid(x, label, weight, bias=None):
    out = []
    for row, k in zip(x, label.ravel(), strict=True):
        c, total = int(k) + len(weight) + 1, 0.0
        while c > 1:
            node = c // 2 - 1
            score = weight[node] @ row + (0 if bias is None else bias[node])
            total += np.log1p(np.exp(score)) - score * (c % 2)
            c //= 2
        out.append(total)
    return np.array(out).reshape(label.shape)


_X = np.sin(np.arange(6.0) * 2).reshape(3, 2)
_W = np.cos(np.arange(8.0) * 3).reshape(4, 2)
_B = np.array([0.3, -0.2, 0.5, 0.1])
_L = np.array([0, 2, 4])


def _tree_examples():
    yield Example((_X, _L, _W, _B), (_hsigmoid(_X, _L, _W, _B),), {"num_classes": 5})
    yield Example((_X, _L[:, None] // 2, _W[:2]), (_hsigmoid(_X, _L[:, None] // 2, _W[:2]),), {"num_classes": 3})
    table, code = np.array([[3, -1], [0, 2], [1, 1]]), np.array([[1, 0], [0, 1], [1, 1]])
    scores = (_W[table] * _X[:, None]).sum(2)
    each = (np.log1p(np.exp(scores)) - scores * code) * (table >= 0)
    yield Example((_X, _L, _W, np.zeros(4), table, code), (each.sum(1),))
    yield Example((_X[:0], _L[:0], _W), (np.zeros(0),), {"num_classes": 5})


hierarchical_sigmoid.example(_tree_examples)


# --- sampled classes -------------------------------------------------------------------------------------------


@op(no_gradient="its result is an integer")
def label_rows(xp, label, weight):
    """Labels [n] or [n, 1] as int64 row numbers [n] of `weight` [classes, ...].

    A label outside the rows is an error of the run (index_out_of_range).
    """
    flat = label.reshape(label.shape[0]).astype("int64")
    if flat.size and bool(((flat < 0) | (flat >= weight.shape[0])).any()):
        raise ExecutionError(f"a label is outside 0 to {weight.shape[0] - 1}", "index_out_of_range")
    return flat


@label_rows.infer
def label_rows_infer(label, weight):
    check_index(label, "label")
    if weight.rank == 0:
        raise ProgramError(f"weight must have at least one axis, not {weight}", "shape_mismatch")
    return TensorType((_rows(label, -1),), "int64")


label_rows.example(
    lambda: [
        Example((np.array([[2], [0]]), np.zeros((3, 2))), (np.array([2, 0]),)),
        Example((np.array([1]), np.zeros(3)), (np.array([1]),)),
    ]
)


Sampler = Literal["uniform", "log_uniform"]


@composite(outputs=("loss",))
def nce(
    x,
    label,
    weight,
    bias=None,
    samples=None,
    key=None,
    *,
    num_neg_samples: Count = 10,
    sampler: Sampler = "uniform",
    seed: int = 0,
    stream: int = 0,
):
    """Noise-contrastive estimation (Gutmann and Hyvarinen 2010; Mnih and Teh 2012): the label against randomly drawn
    classes.

    x is [n, size], label [n] or [n, 1], weight [classes, size] and bias [classes]. The loss has the shape of the label.
    With ``s(k) = weight[k] @ x + bias[k] - log(m * chance of k)`` for m samples the loss is ``-log(sigmoid(s(label))) -
    sum(log(1 - sigmoid(s(k))) for k in samples)``.
    The whole batch shares the samples. They are drawn with replacement and may include the label.

    - `sampler`: `uniform`, or `log_uniform`: class k has probability ``log((k + 2) / (k + 1)) / log(classes + 1)``,
      which suits classes sorted by decreasing frequency.
    - `samples`: int32 or int64 [m], drawn by the client from the distribution of `sampler`.
    """
    x, label, weight = _checked_rows(x, label, weight, "nce")
    classes = weight.shape[0]
    if classes < 1:
        raise ProgramError(f"the number of classes in {weight.type} must be known", "shape_mismatch")
    if samples is None:
        samples = _draw_classes(x.builder, key, num_neg_samples, classes, sampler, seed, stream)
    elif samples.rank != 1 or samples.shape[0] == -1:
        raise ProgramError(f"samples must be [m] of known size, not {samples.type}", "shape_mismatch")
    sample_count = samples.shape[0]
    if sample_count < 1:
        raise ProgramError("nce needs at least one sample", "bad_attr")

    def corrected(score, k):
        score = score if bias is None else score + gather(bias, k)
        if sampler == "uniform":
            return score - math.log(sample_count / classes)
        number = cast(k, dtype="float32" if x.dtype in HALVES else x.dtype)  # float16 ends at 65504
        chance = log(log1p(1.0 / (number + 1.0)))
        return score - cast(chance, dtype=x.dtype) - math.log(sample_count / math.log(classes + 1))

    rows, drawn = label_rows(label, weight), label_rows(samples, weight)
    true = reduce_sum(x * gather(weight, rows), axes=(1,))
    noise = matmul(x, gather(weight, drawn), transpose_y=True)
    noise_loss = reduce_sum(softplus(corrected(noise, drawn)), axes=(1,))
    return _like_label(softplus(-corrected(true, rows)) + noise_loss, label)


def _draw_classes(builder, key, count: int, classes: int, sampler: Sampler, seed: int, stream: int):
    options = {"min": 0.0, "max": 1.0, "dtype": "float64", "seed": seed, "stream": stream}
    chance = builder.emit("uniform_random", key, shape=(count,), **options)
    if sampler == "log_uniform":
        chance = (exp(chance * math.log(classes + 1)) - 1.0) / classes
    found = clip(floor(chance * classes), min=0.0, max=classes - 1.0)
    return cast(found, dtype="int64")


def _nce(x, label, weight, bias, samples, chance):
    def score(row, k):
        return weight[k] @ row + bias[k] - np.log(len(samples) * chance[k])

    def bce(s, t):
        return np.log1p(np.exp(s)) - t * s

    rows = zip(x, label.ravel(), strict=True)
    losses = [bce(score(row, k), 1) + sum(bce(score(row, j), 0) for j in samples) for row, k in rows]
    return np.array(losses).reshape(label.shape)


def _nce_examples():
    even, steep = np.full(4, 0.25), np.log(np.arange(2, 6) / np.arange(1, 5)) / np.log(5)
    label, drawn = np.array([0, 2, 3]), np.array([1, 1, 2])
    yield Example((_X, label, _W, _B, drawn), (_nce(_X, label, _W, _B, drawn, even),))
    column = label[:1, None]
    yield Example(
        (_X[:1], column, _W, _B, drawn[:1]),
        (_nce(_X[:1], column, _W, _B, drawn[:1], steep),),
        {"sampler": "log_uniform"},
    )
    yield Example((_X[:0], label[:0], _W, _B, drawn), (np.zeros(0),))


nce.example(_nce_examples)
