"""Row-sparse gradients of tables equal the dense gradients to the bit, wherever the rows were looked up."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from core.analysis import analyse
from core.autodiff.hooks import Hook
from core.backward.append_backward import append_backward, gradients
from core.compiler.compile import Clip, GradientQuery, compile_gradient, compile_training
from core.ir.errors import ExecutionError, ProgramError
from core.ops.common.types import as_dtype
from core.optim.optimizers import OPTIMIZERS, Optimizer
from core.runtime.sparse_rows import RowArray
from core.wire import read, write
from tests.core.autodiff.test_hooks import EXAMPLES
from tests.programs import Sketch, check, close, identical, step, whole

R = np.random.default_rng(7)
TABLE = R.standard_normal((6, 3))
MIXED = R.standard_normal((3, 3))
IDS = np.array([[1, 4, 1], [5, 1, -2]])


class Lookups(Sketch):
    """A sketch with a table E and ids. Either all of its lookups are sparse, or none."""

    def __init__(self, sparse: bool, ids: Any = IDS, dtype: str = "float64", ids_dtype: str = "int64") -> None:
        super().__init__()
        self.sparse = sparse
        self.param("E", TABLE, dtype)
        self.param("w", MIXED, dtype)
        self.feed("ids", ids, ids_dtype)

    def look(self, ids: str = "ids", table: str = "E", **attrs: Any) -> str:
        return self.op("embedding", table, ids, is_sparse=self.sparse, **attrs)

    def loss(self, *rows: str) -> Lookups:
        """A loss with a different weight for every row and with nonzero second derivatives."""
        parts = [self.op("reduce_sum", self.op("tanh", self.op("matmul", each, "w"))) for each in rows]
        squares = [self.op("reduce_sum", self.op("square", each)) for each in rows]
        self.op("sum", [*parts, *squares], out="loss")
        return self


def once(sparse: bool, **how: Any) -> Lookups:
    s = Lookups(sparse, **how)
    return s.loss(s.look())


def padded(sparse: bool, padding_idx: int) -> Lookups:
    s = Lookups(sparse)
    return s.loss(s.look(padding_idx=padding_idx))


def column(sparse: bool) -> Lookups:
    s = Lookups(sparse, ids=IDS[..., None])
    return s.loss(s.op("lookup_table", "E", "ids", is_sparse=sparse))


def twice(sparse: bool) -> Lookups:
    s = Lookups(sparse)
    s.feed("others", [1, 2, 1, 5], "int64")
    return s.loss(s.look(), s.look("others", padding_idx=5), s.look())


def one_by_one(sparse: bool) -> Lookups:
    """Lookups of one id each, twice of the same row, once from the end; each gives its row as it is."""
    s = Lookups(sparse)
    ids = (("first", [4]), ("again", [[4]]), ("last", [-1]), ("single", 2))
    return s.loss(*(s.op("reshape", s.look(s.feed(n, v, "int64")), shape=[1, 3]) for n, v in ids))


def each_id(s: Lookups, trips: int = 6) -> None:
    """h := tanh(h w) + E[ids[t]] for each t; ids are flat."""
    s.const(1.0, [1, 3], out="h")
    s.const(0, [1], "int64", out="t")
    with s.repeat(trips):
        row = s.look(s.op("gather", "ids", "t"))
        s.op("add", s.op("tanh", s.op("matmul", "h", "w")), row, out="h")
        s.op("increment", "t", out="t", step=1)


def in_a_loop(sparse: bool, trips: int = 6) -> Lookups:
    s = Lookups(sparse, ids=IDS.ravel())
    each_id(s, trips)
    return s.loss("h")


def in_a_loop_and_before_and_behind_it(sparse: bool) -> Lookups:
    s = Lookups(sparse, ids=IDS.ravel())
    before = s.look()
    each_id(s)
    return s.loss(before, "h", s.look())


def twice_a_trip(sparse: bool) -> Lookups:
    s = Lookups(sparse, ids=IDS.ravel())
    s.const(1.0, [1, 3], out="h")
    s.const(0, [1], "int64", out="t")
    with s.repeat(6):
        one = s.look(s.op("gather", "ids", "t"))
        two = s.op("mul", s.op("reduce_mean", s.look(), axes=[0]), "h")
        s.op("add", s.op("tanh", s.op("matmul", "h", "w")), s.op("add", one, two), out="h")
        s.op("increment", "t", out="t", step=1)
    return s.loss("h")


def in_a_loop_in_a_loop(sparse: bool) -> Lookups:
    s = Lookups(sparse, ids=[1, 4, 1])
    s.const(1.0, [1, 3], out="h")
    with s.repeat(2):
        s.const(0, [1], "int64", out="t")
        with s.repeat(3):
            row = s.look(s.op("gather", "ids", "t"))
            s.op("add", s.op("tanh", s.op("matmul", "h", "w")), row, out="h")
            s.op("increment", "t", out="t", step=1)
        s.op("add", "h", s.op("reduce_sum", s.look(), axes=[0]), out="h")
    return s.loss("h")


def in_a_scan(sparse: bool, reverse: bool) -> Lookups:
    s = Lookups(sparse)
    s.const(0.5, [3], out="h0")
    with s.block() as body:
        rows = s.op("reduce_sum", s.look("now"), axes=[0])
        s.op("add", s.op("tanh", s.op("matmul", "h", "w")), rows, out="h")
    given = {"initial": "h0", "sequences": "ids"}
    s.construct(
        "scan", given, {"final": "last", "stacked": "hs"}, sub_block=body, states=["h"], elements=["now"],
        outputs=["h"], reverse=reverse,
    )  # fmt: skip
    return s.loss("hs", "last")


def in_a_branch(sparse: bool, taken: bool, other: bool) -> Lookups:
    """One branch looks rows up. The other branch does so too, or does not."""
    s = Lookups(sparse)
    s.feed("c", taken, "bool")
    with s.block() as yes:
        s.op("reduce_sum", s.look(), axes=[0], out="y")
    with s.block() as no:
        if other:
            row = s.look(s.const(2, [3], "int64"))
            s.op("mul", row, row, out="y")
        else:
            s.const(2.0, [3, 3], out="y")
    s.branch("c", yes, no)
    return s.loss("y", s.look())


def branches_in_a_loop(sparse: bool) -> Lookups:
    """h := tanh(h w) + E[ids[t]] where that is odd, and E[0] + E[ids[t]] elsewhere."""
    s = Lookups(sparse, ids=IDS.ravel())
    s.const(1.0, [1, 3], out="h")
    s.const(0, [1], "int64", out="t")
    with s.repeat(6):
        s.op("gather", "ids", "t", out="now")
        odd = s.op("equal", s.op("mod", "now", s.const(2, [1], "int64")), s.const(1, [1], "int64"))
        with s.block() as yes:
            s.op("add", s.op("tanh", s.op("matmul", "h", "w")), s.look("now"), out="h")
        with s.block() as no:
            s.op("add", s.look(s.const(0, [1], "int64")), s.look("now"), out="h")
        s.branch(odd, yes, no)
        s.op("increment", "t", out="t", step=1)
    return s.loss("h")


def in_a_function(sparse: bool) -> Lookups:
    f = Sketch()
    f.feed("table", TABLE)
    f.feed("which", IDS, "int64")
    f.op("embedding", "table", "which", is_sparse=sparse, out="y")
    s = Lookups(sparse)
    s.functions = {"f": {"program": f.document, "results": ["y"]}}
    s.construct("call", {"x": ["E", "ids"]}, {"out": "y"}, function="f")
    return s.loss("y", s.look())


def tied(sparse: bool) -> Lookups:
    s = Lookups(sparse)
    h = s.op("reduce_sum", s.look(), axes=[0, 1])
    s.op("tanh", s.op("matmul", "E", h), out="y")
    s.op("reduce_sum", "y", out="part")
    return s.loss(s.look(), s.op("matmul", "E", "w"))


def computed(sparse: bool) -> Lookups:
    s = Lookups(sparse)
    return s.loss(s.look(table=s.op("scale", "E", scale=2.0)))


def changed_in_a_loop(sparse: bool) -> Lookups:
    s = Lookups(sparse, ids=[1, 3, 2, 5, 1, 0])
    s.op("assign", "E", out="table")
    with s.repeat(3):
        s.op("tanh", s.op("matmul", s.look(table="table"), "w"), out="table")
    return s.loss("table")


def dense_in_the_other_branch(sparse: bool) -> Lookups:
    s = Lookups(sparse)
    s.feed("c", True, "bool")
    with s.block() as yes:
        s.op("reduce_sum", s.look(), axes=[0, 1], out="y")
    with s.block() as no:
        s.op("reduce_sum", "E", axes=[0], out="y")
    s.branch("c", yes, no)
    return s.loss(s.op("unsqueeze", "y", axes=[0]))


def dense_in_a_loop(sparse: bool) -> Lookups:
    s = Lookups(sparse)
    s.const(0.0, [3], out="h")
    with s.repeat(2):
        s.op("add", s.op("reduce_sum", s.look(), axes=[0, 1]), s.op("reduce_mean", "E", axes=[0]), out="y")
        s.op("tanh", s.op("add", s.op("matmul", "h", "w"), "y"), out="h")
    return s.loss(s.op("unsqueeze", "h", axes=[0]))


@dataclass(frozen=True)
class Case:
    """make: the program, with sparse or dense lookups. reasons: the reasons why the gradient of E must be dense."""

    make: Callable[[bool], Lookups]
    reasons: tuple[str, ...] = ()


CASES = {
    "once": Case(once),
    "ids of int32": Case(lambda sparse: once(sparse, ids_dtype="int32")),
    "one id": Case(lambda sparse: once(sparse, ids=[4])),
    "no ids": Case(lambda sparse: once(sparse, ids=np.zeros((0, 2), int))),
    "padding": Case(lambda sparse: padded(sparse, 1)),
    "padding from the end": Case(lambda sparse: padded(sparse, -2)),
    "padding that no id is": Case(lambda sparse: padded(sparse, 0)),
    "column": Case(column),
    "twice": Case(twice),
    "one by one": Case(one_by_one),
    "loop": Case(in_a_loop),
    "no trip": Case(lambda sparse: in_a_loop(sparse, 0)),
    "loop, before and behind": Case(in_a_loop_and_before_and_behind_it),
    "twice a trip": Case(twice_a_trip),
    "loop in a loop": Case(in_a_loop_in_a_loop),
    "scan": Case(lambda sparse: in_a_scan(sparse, False)),
    "scan in reverse": Case(lambda sparse: in_a_scan(sparse, True)),
    "branch taken": Case(lambda sparse: in_a_branch(sparse, True, False)),
    "branch not taken": Case(lambda sparse: in_a_branch(sparse, False, False)),
    "both branches": Case(lambda sparse: in_a_branch(sparse, False, True)),
    "branches in a loop": Case(branches_in_a_loop),
    "function": Case(in_a_function),
    "tied": Case(tied, ("dense_contribution:matmul",)),
    "computed": Case(computed, ("computed_by:scale",)),
    "changed in a loop": Case(changed_in_a_loop, ("changed_by_loop",)),
    "dense in the other branch": Case(dense_in_the_other_branch, ("other_branch",)),
    "dense in a loop": Case(dense_in_a_loop, ("dense_contribution:reduce_mean",)),
}


def equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    found, wanted = whole(found), whole(wanted)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        identical(found[name], value, name)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_row_sparse_gradients_equal_dense_ones_to_the_bit(name):
    case = CASES[name]
    sparse, dense = step(case.make(True)), step(case.make(False))

    equal(sparse.gradients, dense.gradients)
    assert [each.reason for each in sparse.densified] == list(case.reasons)
    assert dense.densified == ()
    table = sparse.gradients["E"]
    assert isinstance(table, RowArray) == (not case.reasons)
    if isinstance(table, RowArray):
        assert table.shape == TABLE.shape and table.rows.dtype == np.int64
        assert (np.diff(table.rows) > 0).all()
        assert len(table.values) == len(table.rows) <= len(np.unique(IDS % 6)) + 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_rows_agree_with_differences_in_first_and_second_order(name):
    check(CASES[name].make(True), 2e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("memory", ["recompute", "sqrt", "binomial"])
@pytest.mark.parametrize("name", ["loop", "twice a trip", "loop in a loop", "scan", "scan in reverse"])
def test_memory_policies_of_loops_do_not_change_the_rows(name, memory):
    found = step(CASES[name].make(True), loop_memory=memory).gradients

    assert isinstance(found["E"], RowArray)
    equal(found, step(CASES[name].make(False), loop_memory=memory).gradients)


@pytest.mark.parametrize("name", ["twice", "loop", "both branches", "tied"])
def test_checkpoints_do_not_change_the_rows(name):
    equal(
        step(CASES[name].make(True), checkpoints="auto").gradients,
        step(CASES[name].make(False), checkpoints="auto").gradients,
    )


def in_dtype(s: Lookups, dtype: str) -> Lookups:
    """The program with `dtype` in place of float64."""
    for of in [*s.blocks[0]["vars"], *(op["attrs"] for block in s.blocks for op in block["ops"])]:
        if of.get("dtype") == "float64":
            of["dtype"] = dtype
    s.values = {n: v.astype(as_dtype(dtype)) if v.dtype == np.float64 else v for n, v in s.values.items()}
    return s


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_half_and_single_precision_add_up_in_the_same_order(dtype):
    for make in (once, twice, in_a_loop_and_before_and_behind_it, twice_a_trip, branches_in_a_loop):
        sparse, dense = (step(in_dtype(make(each), dtype)).gradients for each in (True, False))

        equal(sparse, dense)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(20))
def test_any_ids_and_any_padding_index_give_the_gradient_of_the_definition(seed):
    r = np.random.default_rng(seed)
    ids = r.integers(-6, 6, r.integers(0, 5, r.integers(0, 4)))
    padding = None if seed % 4 == 0 else int(r.integers(-6, 6))

    def make(sparse: bool) -> Lookups:
        s = Lookups(sparse, ids=ids)
        s.total(
            s.op(
                "square", s.op("tanh", s.op("matmul", s.op("reshape", s.look(padding_idx=padding), shape=[-1, 3]), "w"))
            )
        )
        return s

    found = step(make(True))
    equal(found.gradients, step(make(False)).gradients)
    table = found.gradients["E"]
    kept = np.unique(ids % 6)
    np.testing.assert_array_equal(table.rows, kept if padding is None else kept[kept != padding % 6])
    for row in range(6):  # by definition: the gradient of a row is zero unless a lookup read it
        if row not in table.rows:
            assert not whole({"E": table})["E"][row].any()


class Random(Lookups):
    """A program of lookups in two tables, products, branches and loops, nested: the same one for the same seed."""

    def __init__(self, sparse: bool, seed: int) -> None:
        super().__init__(sparse, ids=np.random.default_rng(seed).integers(-6, 6, 4))
        self.r = np.random.default_rng(seed)
        self.param("F", TABLE[:4])
        self.feed("more", self.r.integers(0, 4, (2, 2)), "int64")
        self.feed("c", bool(self.r.integers(2)), "bool")
        self.const(1.0, [1, 3], out="h")
        for _ in range(4):
            self.statement(2)
        self.loss("h")

    def statement(self, depth: int) -> None:
        kind = self.r.choice(["E", "F", "product", "table", "branch", "loop"], p=[0.3, 0.2, 0.1, 0.05, 0.15, 0.2])
        if kind == "E":
            padding = [None, 1, -1][self.r.integers(3)]
            self.op(
                "add", self.op("tanh", "h"), self.op("reduce_mean", self.look(padding_idx=padding), axes=[0]), out="h"
            )
        elif kind == "F":
            rows = self.op("reduce_sum", self.look("more", "F"), axes=[0, 1])
            self.op("mul", "h", self.op("tanh", rows), out="h")
        elif kind == "product":
            self.op("tanh", self.op("matmul", "h", "w"), out="h")
        elif kind == "table":
            self.op("add", "h", self.op("reduce_mean", self.op("square", "F"), axes=[0]), out="h")
        elif depth == 0:
            self.op("add", "h", self.look(self.const(int(self.r.integers(6)), [1], "int64")), out="h")
        elif kind == "branch":
            with self.block() as yes:
                self.statement(depth - 1)
            with self.block() as no:
                self.statement(depth - 1)
                self.statement(depth - 1)
            self.branch("c", yes, no)
        else:
            with self.repeat(int(self.r.integers(4))):
                self.statement(depth - 1)
                self.statement(depth - 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_have_the_same_gradients_with_sparse_and_dense_lookups(seed):
    sparse, dense = Random(True, seed), Random(False, seed)
    memory = ["store", "recompute", "sqrt", "binomial"][seed % 4]

    equal(step(sparse, loop_memory=memory).gradients, step(dense, loop_memory=memory).gradients)
    again = [read(write(append_backward(read(s.document), "loss").program)) for s in (sparse, dense)]
    second = []
    for s, program in zip((sparse, dense), again, strict=True):
        first = whole(step(s).gradients)
        names = tuple(first)
        targets = tuple(f"{name}@GRAD" for name in names)
        query = GradientQuery(targets=targets, inputs=names, target_gradients=(True,) * len(names))
        seeds = {f"target_gradients/{i}": first[name] for i, name in enumerate(names)}
        second.append(whole(compile_gradient(program, query).step(s.values | seeds).gradients))
    assert second[0].keys() == second[1].keys()
    for name, value in second[1].items():  # rows are added in another order than tables are
        np.testing.assert_allclose(second[0][name], value, rtol=1e-9, atol=1e-12 * max(1.0, np.abs(value).max()))


def test_30_the_padding_index_has_no_row():
    s = Sketch()
    s.param("E", [[0.1, 0.2], [0.3, -0.4], [0.5, 0.6], [-0.7, 0.8]])
    s.feed("ids", [0, 1, 0], "int64")
    s.total(s.op("square", s.op("embedding", "E", "ids", padding_idx=0, is_sparse=True)))
    found = step(s).gradients["E"]

    np.testing.assert_array_equal(found.rows, [1])
    close(found.values, [[0.6, -0.8]])


def test_an_id_that_counts_from_the_end_may_be_the_padding_index():
    s = Sketch()
    s.param("E", TABLE)
    s.feed("ids", [-6, 0, -1, 5], "int64")
    s.total(s.op("embedding", "E", "ids", padding_idx=0, out="rows"))
    found = step(s, ["rows"])

    close(found.fetched["rows"], [[0, 0, 0], [0, 0, 0], TABLE[5], TABLE[5]])
    close(found.gradients["E"], np.outer([0, 0, 0, 0, 0, 2], [1, 1, 1]))


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("wrong", [6, -7])
def test_an_id_outside_the_table_is_refused_with_its_place(sparse, wrong):
    with pytest.raises(ExecutionError) as error:
        step(once(sparse, ids=[1, wrong]))
    assert error.value.code == "index_out_of_range"
    assert error.value.location.type == "embedding"


def test_a_padding_index_outside_the_table_is_refused():
    with pytest.raises(ProgramError) as error:
        step(padded(True, -7))
    assert error.value.code == "bad_attr"


# --- hooks -----------------------------------------------------------------------------------------------------

HOOKS: dict[str, dict[str, Any]] = {**EXAMPLES, "clip_value away from zero": {"do": "clip_value", "min": 0.125}}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("when", ["after_accumulation", "each_contribution"])
@pytest.mark.parametrize("make", [twice, in_a_loop_and_before_and_behind_it])
@pytest.mark.parametrize("do", HOOKS)
def test_a_hook_acts_on_rows_as_on_the_dense_table(do, make, when):
    if do == "record" and when == "each_contribution":
        pytest.skip("record takes whole gradients")
    hook = Hook.read({"match": {"variable": "E"}, "do": do, "when": when, **HOOKS[do]})
    sparse, dense = step(make(True), hooks=(hook,)), step(make(False), hooks=(hook,))

    stays = do not in ("record", "clip_value away from zero")
    assert isinstance(sparse.gradients["E"], RowArray) == stays
    assert {each.reason for each in sparse.densified} <= {f"hook:{hook.do.name}", "dense_contribution:embedding",
                                                          "dense_contribution:loop"}  # fmt: skip
    found, wanted = whole(sparse.gradients), whole(dense.gradients)
    for name in wanted:  # a norm adds up in another order
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-14, atol=0 if do != "clip_norm" else 1e-15)
    for key, value in dense.recorded.items():
        identical(sparse.recorded[key], value)


def test_a_hook_inside_a_loop_sees_the_rows_of_each_trip():
    hook = Hook.read({"match": {"variable": "1:E"}, "do": "clip_value", "max": 0.1})

    equal(step(in_a_loop(True), hooks=(hook,)).gradients, step(in_a_loop(False), hooks=(hook,)).gradients)


# --- reports ---------------------------------------------------------------------------------------------------


def test_a_backward_program_with_dense_and_sparse_gradients_survives_a_round_trip():
    b = append_backward(read(once(True).document), "loss")
    document = b.as_document()

    assert document["sparse"] == {"E": {"rows": "E@GRAD@ROWS", "values": "E@GRAD@VALUES"}}
    assert b.gradients["E"] == "E@GRAD" and b.grad_info_map["E"] == ("E@GRAD", 0)
    assert b.grad_to_var["E@GRAD@VALUES"] == "E"
    assert read(write(b.program)) == b.program
    assert "E@GRAD@VALUES" in b.program.block.types


def test_a_densified_gradient_is_reported_with_the_op_that_needs_it_dense():
    b = append_backward(read(tied(True).document), "loss")

    (told,) = b.as_document()["densified"]
    assert told["variable"] == "0:E" and told["reason"] == "dense_contribution:matmul"
    assert told["at"]["type"] == "matmul"
    assert analyse(read(tied(True).document), GradientQuery(loss="loss"))["densified"] == [told]
    assert analyse(read(once(True).document), GradientQuery(loss="loss"))["densified"] == []


def test_the_analysis_lists_the_contributions_to_a_row_sparse_gradient():
    def parts(make: Callable[[bool], Lookups]) -> list[tuple[str, int]]:
        found = analyse(read(make(True).document), GradientQuery(loss="loss"))["contributions"]["E"]
        return [(each["of"]["type"], each["of"]["op"]) for each in found]

    assert parts(once) == [("embedding", 0)]
    assert parts(twice) == [("embedding", i) for i in (2, 1, 0)]
    assert [type for type, _ in parts(in_a_loop_and_before_and_behind_it)] == ["embedding", "while", "embedding"]


def test_gradients_of_any_variable_may_be_row_sparse():
    s = Lookups(True)
    table = s.op("scale", "E", scale=2.0, out="table")
    s.loss(s.look(table=table))
    found = step(s, loss=None, targets=("loss",), inputs=("table", "w"))

    assert isinstance(found.gradients["table"], RowArray) and found.densified == ()


def test_a_table_of_open_size_has_a_dense_gradient_in_the_backward_program():
    s = padded(True, -2)
    s.blocks[0]["vars"][0] |= {"role": "feed", "shape": [-1, 3]}
    program = read(s.document)
    query = GradientQuery(targets=("loss",), inputs=("E", "w"))

    backward = gradients(program, ["loss"], ["E", "w"])
    assert backward.sparse == {}
    assert [each.reason for each in backward.densified] == ["open_size"]
    bound = compile_gradient(program, query, shapes={"E": TABLE.shape}).step(s.values)
    assert isinstance(bound.gradients["E"], RowArray) and bound.densified == ()
    unbound = compile_gradient(program, query).step(s.values)
    equal(unbound.gradients, bound.gradients)


def test_a_target_table_has_a_dense_gradient():
    found = step(once(True), loss=None, targets=("loss", "E"), inputs=("E",))

    np.testing.assert_array_equal(found.gradients["E"], 1.0 + whole(step(once(True)).gradients)["E"])
    assert [each.reason for each in found.densified] == ["dense_contribution"]


# --- training --------------------------------------------------------------------------------------------------

STAY = {("sgd", False), ("adagrad", False)}


def trained(s: Sketch, optimizer: Optimizer, steps: int = 3, **how: Any) -> tuple[dict[str, Any], Any]:
    exe = compile_training(read(s.document), GradientQuery(loss="loss"), optimizer, **how)
    values = s.values | exe.initial_state()
    for _ in range(steps):
        out = exe.step(values)
        for name, new in (out.parameters | out.optimizer_state).items():
            if isinstance(new, RowArray):
                values[name] = values[name].copy()
                new.write(values[name])
            else:
                values[name] = new
    return values, out


@pytest.mark.sampled(1)
@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("type", OPTIMIZERS)
def test_an_optimiser_updates_rows_as_with_the_dense_gradient(type, decay):
    try:
        optimizer = Optimizer(type, {"learning_rate": 0.1} | ({"weight_decay": 0.1} if decay else {}))
    except ProgramError:
        pytest.skip("has no weight decay")
    (sparse, out), (dense, _) = trained(twice(True), optimizer), trained(twice(False), optimizer)

    equal(sparse, dense)
    stays = (type, decay) in STAY
    assert isinstance(out.parameters["E"], RowArray) == stays
    reason = "weight_decay" if type in ("sgd", "adagrad") else f"optimizer:{type}"
    assert [each.reason for each in out.densified] == ([] if stays else [reason])


@pytest.mark.parametrize("name", ["loop", "both branches", "no ids", "tied"])
@pytest.mark.parametrize("type", ["sgd", "adagrad"])
def test_rows_from_loops_and_branches_train_as_the_dense_gradient(name, type):
    optimizer = Optimizer(type, {"learning_rate": {"schedule": "exponential_decay", "learning_rate": 0.1,
                                                   "decay_steps": 2, "decay_rate": 0.5}})  # fmt: skip

    equal(trained(CASES[name].make(True), optimizer)[0], trained(CASES[name].make(False), optimizer)[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("type", ["sgd", "adagrad", "adam"])
def test_half_and_single_precision_rows_train_as_the_dense_gradient(type, dtype):
    optimizer = Optimizer(type, {"learning_rate": 0.01})
    (sparse, out), (dense, _) = (trained(in_dtype(twice(each), dtype), optimizer) for each in (True, False))

    equal(sparse, dense)
    assert isinstance(out.parameters["E"], RowArray) == (type != "adam")


@pytest.mark.parametrize("attrs", [{"epsilon": 0.0}, {"learning_rate": 1e300}])
def test_attributes_that_make_nan_of_zero_rows_need_the_dense_gradient(attrs):
    def made(sparse: bool) -> Sketch:
        s = Sketch()
        s.param("E", TABLE, "float32")
        s.feed("ids", [1], "int64")
        s.total(s.op("square", s.op("embedding", "E", "ids", is_sparse=sparse)))
        return s

    optimizer = Optimizer("adagrad", attrs)
    (sparse, out), (dense, _) = trained(made(True), optimizer), trained(made(False), optimizer)

    equal(sparse, dense)
    assert np.isnan(dense["E"]).any()
    assert [each.reason for each in out.densified] == list(attrs)


CLIPS = {
    Clip.read({"by": "global_norm", "max_norm": 0.5}): (),
    Clip.read({"by": "norm", "max_norm": 0.5}): (),
    Clip.read({"by": "value", "min": -0.1, "max": 0.2}): (),
    Clip.read({"by": "value", "min": 0.1, "max": 0.2}): ("clip:value",),
    Clip.read({"by": "value", "max": 0.2, "decay_first": True}): ("weight_decay",),
}


@pytest.mark.parametrize("clip", CLIPS)
def test_clipping_acts_on_rows_as_on_the_dense_gradient(clip):
    optimizer = Optimizer("sgd", {"learning_rate": 0.1} | ({"weight_decay": 0.1} if clip.decay_first else {}))
    (sparse, out), (dense, _) = (trained(twice(s), optimizer, clip=clip) for s in (True, False))

    assert isinstance(out.gradients["E"], RowArray)
    assert isinstance(out.parameters["E"], RowArray) == (not CLIPS[clip])
    assert tuple(each.reason for each in out.densified) == CLIPS[clip]
    for name in ("E", "w"):  # a norm adds up in another order
        np.testing.assert_allclose(sparse[name], dense[name], rtol=1e-13)


# --- memory ----------------------------------------------------------------------------------------------------

ROWS, WIDTH, COUNT = 1_000_000, 64, 32


def large(loop: bool = False) -> Sketch:
    s = Sketch()
    s.blocks[0]["vars"] += [
        {"name": "E", "dtype": "float32", "shape": [ROWS, WIDTH], "role": "parameter"},
        {"name": "ids", "dtype": "int64", "shape": [COUNT], "role": "feed"},
    ]
    if not loop:
        s.total(s.op("square", s.op("embedding", "E", "ids", is_sparse=True)))
        return s
    s.const(0, [1], "int64", out="t")
    s.const(0.0, [1, WIDTH], "float32", out="h")
    with s.repeat(COUNT):
        s.op("add", "h", s.op("square", s.op("embedding", "E", s.op("gather", "ids", "t"), is_sparse=True)), out="h")
        s.op("increment", "t", out="t", step=1)
    s.total("h")
    return s


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("type", [None, "sgd", "adagrad"])
def test_a_step_on_a_large_table_allocates_no_array_of_its_size(loop, type):
    program, query = read(large(loop).document), GradientQuery(loss="loss")
    if type is None:
        exe = compile_gradient(program, query)
    else:
        exe = compile_training(program, query, Optimizer(type))
    ids = np.random.default_rng(1).integers(0, ROWS, COUNT)
    values = {"E": np.zeros((ROWS, WIDTH), "float32"), "ids": ids} | exe.initial_state()
    values["E"][ids] = np.arange(WIDTH)

    tracemalloc.start()
    try:
        out = exe.step(values)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000  # the table has 256 MB
    np.testing.assert_array_equal(out.gradients["E"].rows, np.unique(ids))
    close(out.gradients["E"].values, np.tile(2.0 * np.arange(WIDTH), (len(np.unique(ids)), 1)))


def test_the_analysis_predicts_no_memory_for_an_unused_dense_gradient():
    found = analyse(read(large().document), GradientQuery(loss="loss"))

    assert found["memory"]["peak"] < found["memory"]["parameters"] + 2_000_000
