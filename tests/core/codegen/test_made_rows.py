"""A merge computes the rows that it adds up, where only it reads them: equal results, and no such rows in memory."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen import backend, parallel
from core.codegen.backend import CPU
from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder, Value
from core.plan.instructions import Rows
from core.runtime.native import native_interpreter
from tests.laws.agreement import both
from tests.walls import before_a_wall


@pytest.fixture(params=[1, 3], ids=["1 thread", "3 threads"], autouse=True)
def _threads(request, monkeypatch):
    monkeypatch.setattr(parallel, "LONG_PRODUCT", 1)
    monkeypatch.setattr(backend, "thread_count", lambda: request.param)


class Model:
    """An update of the rows of a table [size, width] that ids of shape `ids` look up, with the arrays of its block."""

    def __init__(self, ids: tuple[int, ...], size: int, width: int, dtype: str = "float32") -> None:
        self.b, self.dtype, self.width, self.size = BlockBuilder(), dtype, width, size
        self.r = np.random.default_rng(width + size)
        self.arrays: list[np.ndarray] = []
        self.table = self.given((size, width))
        self.ids = self.given(ids, "int64", -size, size)
        self.shape = (*ids, width)
        self.looked_up = self.b.emit("gather", self.table, self.ids, axis=0)

    def given(self, shape: tuple[int, ...], dtype: str = "", low: int = -8, high: int = 8) -> Value:
        """A parameter of small integers, which end where memory ends."""
        dtype = dtype or self.dtype
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        array = before_a_wall(nbytes)[-nbytes:].view(dtype).reshape(shape)
        array[...] = self.r.integers(low, high, shape)
        self.arrays.append(array)
        return self.b.param(TensorType(shape, dtype))

    def emit(self, op: str, *args: Value, **attrs: object) -> Value:
        found = self.b.emit(op, *args, **attrs)
        assert isinstance(found, Value)
        return found

    def merged(self, gradient: Value, ids: Value, *kept: Value, padding: int | None = None) -> tuple[Value, ...]:
        """The rows of the table that are looked up, the sums of their gradients, and how many they are."""
        return self.b.emit("merge_rows_padded", gradient, ids, self.table, *kept, padding_idx=padding)

    def agree(self, gradient: Value, *more: Value, **how: Value | int | None) -> list[Rows]:
        """Run an update of the table by its gradient, with more results; its row kernels."""
        kept = [how["kept"]] if how.get("kept") is not None else []
        rows, sums, count = self.merged(gradient, self.ids, *kept, padding=how.get("padding"))
        new = self.emit("sub", self.emit("gather", self.table, rows, axis=0), self.emit("scale", sums, scale=0.5))
        return self.agree_on(rows, count, new, *more)

    def agree_on(self, *results: Value) -> list[Rows]:
        """Run the block with these results as machine code and op by op; its row kernels."""
        block = optimize(self.b.build(list(results)))
        both(block, self.arrays)
        native = native_interpreter(block, CPU)
        assert native.region is not None and not native.region.plan.interpreted
        return [each for each in native.region.plan.body.instructions if isinstance(each, Rows)]


def parts_of(kernels: list[Rows]) -> list[list[str]]:
    """The ops of the rows that merges compute; an empty list for rows in memory."""
    return [
        [i.op for i in rows.made.kernel.code if i.kind == "apply"] if rows.made else []
        for each in kernels
        for rows in each.kernel.merged
    ]


SHAPES = [((40,), 7, 16), ((6, 5), 1030, 17), ((20, 3), 9, 33), ((2, 3, 4), 50, 150), ((30,), 2000, 300), ((2,), 5, 4)]


@pytest.mark.parametrize(("ids", "size", "width"), SHAPES[:-1])
def test_a_gradient_that_only_a_merge_reads_is_computed_in_it(ids, size, width):
    m = Model(ids, size, width)
    each = m.emit("mul", m.given((*ids, 1)), m.emit("mul", m.looked_up, m.given((*ids[:-1], 1, width))))

    kernels = m.agree(m.emit("tanh", m.emit("add", each, m.given(()))))

    ((*ops,),) = parts_of(kernels)
    assert "tanh" in ops
    assert not any(i.kind == "store" for each in kernels[:-1] for i in each.kernel.code)


@pytest.mark.parametrize("how", ["padding", "kept", "padding and kept"])
def test_a_merge_leaves_out_padding_and_masked_ids(how):
    m = Model((6, 5), 4, 20)
    kept = m.emit("greater_than", m.given((6, 5)), m.given((6, 5))) if "kept" in how else None

    kernels = m.agree(m.emit("exp", m.looked_up), kept=kept, padding=-1 if "padding" in how else None)

    assert parts_of(kernels)[-1][-1] == "exp"


def test_ids_outside_of_the_table_fail_with_their_location():
    m = Model((30,), 9, 24)
    m.arrays[1][17] = 9

    m.agree(m.emit("exp", m.looked_up))


@pytest.mark.parametrize("op", ["neg", "exp"])
def test_cheap_work_of_a_kernel_that_has_other_results_is_done_twice(op):
    m = Model((12, 5), 40, 48)
    gradient = m.emit("mul", m.emit(op, m.looked_up), m.given((12, 5, 1)))

    kernels = m.agree(gradient, m.emit("reduce_sum", gradient, axes=(1,), keepdims=False))

    assert [("mul" in ops) for ops in parts_of(kernels)] == [op == "neg"]


def test_work_on_work_moves_too_and_lookups_leave_no_copies():
    """Two kernels apart in the program: the first keeps a product for the second, which only the merge needs."""
    m = Model((64, 6), 90, 32)
    doubled = m.emit("scale", m.looked_up, scale=2.0)
    total = m.emit("reduce_sum", m.emit("square", m.looked_up), axes=(1, 2), keepdims=False)
    weight = m.emit("expand", m.emit("unsqueeze", m.emit("tanh", total), axes=(1, 2)), shape=(64, 6, 32))

    kernels = m.agree(m.emit("mul", weight, doubled), total)

    assert parts_of(kernels)[-1][-2:] == ["scale", "mul"]
    sizes = [view.root.nbytes for each in kernels for view in each.views if view.root.place == "arena"]
    assert max(sizes) < 64 * 6 * 32 * 4


def test_rows_with_sums_along_them_are_read_from_memory():
    m = Model((40,), 9, 32)
    whole = m.emit("reduce_sum", m.looked_up, axes=(1,), keepdims=True)

    kernels = m.agree(m.emit("sub", m.looked_up, m.emit("expand", whole, shape=m.shape)))

    assert parts_of(kernels) in ([[]], [["sub"]])


def test_rows_that_the_caller_wants_are_stored():
    m = Model((40,), 9, 32)
    gradient = m.emit("exp", m.looked_up)

    assert parts_of(m.agree(gradient, gradient)) == [[]]


def test_rows_that_the_update_reads_elsewhere_are_stored():
    m = Model((12,), 40, 32)
    gradient = m.emit("exp", m.looked_up)
    rows, sums, count = m.merged(gradient, m.ids)
    new = m.emit("sub", m.emit("sub", m.emit("gather", m.table, rows, axis=0), sums), gradient)

    assert parts_of(m.agree_on(rows, count, new)) == [[]]


def test_rows_that_two_merges_add_up_are_stored():
    m = Model((12,), 40, 32)
    gradient = m.emit("exp", m.looked_up)
    rows, sums, count = m.merged(gradient, m.ids)
    _, more, _ = m.merged(gradient, m.given((12,), "int64", 0, 40))
    new = m.emit("sub", m.emit("sub", m.emit("gather", m.table, rows, axis=0), sums), more)

    assert parts_of(m.agree_on(rows, count, new)) == [[], []]


def test_a_kernel_that_computes_a_gradient_by_columns_stores_it():
    m = Model((32,), 9, 16)
    by_columns = m.emit("exp", m.given((16, 32)))

    assert parts_of(m.agree(m.emit("transpose", by_columns, axes=(1, 0)))) == [[]]


def test_drawn_rows_are_read_from_memory():
    m = Model((40,), 9, 32)
    key = m.b.param(TensorType((), "int64"))
    m.arrays.append(np.array(7, "int64"))
    gradient = m.emit("mul", m.looked_up, m.emit("uniform_random", key, shape=m.shape, dtype="float32", stream=1))

    assert parts_of(m.agree(gradient)) == [[]]


UNARY = ("neg", "square", "tanh", "abs", "sigmoid")
BINARY = ("add", "sub", "mul", "maximum", "sum")


@pytest.mark.sampled(15)
@pytest.mark.parametrize("seed", range(120))
def test_random_gradients_agree(seed):
    r = np.random.default_rng(seed)
    ids, size, width = SHAPES[int(r.integers(len(SHAPES)))]
    m = Model(ids, size, width, str(r.choice(["float32", "float64"])))
    rank = len(m.shape)
    values = [m.looked_up]
    for _ in range(int(r.integers(1, 9))):
        kind = r.integers(4)
        x = values[int(r.integers(len(values)))]
        if kind == 0:
            values.append(m.emit(str(r.choice(UNARY)), x))
        elif kind == 1:
            values.append(m.emit(str(r.choice(BINARY)), x, values[int(r.integers(len(values)))]))
        elif kind == 2:
            other = m.given(tuple(n if r.random() < 0.5 else 1 for n in m.shape))
            values.append(m.emit(str(r.choice(BINARY)), x, m.emit("expand", other, shape=m.shape)))
        else:
            axes = tuple(int(a) for a in range(rank) if r.random() < 0.5)
            less = m.emit("reduce_mean", x, axes=axes, keepdims=True)
            values.append(m.emit("mul", x, m.emit("expand", m.emit("tanh", less), shape=m.shape)))
    more = [m.emit("reduce_sum", v, axes=(0,), keepdims=False) for v in values[1:] if r.random() < 0.3]
    more += [v for v in values[1:] if r.random() < 0.1]

    m.agree(values[-1], *more, padding=None if r.random() < 0.7 else 1)
