"""Models with open sizes: one program gives the results of onnxruntime for every size."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper, parser
from onnxruntime import InferenceSession

import core
from core.ir.errors import ExecutionError
from core.onnx import read_model
from tests.core.onnx.models import run

HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'

ONE = "one = Constant <value = int64[1] {1}> ()"
BATCH_AND_TIME = "s = Shape (x)  b = Slice (s, i0, i1)  t = Slice (s, i1, i2)"
PLACES = " ".join(f"i{n} = Constant <value = int64[1] {{{n}}}> ()" for n in range(3))
HEADS = "h = Constant <value = int64[1] {2}> () d = Constant <value = int64[1] {3}> ()"

BODIES = {
    "heads are divided and merged": f"""{PLACES} {BATCH_AND_TIME} {HEADS}
        apart = Concat <axis = 0> (b, t, h, d)
        r = Reshape (x, apart)
        m = Transpose <perm = [0, 2, 1, 3]> (r)
        back = Transpose <perm = [0, 2, 1, 3]> (m)
        rest = Constant <value = int64[1] {{-1}}> ()
        together = Concat <axis = 0> (b, t, rest)
        y = Reshape (back, together)""",
    "batch and time are merged and divided": f"""{PLACES} {BATCH_AND_TIME} {HEADS}
        n = Mul (b, t)
        rest = Constant <value = int64[1] {{-1}}> ()
        flat = Concat <axis = 0> (n, rest)
        f = Reshape (x, flat)
        g = Sin (f)
        back = Concat <axis = 0> (b, t, rest)
        y = Reshape (g, back)""",
    "a zero copies a size": """
        sizes = Constant <value = int64[4] {0, 0, 2, 3}> ()
        y = Reshape (x, sizes)""",
    "a mask is made from the length": f"""{PLACES} {BATCH_AND_TIME}
        zero = Constant <value = int64 {{0}}> () step = Constant <value = int64 {{1}}> ()
        n = Squeeze (t)
        r = Range (zero, n, step)
        row = Unsqueeze (r, i0) column = Unsqueeze (r, i1)
        mask = LessOrEqual (row, column)
        m = Cast <to = 1> (mask)
        y = MatMul (m, x)""",
    "a row is repeated for the batch": f"""{PLACES} {BATCH_AND_TIME} {ONE}
        row = Constant <value = float[6] {{1, 2, 3, 4, 5, 6}}> ()
        sizes = Concat <axis = 0> (b, t, one)
        e = Expand (row, sizes)
        y = Mul (e, x)""",
    "zeros are filled and concatenated": f"""{PLACES} {BATCH_AND_TIME}
        two = Constant <value = int64[1] {{2}}> ()
        sizes = Concat <axis = 0> (b, t, two)
        z = ConstantOfShape <value = float[1] {{0.5}}> (sizes)
        y = Concat <axis = 2> (x, z)""",
    "the second half is cut out": f"""{PLACES} {BATCH_AND_TIME}
        two = Constant <value = int64[1] {{2}}> ()
        half = Div (t, two)
        y = Slice (x, half, t, i1)""",
    "a shift by one": f"""{PLACES} {BATCH_AND_TIME} {ONE}
        last = Sub (t, one)
        head = Slice (x, i0, last, i1)
        tail = Slice (x, one, t, i1)
        y = Sub (tail, head)""",
    "the last elements are gathered": f"""{PLACES} {BATCH_AND_TIME} {ONE}
        last = Sub (t, one)
        y = Gather <axis = 1> (x, last)""",
    "tiles by a size": f"""{PLACES} {BATCH_AND_TIME}
        repeats = Concat <axis = 0> (i1, b, i1)
        y = Tile (x, repeats)""",
    "a bound of a size": f"""{PLACES} {BATCH_AND_TIME}
        bound = Constant <value = int64[1] {{4}}> ()
        n = Min (t, bound)
        y = Slice (x, i0, n, i1)""",
    "a length that is even": f"""{PLACES} {BATCH_AND_TIME}
        two = Constant <value = int64[1] {{2}}> ()
        odd = Mod (t, two)
        n = Sub (t, odd)
        y = Slice (x, i0, n, i1)""",
    "a remainder as a size": f"""{PLACES} {BATCH_AND_TIME}
        two = Constant <value = int64[1] {{2}}> ()
        n = Mod (t, two)
        y = Slice (x, i0, n, i1)""",
    "a flattened sample": """
        f = Flatten <axis = 1> (x)
        y = Softmax <axis = -1> (f)""",
}
STATIC = ("heads are divided and merged", "batch and time are merged and divided", "a zero copies a size")


def model(body):
    return parser.parse_model(f"{HEADER} g (float[batch, time, 6] x) => (float[p, q, r] y) {{ {body} }}")


def expected(made, x):
    return InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


@pytest.mark.parametrize("name", BODIES)
def test_one_program_is_right_for_every_size(name):
    made = model(BODIES[name])
    del made.graph.output[0].type.tensor_type.shape.dim[:]
    found = read_model(made.SerializeToString())

    for shape in ((2, 3, 6), (1, 1, 6), (3, 5, 6), (5, 4, 6), (1, 13, 6)):
        x = np.sin(np.arange(np.prod(shape), dtype="float32")).reshape(shape)
        np.testing.assert_allclose(run(found, [x])[0], expected(made, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BODIES)
def test_gradients_are_right_for_open_sizes(name):
    made = model(BODIES[name])
    found = read_model(made.SerializeToString())
    x = np.sin(np.arange(36.0, dtype="float32")).reshape(2, 3, 6)
    y = run(found, [x])[0]
    seed = np.cos(np.arange(y.size, dtype="float32")).reshape(y.shape)
    query = core.GradientQuery(targets=found.outputs, inputs=("x",), target_gradients=(True,))

    gradients = core.compile_gradient(core.read(found.program), query, shapes={"x": x.shape}).step(
        {**found.values, "x": x, "target_gradients/0": seed}
    )

    direction = np.cos(np.arange(36.0, dtype="float32") * 3).reshape(x.shape)
    ahead, back = (float((run(found, [x + s * direction])[0] * seed).sum()) for s in (0.01, -0.01))
    slope = float((gradients.gradients["x"] * direction).sum())
    assert slope == pytest.approx((ahead - back) / 0.02, rel=5e-3, abs=5e-3)


@pytest.mark.parametrize("name", STATIC)
def test_reshapes_that_only_move_known_sizes_take_no_sizes_as_operands(name):
    found = read_model(model(BODIES[name]).SerializeToString())

    assert not any(op["type"].startswith("dynamic_") for op in found.program["blocks"][0]["ops"])


def test_an_open_size_is_not_taken_for_another_one():
    """A batch of one is broadcast to the length; the two sizes have different samples."""
    body = f"""{PLACES} {BATCH_AND_TIME}
        rest = Constant <value = int64[1] {{6}}> ()
        sizes = Concat <axis = 0> (t, t, rest)
        y = Expand (x, sizes)"""
    found = read_model(model(body).SerializeToString())

    for shape in ((1, 3, 6), (3, 3, 6), (1, 1, 6)):
        x = np.arange(np.prod(shape), dtype="float32").reshape(shape)
        np.testing.assert_array_equal(run(found, [x])[0], np.broadcast_to(x, (shape[1], *shape[1:])))
    with pytest.raises(ExecutionError, match="cannot broadcast"):
        run(found, [np.zeros((2, 3, 6), "float32")])


def test_known_sizes_stay_known_behind_a_table_that_bounds_the_length():
    """The table has 20 rows, so that most sample sizes fail at the sum and tell nothing of the shapes after it."""
    text = f"""g (float[batch, time, 6] x, float[20, 6] table) => (float[p, q, r] y) {{ {PLACES}
        n = Shape <start = 1, end = 2> (x)
        rows = Slice (table, i0, n, i0)
        h = Add (x, rows)
        s = Shape (h)
        ones = ConstantOfShape <value = float[1] {{1}}> (s)
        norm = LayerNormalization <axis = -1> (ones, scale)
        y = Add (norm, h) }}"""
    made = parser.parse_model(HEADER + text)
    made.graph.initializer.append(numpy_helper.from_array(np.ones(6, "float32"), "scale"))
    found = read_model(made.SerializeToString())
    table = np.arange(120, dtype="float32").reshape(20, 6)

    x = np.ones((2, 7, 6), "float32")
    np.testing.assert_allclose(run(found, [x, table])[0], x + table[:7], rtol=1e-6)
    fill = next(op for op in found.program["blocks"][0]["ops"] if op["type"] == "dynamic_fill")
    assert fill["attrs"]["shape"] == [-1, -1, 6]


def test_a_shape_that_is_fed_reshapes_and_its_rank_is_known():
    made = parser.parse_model(HEADER + "g (float[n, 6] x, int64[3] s) => (float[a, b, c] y) { y = Reshape (x, s) }")
    found = read_model(made.SerializeToString())
    x = np.arange(12, dtype="float32").reshape(2, 6)

    for shape in ([3, 2, 2], [-1, 4, 1], [0, 3, 2]):
        wanted = x.reshape([2 if n == 0 else n for n in shape])
        np.testing.assert_array_equal(run(found, [x, np.array(shape)])[0], wanted)
    with pytest.raises(ExecutionError, match=r"cannot reshape \[2, 6\] to \[5, 1, 2\]"):
        run(found, [x, np.array([5, 1, 2])])
