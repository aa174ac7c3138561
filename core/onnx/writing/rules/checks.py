"""Checks of the run, losses' labels and metrics."""

from __future__ import annotations

from core.onnx.writing.registry import writes
from core.onnx.writing.rules.indexing import count_below, ordered


def _inside(w, x, end):
    zero = w.const(0, x.dtype)
    return w.node("And", w.node("GreaterOrEqual", x, zero), w.node("Less", x, w.cast(w.scalar(end), x.dtype)))


@writes("assert")
def assert_(w, x, condition):
    return w.guarded(x, condition)


@writes("check_finite")
def check_finite(w, x):
    if not x.is_float:
        return x
    return w.guarded(x, w.node("Not", w.node("Or", w.node("IsNaN", x), w.node("IsInf", x))))


@writes("unscale")
def unscale(w, scale, *x):
    """The quotients, and whether an element of x is not finite."""
    one = w.reshape(scale, [])
    outs, bad = [], None
    for v in x:
        wide = "float64" if "float64" in (v.dtype, one.dtype) else "float32"
        quotient = w.cast(w.div(w.cast(v, wide), w.cast(one, wide)), v.dtype)
        outs.append(quotient)
        wrong = w.node("Or", w.node("IsNaN", v), w.node("IsInf", v))
        count = w.reduce("ReduceSum", w.flat(w.cast(wrong, "int64")), None, False)
        bad = count if bad is None else w.add(bad, count)
    assert bad is not None
    return (*outs, w.node("Greater", bad, w.const(0, "int64")))


@writes("clip_by_global_norm")
def clip_by_global_norm(w, *x, max_norm):
    wide = [w.cast(v, "float64") for v in x]
    total = None
    for v in wide:
        each = w.reduce("ReduceSum", w.flat(w.mul(v, v)), None, False)
        total = each if total is None else w.add(total, each)
    norm = w.node("Sqrt", total)
    limit = w.number(max_norm, norm)
    finite = w.node("Not", w.node("Or", w.node("IsNaN", norm), w.node("IsInf", norm)))
    factor = w.where(finite, w.div(limit, w.node("Max", norm, limit)), w.number(1, norm))
    factor = type(factor)(factor.name, factor.dtype, ())
    return tuple(w.where(finite, w.cast(w.mul(each, factor), v.dtype), v) for v, each in zip(x, wide, strict=True))


@writes("class_index")
def class_index(w, label, x, *, axis, ignore_index):
    at = axis % x.rank
    column = label if label.rank == x.rank else w.unsqueeze(label, [at])
    counted = w.node("Not", w.node("Equal", column, w.number(ignore_index, column)))
    kept = w.where(counted, column, w.number(0, column))
    return w.guarded(kept, _inside(w, kept, w.size(x, at))), counted


@writes("label_rows")
def label_rows(w, label, weight):
    flat = w.cast(w.flat(label), "int64")
    return w.guarded(flat, _inside(w, flat, w.size(weight, 0)))


@writes("tree_path")
def tree_path(w, label, *, num_classes):
    """Divisions by powers of 2, one for each level of the tree."""
    depth = w.types[0].shape[-1]
    flat = w.cast(w.flat(label), "int64")
    flat = w.guarded(flat, _inside(w, flat, num_classes))
    c = w.unsqueeze(w.add(flat, w.const(num_classes, "int64")), [1])
    node = w.div(c, w.ints(2 ** (i + 1) for i in range(depth)))
    bit = w.node("Mod", w.div(c, w.ints(2**i for i in range(depth))), w.const(2, "int64"))
    there = w.node("Greater", node, w.const(0, "int64"))
    one = w.const(1, "int64")
    return w.where(there, w.sub(node, one), w.const(-1, "int64")), w.where(there, bit, w.const(0, "int64"))


@writes("accuracy")
def accuracy(w, x, label, *, k):
    """The share of rows whose label is among the first k positions in descending order."""
    best = w.slice_axis(ordered(w, x, 1, True)[1], 1, 0, k)
    right = w.node("Equal", best, w.cast(w.reshape(label, [w.size(x, 0), 1]), "int64"))
    any_ = w.reduce("ReduceMax", w.cast(right, "int32"), [1], False)
    kind = "float64" if x.dtype == "float64" else "float32"
    total = w.reduce("ReduceSum", w.cast(any_, kind), None, False)
    count = w.cast(w.scalar(w.arith("Max", w.size(x, 0), 1)), kind)
    return w.cast(w.div(total, count), x.dtype)


@writes("auc")
def auc(w, x, label):
    """The share of pairs of a positive and a negative row that are in order; a tie counts half."""
    score = x if x.rank == 1 else w.gather(x, w.const(1, "int64"), 1)
    label = w.flat(label)
    positive = w.node("Not", w.node("Equal", label, w.number(0, label)))
    up = w.node("Compress", score, positive, axis=0, shape=(-1,))
    down = w.node("Compress", score, w.node("Not", positive), axis=0, shape=(-1,))
    wins = w.add(count_below(w, down, up, False), count_below(w, down, up, True))
    kind = "float64" if x.dtype == "float64" else "float32"
    total = w.cast(w.reduce("ReduceSum", wins, [0], False), kind)
    pairs = w.cast(w.scalar(w.arith("Mul", w.size(up, 0), w.size(down, 0))), kind)
    none = w.node("Equal", pairs, w.number(0, pairs))
    share = w.div(total, w.mul(w.number(2, pairs), w.where(none, w.number(1, pairs), pairs)))
    return w.cast(w.where(none, w.number(0, pairs), share), x.dtype)
