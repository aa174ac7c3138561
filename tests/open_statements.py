"""The statements of random programs on batches of sequences, whose number and length are open."""

from __future__ import annotations

from core.ir.builder import Value
from tests.open_blocks import Statement, States, branched, called, looped

__all__ = ["CLASSES", "STATEMENTS", "WORDS"]

WORDS, CLASSES = 9, 5


def dense(p: States) -> Value:
    return p.dense(p.one()) + p.given(p.width)


def flattened(p: States) -> Value:
    x = p.one()
    flat = p.emit("reshape", x, shape=(-1, p.width))
    if p.draw.random() < 0.5:
        flat = p.emit("softmax", flat, axis=p.draw.choice((0, 1)))
    flat = p.emit("matmul", flat, p.given(p.width, p.width))
    return p.emit("reshape_as", flat, x)


def attended(p: States) -> Value:
    q, k = p.one(), p.one()
    scores = p.emit("matmul", q, k, transpose_y=True)
    if p.draw.random() < 0.5:
        flag = p.emit("unsqueeze", p.mask, axes=(1,))
        scores = p.emit("where", flag, scores, p.emit("full_like", scores, value=-50.0))
    shares = p.emit("softmax", scores)
    if p.draw.random() < 0.4:
        shares = p.emit("dropout", shares, p.key, p=0.3)
    return p.emit("matmul", shares, k)


def attention(p: States) -> Value:
    return p.emit("scaled_dot_product_attention", p.one(), p.one(), p.one(), causal=p.draw.random() < 0.5)


def embedded(p: States) -> Value:
    sparse = p.depth == 0 and p.draw.random() < 0.4
    return p.one() + p.emit("embedding", p.given(WORDS, p.width), p.words, is_sparse=sparse)


def bag(p: States) -> Value:
    """How often each word comes, as a row for each step."""
    table = p.given(WORDS, p.width)
    found = p.emit("one_hot", p.words, depth=WORDS, dtype=p.dtype)
    share = p.emit("softmax", p.emit("matmul", p.one(), table, transpose_y=True))
    return p.emit("matmul", share * found, table)


def dropped(p: States) -> Value:
    how = p.draw.randrange(3)
    if how == 0:
        return p.emit("dropout", p.one(), p.key, p=0.5, seed=p.draw.randrange(9))
    x = p.one()
    noise = p.emit(("gaussian_random_like", "uniform_random_like")[how - 1], x, p.key, seed=p.draw.randrange(9))
    return x + noise * 0.3


def statistics(p: States) -> Value:
    x, axes = p.one(), p.draw.choice(((0,), (1,), (0, 1), (0, 1, 2), (2,)))
    how = p.draw.choice(("reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "logsumexp", "var"))
    made = p.emit(how, x, axes=axes, keepdims=True)
    return x * p.emit("tanh", made)


def normed(p: States) -> Value:
    how = p.draw.randrange(3)
    if how == 0:
        return p.emit("layer_norm", p.one(), p.given(p.width), p.given(p.width), begin_norm_axis=2)
    if how == 1:
        return p.emit("rms_norm", p.one(), p.given(p.width))
    x = p.emit("transpose", p.one(), axes=(0, 2, 1))
    states = [p.given(p.width, role="state", scale=0.1), p.given(p.width, role="state", scale=0.1)]
    y, *_ = p.emit("batch_norm", x, p.given(p.width), p.given(p.width), *states)
    return p.emit("transpose", y, axes=(0, 2, 1))


def running(p: States) -> Value:
    x, axis = p.one(), p.draw.choice((0, 1, 2))
    how = p.draw.choice(("cumsum", "cummax", "cumprod", "logcumsumexp", "flip", "shift"))
    if how == "flip":
        return p.emit("flip", x, axes=(axis,))
    if how == "shift":
        return x - p.emit("roll", x, shifts=(1,), axes=(axis,))
    made = p.emit(how, p.emit("tanh", x), axis=axis)
    return made[0] if isinstance(made, tuple) else made


def ordered(p: States) -> Value:
    x = p.one()
    how, axis = p.draw.randrange(3), p.draw.choice((0, 1, 2))
    if how == 0:
        return p.emit("sort", x, axis=axis)[0]
    if how == 1:
        best = p.emit("argmax", x, axis=axis, keepdims=True)
        return x * p.emit("cast", best, dtype=p.dtype) * 0.1
    return p.emit("take_along_axis", x, p.emit("argsort", p.one(), axis=axis), axis=axis)


def sequences(p: States) -> Value:
    """Rows of the batch that belong together."""
    how, x = p.draw.randrange(3), p.one()
    if how == 0:
        return p.emit("sequence_softmax", x, p.lengths)
    if how == 1:
        return p.emit("sequence_reverse", x, p.lengths)
    kind = p.draw.choice(("sum", "mean", "max", "first", "last"))
    return x * p.emit("reduce_mean", p.emit("sequence_pool", x, p.lengths, pool_type=kind), axes=(0,), keepdims=True)


def gathered(p: States) -> Value:
    """Rows that feeds number, or that data choose."""
    x, how = p.one(), p.draw.randrange(3)
    if how == 0:
        at = p.emit("mod", p.words, p.emit("full_like", p.words, value=1))
        return x + p.emit("take_along_axis", x, p.emit("unsqueeze", at, axes=(2,)), axis=1)
    if how == 1:
        flat = p.emit("reshape", x, shape=(-1, p.width))
        ids = p.emit("reshape", p.words, shape=(-1,))
        sums = p.emit(p.draw.choice(("segment_sum", "segment_max")), flat, ids, p.given(WORDS, p.width))
        return x * p.emit("embedding", p.emit("tanh", sums), p.words)
    chosen = p.emit("masked_select", x, p.emit("expand_as", p.emit("unsqueeze", p.mask, axes=(2,)), x))
    return x + p.emit("reduce_sum", p.emit("square", chosen)) * 0.01


def joined(p: States) -> Value:
    axis = p.draw.choice((0, 1, 2))
    parts = [p.one(), p.one()]
    both = p.emit("concat", *parts, axis=axis)
    if axis == 2:
        return p.emit("matmul", both, p.given(2 * p.width, p.width))
    return p.one() * p.emit("reduce_mean", both, axes=(axis,), keepdims=True)


def recurrent(p: States) -> Value:
    x = p.emit("transpose", p.one(), axes=(1, 0, 2))
    h = (
        p.emit("reduce_mean", p.one(), axes=(1,))
        if p.draw.random() < 0.3
        else p.emit("tanh", p.emit("reduce_sum", p.x, axes=(1,)))
    )
    out, _ = p.emit(
        "gru",
        x,
        h,
        p.given(3 * p.width, p.width),
        p.given(3 * p.width, p.width),
        None,
        None,
        reverse=p.draw.random() < 0.4,
    )
    return p.emit("transpose", out, axes=(1, 0, 2))


def convolved(p: States) -> Value:
    x = p.emit("transpose", p.one(), axes=(0, 2, 1))
    apart, filter = p.draw.choice((1, 2)), p.given(p.width, p.width, 3, scale=0.3)
    y = p.emit("conv1d", x, filter, None, padding="explicit", paddings=(apart,), dilations=(apart,))
    return p.emit("transpose", y, axes=(0, 2, 1))


def strided(p: States) -> Value:
    """Windows that are fewer than the steps."""
    x = p.emit("transpose", p.one(), axes=(0, 2, 1))
    filter = p.given(p.width, p.width, 3, scale=0.3)
    y = p.emit("conv1d", x, filter, None, padding="explicit", paddings=(1,), strides=(p.draw.choice((2, 3)),))
    return p.one() * p.emit("tanh", p.emit("unsqueeze", p.emit("reduce_sum", y, axes=(1, 2)), axes=(1, 2)))


def pooled(p: States) -> Value:
    x = p.emit("transpose", p.one(), axes=(0, 2, 1))
    how, around = p.draw.choice(("max_pool1d", "avg_pool1d")), {"strides": (1,), "paddings": (1,)}
    y = p.emit(how, x, kernel_size=(3,), **around)
    return p.emit("transpose", y[0] if isinstance(y, tuple) else y, axes=(0, 2, 1))


def compared(p: States) -> Value:
    x, y = p.one(), p.one()
    return p.emit("where", p.emit("greater_than", x, y), x * y, p.emit("sin", y))


def masked(p: States) -> Value:
    flag = p.emit("unsqueeze", p.mask, axes=(2,))
    return p.emit("where", flag, p.one(), p.one() * p.given())


def spread(p: States) -> Value:
    return p.one() * p.other


def by_mean(p: States, made: Value, axes: tuple[int, ...]) -> Value:
    """A state times a value of few elements, that is the mean of `made` over `axes`."""
    return p.one() * p.emit("tanh", p.emit("reduce_mean", made, axes=axes, keepdims=True))


def sliced(p: States) -> Value:
    """Rows of a state from its first or a later one on: a product or a sum reads them, and others read all rows."""
    x, axis, how = p.one(), p.draw.choice((0, 0, 0, 1, 2)), p.draw.randrange(4)
    given = p.emit("reshape", x, shape=(-1, p.width)) if axis == 0 and p.draw.random() < 0.5 else x
    if how == 0:
        end = p.emit("reduce_max", p.lengths, axes=(0,), keepdims=True)
        first, step = (p.emit("full_like", end, value=n) for n in (p.draw.choice((0, 0, 1)), 1))
        shape = tuple(-1 if i == axis else n for i, n in enumerate(given.shape))
        part = p.emit("dynamic_slice", given, first, end, step, axes=(axis,), shape=shape)
    else:
        first, end = p.draw.choice(((0, 2), (0, -1), (0, -3), (0, 100), (1, 100), (-2, 100)))
        steps = (p.draw.choice((1, 1, 1, 2)),)
        part = p.emit("slice", given, axes=(axis,), starts=(first,), ends=(end,), steps=steps)
    if p.draw.random() < 0.2:
        part = p.emit("sin", part)
    if axis < 2 and p.draw.random() < 0.7:
        rows = p.emit("reshape", part, shape=(-1, p.width))
        return p.emit("matmul", x, p.emit("tanh", p.emit("matmul", rows, rows, transpose_x=True) * 0.1)) + x
    return p.one() * p.emit("tanh", p.emit("reduce_mean", part)) + x


def gram(p: States) -> Value:
    """Products that sum over all rows, or over those of each sequence."""
    x, y = p.one(), p.one()
    equation = p.draw.choice(("btd,bte->de", "btd,bte->bde", "btd,sud->de", "btd,std->bs"))
    if equation == "btd,sud->de":
        flat = [p.emit("reshape", each, shape=(-1, p.width)) for each in (x, y)]
        made = p.emit("matmul", flat[0], flat[1], transpose_x=True)
    else:
        made = p.emit("einsum", x, y, equation=equation)
    made = p.emit("tanh", made * 0.1)
    if equation == "btd,std->bs":
        return p.emit("einsum", made, y, equation="bs,std->btd") * 0.3
    return p.emit("matmul", x, made)


def image(p: States) -> Value:
    """The state as an image of one channel: convolution, windows, and the norms of its channel or channels."""
    x, how, channels = p.emit("unsqueeze", p.one(), axes=(1,)), p.draw.randrange(5), p.draw.choice((1, 2, 4))
    if channels > 1 or how == 0:
        x = p.emit("conv2d", x, p.given(channels, 1, 3, 3, scale=0.4), None, paddings=(1, 1))
    if how == 1:
        states = [p.given(channels, role="state", scale=0.1) for _ in "mv"]
        x, *_ = p.emit("batch_norm", x, p.given(channels), p.given(channels), *states)
    elif how == 2:
        x = p.emit("group_norm", x, p.given(channels), p.given(channels), groups=p.draw.choice((1, channels)))
    elif how == 3:
        x = p.emit("instance_norm", x)
    elif how == 4:
        x = p.emit("avg_pool2d", x, kernel_size=(3, 3), strides=(1, 1), paddings=(1, 1))
    return p.emit("reduce_mean", p.emit("relu", x) if p.draw.random() < 0.3 else x, axes=(1,))


def repeated(p: States) -> Value:
    """More rows than the state has, summed up again."""
    x, axis = p.one(), p.draw.choice((0, 1, 2))
    how = p.draw.randrange(3)
    if how == 0:
        made = p.emit("tile", x, repeats=tuple(3 if i == axis else 1 for i in range(3)))
    elif how == 1:
        made = p.emit("repeat", x, repeats=2, axis=axis)
    else:
        paddings = [0] * 6
        paddings[2 * axis], paddings[2 * axis + 1] = p.draw.choice(((1, 0), (0, 2), (1, 1)))
        made = p.emit("pad", x, paddings=tuple(paddings), value=p.draw.choice((0.0, 0.5)))
    return by_mean(p, p.emit("sin", made), (axis,))


def chosen(p: States) -> Value:
    """The largest elements along an axis."""
    x, axis = p.one(), p.draw.choice((0, 1, 2))
    top, *_ = p.emit("topk", x, k=1, axis=axis, largest=p.draw.random() < 0.5)
    return by_mean(p, top, (axis,))


def scattered(p: States) -> Value:
    """Rows added up in others of the batch."""
    x, y = p.one(), p.one()
    at = p.emit("argsort", p.emit("reduce_sum", p.words, axes=(1,)), axis=0)
    if p.draw.random() < 0.5:  # several rows for one
        at = p.emit("minimum", at, p.emit("full_like", at, value=0))
    return p.emit("index_add", x, at, y, axis=0)


def counted(p: States) -> Value:
    """Whole numbers and bools of the feeds, added up."""
    how = p.draw.randrange(3)
    if how == 0:
        made = p.emit("cumsum", p.words, axis=p.draw.choice((0, 1)))
    elif how == 1:
        made = p.emit("reduce_sum", p.words, axes=(p.draw.choice((0, 1)),), keepdims=True)
    else:
        made = p.emit(p.draw.choice(("reduce_all", "reduce_any")), p.mask, axes=(p.draw.choice((0, 1)),), keepdims=True)
    made = p.emit("unsqueeze", p.emit("cast", made, dtype=p.dtype), axes=(2,))
    return p.one() * p.emit("sin", made)


def solved(p: States) -> Value:
    """A system of equations for each sequence."""
    x = p.one()
    a = p.emit("matmul", x, x, transpose_x=True) * (1.0 / p.width) + p.emit("eye", num_rows=p.width, dtype=p.dtype)
    how = p.draw.randrange(3)
    if how == 0:
        return p.emit("matmul", x, p.emit("inverse", a))
    if how == 1:
        return p.emit("matmul", x, p.emit("cholesky", a)) * 0.5
    return p.emit("transpose", p.emit("solve", a, p.emit("transpose", x, axes=(0, 2, 1))), axes=(0, 2, 1))


def transformed(p: States) -> Value:
    """Each step's numbers as a spectrum."""
    made = p.emit("rfft", p.one(), axis=2)  # [batch, time, frequencies, 2]
    return by_mean(p, p.emit("reduce_sum", p.emit("square", made), axes=(3,)), (2,))


def apart(p: States) -> Value:
    """Distances between the steps of each sequence."""
    near = p.emit("exp", p.emit("neg", p.emit("cdist", p.one(), p.one()) + 0.1))
    return p.emit("matmul", near, p.one()) * 0.3


def scored(p: States) -> Value:
    """A loss for each step."""
    labels = p.emit("mod", p.words, p.emit("full_like", p.words, value=CLASSES))
    how = p.draw.choice(("none", "mean", "sum"))
    loss = p.emit("softmax_with_cross_entropy", p.dense(p.one(), CLASSES), labels, reduction=how)
    return p.one() * p.emit("tanh", p.emit("unsqueeze", loss, axes=(2,)) if how == "none" else loss)


STATEMENTS: tuple[Statement, ...] = (
    dense, flattened, attended, attention, embedded, bag, dropped, statistics, normed, running, ordered, sequences,
    gathered, joined, recurrent, convolved, strided, pooled, compared, masked, spread,
    sliced, sliced, gram, image, repeated, chosen, scattered, counted, solved, transformed, apart, scored,
    looped, looped, branched, called,
)  # fmt: skip
