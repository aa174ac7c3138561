"""Sizes that depend on a case distinction are right on both sides of each bound: no sample size stands for all."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

from core.onnx import read_model
from core.onnx.reading.case_rules import RULES
from core.onnx.reading.worlds import Sizes
from tests.core.onnx.beside_runtime import by_runtime
from tests.core.onnx.models import imported, model_of, run

HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'
NUMBERS = " ".join(f"i{n} = Constant <value = int64[1] {{{n}}}> ()" for n in (0, 1, 2, 3, 4, 1000, 100000))
SIZES = "n = Shape <start = 0, end = 1> (x)  m = Shape <start = 1, end = 2> (x)"
TABLE = "table = Constant <value = float[9] {0, 1, 2, 3, 4, 5, 6, 7, 8}> ()"
ROW = "row = Constant <value = float[1] {5}> ()"

BODIES = {
    "the smaller one of a size and a bound": "k = Min (n, i3)  y = Slice (table, i0, k, i0)",
    "the larger one of a size and a bound": "k = Max (n, i3)  y = Expand (row, k)",
    "a start at a bound": "k = Min (n, i3)  y = Slice (table, k, i1000, i0)",
    "one of two constants": "g = Greater (n, i3)  k = Where (g, i4, i3)  y = Slice (table, i0, k, i0)",
    "a comparison as a number": "g = Greater (n, i3)  c = Cast <to = 7> (g)  k = Add (c, i1)  y = Expand (row, k)",
    "a bound above most sizes": "k = Min (n, i100000)  y = Slice (x, i0, k, i0)",
    "the smaller one of two sizes": "k = Min (n, m)  y = Slice (x, i0, k, i0)",
    "the larger one of two sizes": "k = Max (n, m)  y = Expand (row, k)",
    "a difference of sizes": "d = Sub (n, m)  a = Abs (d)  y = Expand (row, a)",
    "whether two sizes are equal": "g = Equal (n, m)  k = Where (g, i2, i1)  y = Expand (row, k)",
    "a bound of a product": "p = Mul (n, m)  k = Min (p, i4)  y = Expand (row, k)",
    "the number of slices": "k = Div (n, i2)  y = Expand (row, k)",
    "a remainder": "k = Mod (n, i4)  y = Expand (row, k)",
    "a length that a slice bounds": "s = Slice (x, i0, i3, i0)  k = Shape <end = 1> (s)  y = Expand (row, k)",
    "the rest of a slice": "s = Slice (x, i3, i1000, i0)  k = Shape <end = 1> (s)  y = Expand (row, k)",
    "a count of repeats": "k = Min (n, i3)  y = Tile (row, k)",
    "a fill of a bounded size": "k = Min (n, i3)  s = Concat <axis = 0> (k, i2)  y = ConstantOfShape (s)",
    "a reshape to a bounded size": """k = Min (n, i3)  s = Slice (x, i0, k, i0)  t = Concat <axis = 0> (k, m, i1)
        y = Reshape (s, t)""",
    "a shape with a size in place of -1": """minus = Constant <value = int64[2] {-1, -1}> ()
        s = Concat <axis = 0> (n, m)  g = Equal (s, minus)  ones = Constant <value = int64[2] {1, 1}> ()
        t = Where (g, ones, s)  y = Expand (row, t)""",
    "a scaled size": """f = Cast <to = 1> (n)  two = Constant <value = float[1] {1.5}> ()  p = Mul (f, two)
        q = Floor (p)  k = Cast <to = 7> (q)  y = Expand (row, k)""",
}


@pytest.mark.parametrize("name", BODIES)
def test_every_case_of_a_size_gives_the_numbers_of_onnxruntime(name):
    text = f"g (float[p, q] x) => (float[a] y) {{ {NUMBERS} {SIZES} {TABLE} {ROW} {BODIES[name]} }}"
    model = parser.parse_model(HEADER + text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    found = imported(model)

    for shape in ((1, 1), (1, 4), (2, 2), (2, 5), (3, 4), (4, 3), (5, 1), (6, 6), (12, 8)):
        x = np.arange(np.prod(shape), dtype="float32").reshape(shape)
        np.testing.assert_array_equal(run(found, [x])[0], by_runtime(model, {"x": x})[0], f"{name}, {shape}")


def test_a_bound_above_the_sample_sizes_cuts():
    text = (
        f"g (float[n] x) => (float[a] y) {{ {NUMBERS} n = Shape (x)  k = Min (n, i100000)  y = Slice (x, i0, k, i0) }}"
    )
    found = read_model(parser.parse_model(HEADER + text).SerializeToString())

    assert run(found, [np.zeros(100_002, "float32")])[0].shape == (100_000,)


def test_an_axis_of_one_is_expanded_to_the_larger_one_of_its_size_and_a_bound():
    """Sample sizes above the bound show the axis as it is."""
    text = f"g (float[n] x) => (float[a] y) {{ {NUMBERS} n = Shape (x)  k = Max (n, i3)  y = Expand (x, k) }}"
    found = read_model(parser.parse_model(HEADER + text).SerializeToString())

    for n in (1, 3, 5):
        x = np.arange(n, dtype="float32")
        np.testing.assert_array_equal(run(found, [x])[0], np.broadcast_to(x, max(n, 3)))


def test_images_of_open_sizes_are_resized_to_a_multiple_that_floats_compute():
    """Exporters compute sizes in floats and round them: a whole multiple of a size is exact."""
    body = """s = Shape (x)  batch = Slice (s, i0, i2, i0)  space = Slice (s, i2, i4, i0)  f = Cast <to = 1> (space)
        two = Constant <value = float[1] {2}> ()  p = Mul (f, two)  q = Floor (p)  k = Cast <to = 7> (q)
        sizes = Concat <axis = 0> (batch, k)
        y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
            (x, , , sizes)"""
    text = f"g (float[b, 1, h, w] x) => (float[c, d, e, f0] y) {{ {NUMBERS} {body} }}"
    found = read_model(parser.parse_model(HEADER + text).SerializeToString())

    x = np.arange(6, dtype="float32").reshape(1, 1, 2, 3)
    np.testing.assert_array_equal(run(found, [x])[0], x.repeat(2, axis=2).repeat(2, axis=3))


def test_a_bounded_count_of_data_is_not_a_constant():
    body = "z = NonZero (x)  c = Shape <start = 1, end = 2> (z)  k = Min (c, i3)  y = Slice (table, i0, k, i0)"
    text = f"g (float[5] x) => (float[a] y) {{ {NUMBERS} {TABLE} {body} }}"
    found = read_model(parser.parse_model(HEADER + text).SerializeToString())

    for count in range(6):
        x = (np.arange(5) < count).astype("float32")
        np.testing.assert_array_equal(run(found, [x])[0], np.arange(min(count, 3), dtype="float32"))


def test_the_sizes_of_a_sum_with_a_cut_table_are_known():
    """``table[:length]`` fits the length only where the table is long enough. So the sum has the length."""
    text = f"""g (float[batch, time, 6] x, float[20, 6] table) => (float[p, q, r, s] y) {{ {NUMBERS}
        n = Shape <start = 1, end = 2> (x)
        rows = Slice (table, i0, n, i0)
        h = Add (x, rows)
        b = Shape <start = 0, end = 1> (x)
        sizes = Concat <axis = 0> (b, n, i2, i3)
        y = Reshape (h, sizes) }}"""
    found = read_model(parser.parse_model(HEADER + text).SerializeToString())

    assert "dynamic_reshape" not in {op["type"] for op in found.program["blocks"][0]["ops"]}
    x, table = np.ones((2, 7, 6), "float32"), np.arange(120, dtype="float32").reshape(20, 6)
    np.testing.assert_array_equal(run(found, [x, table])[0], (x + table[:7]).reshape(2, 7, 2, 3))


def test_pads_from_a_known_size_of_an_open_shape_are_constant():
    body = "s = Shape (x)  m = Gather (s, i1)  k = Mod (m, i4)  p = Concat <axis = 0> (i0, k, i0, i0)  y = Pad (x, p)"
    text = f"g (float[batch, 6] x) => (float[a, b] y) {{ {NUMBERS} {body} }}"
    found = read_model(parser.parse_model(HEADER + text).SerializeToString())

    x = np.ones((3, 6), "float32")
    np.testing.assert_array_equal(run(found, [x])[0], np.pad(x, ((0, 0), (2, 0))))


# --- formulas --------------------------------------------------------------------------------------------------------

PAIRS: dict[str, Callable[[int, int], int]] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "Min": min, "Max": max,
}  # fmt: skip
COMPARED: dict[str, Callable[[int, int], bool]] = {
    "Greater": lambda a, b: a > b, "Less": lambda a, b: a < b, "Equal": lambda a, b: a == b,
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(40))
def test_random_formulas_of_sizes_are_right_as_the_end_of_a_slice(seed):
    draw = random.Random(seed)
    constants = {f"c{n}": np.array([n]) for n in range(1, 8)}
    nodes = [helper.make_node("Shape", ["x"], [each], start=i, end=i + 1) for i, each in enumerate("nm")]
    formulas: dict[str, Callable[[int, int], int]] = {"n": lambda n, m: n, "m": lambda n, m: m}
    formulas |= {name: lambda n, m, v=int(array[0]): v for name, array in constants.items()}
    for i in range(draw.randint(2, 5)):
        a, b, c, d = draw.choices(sorted(formulas), k=4)
        fa, fb, fc, fd = (formulas[each] for each in (a, b, c, d))
        op = draw.choice([*PAIRS, *COMPARED, "Div"])
        if op in PAIRS:
            nodes.append(helper.make_node(op, [a, b], [f"v{i}"]))
            formulas[f"v{i}"] = lambda n, m, f=PAIRS[op], fa=fa, fb=fb: f(fa(n, m), fb(n, m))
        elif op == "Div":
            by = draw.randint(1, 7)
            nodes.append(helper.make_node("Div", [a, f"c{by}"], [f"v{i}"]))
            formulas[f"v{i}"] = lambda n, m, fa=fa, by=by: int(fa(n, m) / by)
        else:
            nodes.append(helper.make_node(op, [a, b], [f"g{i}"]))
            nodes.append(helper.make_node("Where", [f"g{i}", c, d], [f"v{i}"]))
            formulas[f"v{i}"] = lambda n, m, f=COMPARED[op], fa=fa, fb=fb, fc=fc, fd=fd: (
                fc(n, m) if f(fa(n, m), fb(n, m)) else fd(n, m)
            )
        last = f"v{i}"
    nodes.append(helper.make_node("Slice", ["table", "c0", last, "c0"], ["y"]))
    table = np.arange(500, dtype="float32")
    given = {**constants, "c0": np.array([0]), "table": table}
    found = imported(model_of(nodes, {"x": (TensorProto.FLOAT, ["n", "m"])}, ["y"], given))

    for n, m in ((1, 1), (1, 3), (3, 1), (2, 7), (5, 4), (4, 6), (9, 2), (12, 12)):
        result = run(found, {"x": np.zeros((n, m), "float32"), "table": table})[0]
        np.testing.assert_array_equal(result, table[: formulas[last](n, m)], f"{n}, {m}")


def test_a_comparison_is_decided_where_bounds_hold_in_every_run():
    sizes = Sizes()
    n, minus_one, two = sizes.of("n"), (-1,) * 6, (2,) * 6
    more = tuple(k + 2 for k in n)

    assert RULES["equal"](sizes, (), [n, minus_one]) == (False,) * 6
    assert RULES["less_than"](sizes, (), [n, more]) == (True,) * 6
    assert RULES["maximum"](sizes, (), [n, (0,) * 6]) == n
    assert RULES["equal"](sizes, (), [n, two]) is None
    assert RULES["minimum"](sizes, (), [n, sizes.of("m")]) is None


def test_sums_of_different_sizes_differ():
    sizes = Sizes()
    columns = [sizes.of(name) for name in "abcdefgh"]
    sums = {tuple(map(sum, zip(x, y, strict=True))) for i, x in enumerate(columns) for y in columns[: i + 1]}

    assert len(sums) == 36
