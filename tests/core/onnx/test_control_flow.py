"""If, Loop and Scan: results as in onnxruntime, gradients as its central differences."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser
from onnxruntime import InferenceSession

import core
from core.ir.errors import ProgramError
from core.onnx import read_model
from tests.core.onnx.models import run

HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'

BRANCHES = """g (double[n] x, double[n] w) => (double[n] y) {
    s = ReduceSum <keepdims=0> (x)
    zero = Constant <value = double {0.0}> ()
    positive = Greater (s, zero)
    y = If (positive) <then_branch = t () => (double[n] a) { a = Mul (x, w) },
                       else_branch = e () => (double[n] b) { c = Sin (w)  b = Sub (c, x) }>
}"""

ONE_BRANCH_PASSES_THROUGH = """g (double[n] x, double[n] w) => (double[n] y, double[n] z) {
    s = ReduceSum <keepdims=0> (x)
    zero = Constant <value = double {0.0}> ()
    positive = Greater (s, zero)
    y, z = If (positive) <then_branch = t () => (double[n] a, double[n] b) { a = Identity (w) b = Exp (x) },
                          else_branch = e () => (double[n] c, double[n] d) { c = Mul (w, w) d = Identity (x) }>
}"""

# The number of trips depends on data: it ends when the sum exceeds 10.
UNTIL = """g (double[2] x, double[2] w) => (double[2] y, double[k, 2] all) {
    none = Constant <value = bool {1}> ()
    most = Constant <value = int64 {20}> ()
    y, all = Loop (most, none, x) <body = b (int64 i, bool c, double[2] h) => (bool again, double[2] o, double[2] r) {
        f = Cast <to = 11> (i)
        p = Mul (h, w)
        q = Sin (f)
        o = Add (p, q)
        r = Mul (o, w)
        s = ReduceSum <keepdims=0> (o)
        ten = Constant <value = double {10.0}> ()
        again = Less (s, ten)
    }>
}"""

COUNTED = """g (double[2] x, double[2] w) => (double[2] y, double[3, 2] all) {
    yes = Constant <value = bool {1}> ()
    three = Constant <value = int64 {3}> ()
    y, all = Loop (three, yes, x) <body = b (int64 i, bool c, double[2] h) => (bool again, double[2] o, double[2] r) {
        again = Identity (c)
        f = Cast <to = 11> (i)
        p = Mul (h, w)
        o = Add (p, f)
        r = Mul (h, o)
    }>
}"""

# Each trip exchanges the first two carried values, and the third one reads the first before the exchange.
EXCHANGE = """g (double[2] x, double[2] w) => (double[2] y, double[2] z, double[2] v) {
    three = Constant <value = int64 {3}> ()
    yes = Constant <value = bool {1}> ()
    y, z, v = Loop (three, yes, x, w, x) <body = b (int64 i, bool c, double[2] p, double[2] q, double[2] r)
                                             => (bool again, double[2] q2, double[2] p2, double[2] r2) {
        again = Identity (c)
        q2 = Identity (q)
        p2 = Identity (p)
        r2 = Mul (r, p)
    }>
}"""

GROWING = """g (double[2] x, double[2] w) => (double[k] y) {
    yes = Constant <value = bool {1}> ()
    three = Constant <value = int64 {3}> ()
    y = Loop (three, yes, x) <body = b (int64 i, bool c, double[m] h) => (bool again, double[n] o) {
        again = Identity (c)
        p = Mul (x, w)
        o = Concat <axis = 0> (h, p)
    }>
}"""

NESTED = """g (double[2] x, double[2] w) => (double[2] y) {
    yes = Constant <value = bool {1}> ()
    two = Constant <value = int64 {2}> ()
    y = Loop (two, yes, x) <body = b (int64 i, bool c, double[2] h) => (bool again, double[2] o) {
        again = Identity (c)
        one = Constant <value = int64 {1}> ()
        trips = Add (i, one)
        o = Loop (trips, yes, h) <body = d (int64 j, bool e, double[2] k) => (bool more, double[2] l) {
            more = Identity (e)
            m = Mul (k, w)
            l = Tanh (m)
        }>
    }>
}"""

SCAN = """g (double[2] x, double[4, 2] w) => (double[2] y, double[2, 4] all) {
    y, all = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1],
                   scan_output_axes = [1], body = b (double[2] h, double[2] v) => (double[2] o, double[2] r) {
        p = Mul (h, v)
        o = Add (p, x)
        r = Sin (o)
    }> (x, w)
}"""

# The second operand of the loop is a sequence, which each trip extends.
SEQUENCE = """g (double[2] x, double[2] w) => (double[6] y) {
    yes = Constant <value = bool {1}> ()
    none = SequenceEmpty <dtype = 11> ()
    three = Constant <value = int64 {3}> ()
    h, all = Loop (three, yes, x, none) <body = b (int64 i, bool c, double[2] p, seq(double) s)
                                              => (bool again, double[2] q, seq(double) t) {
        again = Identity (c)
        q = Mul (p, w)
        t = SequenceInsert (s, q)
    }>
    y = ConcatFromSequence <axis = 0> (all)
}"""

X, W = np.array([0.7, -0.3]), np.array([1.2, 1.4])
MODELS = {
    "then": (BRANCHES, X, W),
    "else": (BRANCHES, -X, W),
    "one branch passes an outer value": (ONE_BRANCH_PASSES_THROUGH, X, W),
    "the other branch passes an outer value": (ONE_BRANCH_PASSES_THROUGH, -X, W),
    "trips by data": (UNTIL, X, W),
    "a single trip": (UNTIL, 20 * abs(X), W),
    "trips by count": (COUNTED, X, W),
    "carried values exchanged": (EXCHANGE, X, W),
    "growing value": (GROWING, X, W),
    "nested": (NESTED, X, W),
    "scan backwards": (SCAN, X, np.sin(np.arange(8.0)).reshape(4, 2)),
    "sequence": (SEQUENCE, X, W),
}


@pytest.mark.parametrize("name", MODELS)
def test_results_and_gradients_are_those_of_onnxruntime(name):
    text, x, w = MODELS[name]
    model = parser.parse_model(HEADER + text)
    evaluator = session(model)
    found = read_model(model.SerializeToString())
    evaluate = lambda x, w: evaluator.run(None, {"x": x, "w": w})
    expected = evaluate(x, w)

    results = run(found, [x, w])

    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-12)
    seeds = [np.cos(np.arange(float(y.size))).reshape(y.shape) for y in expected]
    query = core.GradientQuery(
        targets=found.outputs, inputs=("x", "w"), target_gradients=(True,) * len(seeds), unconnected="zeros"
    )
    step = core.compile_gradient(core.read(found.program), query, shapes={"x": x.shape, "w": w.shape})
    fed = {f"target_gradients/{i}": seed for i, seed in enumerate(seeds)}
    gradients = step.step({**found.values, "x": x, "w": w, **fed}).gradients
    project = lambda x, w: sum(float((y * s).sum()) for y, s in zip(evaluate(x, w), seeds, strict=True))
    np.testing.assert_allclose(gradients["x"], differences(lambda v: project(v, w), x), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gradients["w"], differences(lambda v: project(x, v), w), rtol=1e-5, atol=1e-7)


def session(model):
    return InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def differences(f, x, step=1e-6):
    """Central differences of the scalar function `f`."""
    found = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        ahead, back = x.copy(), x.copy()
        ahead[at] += step
        back[at] -= step
        found[at] = (f(ahead) - f(back)) / (2 * step)
    return found


def test_a_loop_that_never_runs_passes_its_values_through():
    text = UNTIL.replace("int64 {20}", "int64 {0}")
    found = read_model(parser.parse_model(HEADER + text).SerializeToString())

    y, recorded = run(found, [X, W])

    np.testing.assert_array_equal(y, X)
    assert recorded.shape == (0, 2)


def test_a_trip_count_that_is_fed_decides_the_trips():
    text = COUNTED.replace("double[2] w)", "double[2] w, int64 three)").replace(
        "three = Constant <value = int64 {3}> ()", ""
    )
    model = parser.parse_model(HEADER + text.replace("double[3, 2] all", "double[k, 2] all"))
    found = read_model(model.SerializeToString())

    for trips in (0, 1, 4):
        expected = session(model).run(None, {"x": X, "w": W, "three": np.array(trips)})
        results = run(found, [X, W, np.array(trips)])
        for result, wanted in zip(results, expected, strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-12)


def test_a_known_condition_reads_one_branch_only():
    text = BRANCHES.replace("positive = Greater (s, zero)", "positive = Constant <value = bool {1}> ()")
    found = read_model(parser.parse_model(HEADER + text).SerializeToString())

    assert [op["type"] for op in found.program["blocks"][0]["ops"]] == ["mul"]


def test_branches_of_different_ranks_are_refused_with_the_name_of_the_node():
    text = """g (double[2] x, bool c) => (double[n] y) {
        y = If (c) <then_branch = t () => (double[2] a) { a = Sin (x) },
                    else_branch = e () => (double b) { b = ReduceSum <keepdims=0> (x) }>
    }"""
    model = parser.parse_model(HEADER + text)
    model.graph.node[0].name = "choose"

    with pytest.raises(ProgramError, match=r"node 'choose' \(If\): the branches give 'y' different types"):
        read_model(model.SerializeToString())


def test_a_refused_node_in_a_branch_is_reported_with_its_path():
    text = """g (double[2] x, bool c) => (double[n] y) {
        y = If (c) <then_branch = t () => (double[2] a) { a = Sin (x) },
                    else_branch = e () => (double[2] b) { d = Cast <to = 8> (x)  b = Cast <to = 11> (d) }>
    }"""
    model = parser.parse_model(HEADER + text)
    model.graph.node[0].name = "choose"

    with pytest.raises(ProgramError) as error:
        read_model(model.SerializeToString())

    assert [each.message for each in error.value.problems] == [
        "node #0 (Cast) in node 'choose' (If): the element type string has no counterpart in a program"
    ]
