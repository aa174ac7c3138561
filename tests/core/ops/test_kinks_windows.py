"""Edge cases of convolution and pooling: ties, padding, NaN, half precision, sizes beyond memory."""

from __future__ import annotations

import numpy as np
import pytest

from core.compiler.compile import optimize
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import as_tuple
from core.ops.vision import correlate
from core.runtime.reference import execute
from tests.programs import Sketch, close, gradient_of_op, grads


def run(type: str, *arrays: np.ndarray, **attrs: object) -> tuple[np.ndarray, ...]:
    b = BlockBuilder()
    values = [b.param(TensorType(x.shape, str(x.dtype))) for x in arrays]
    return execute(optimize(b.build(as_tuple(b.emit(type, *values, **attrs)))), list(arrays))


@pytest.mark.parametrize(
    ("type", "value", "attrs", "wanted"),
    [
        ("max_pool1d", [1.0, 1.0, 1.0, 1.0], {"kernel_size": [2]}, [1, 0, 1, 0]),
        ("max_pool1d", [1.0, 1.0, 1.0, 0.0], {"kernel_size": [3], "strides": [1]}, [1, 1, 0, 0]),
        ("max_pool1d", [1.0, 1.0, 1.0], {"kernel_size": [3]}, [1, 0, 0]),
        ("max_pool1d", [-1.0, -1.0], {"kernel_size": [2], "strides": [1], "paddings": [1]}, [2, 1]),
        ("max_pool1d", [-np.inf, -np.inf], {"kernel_size": [2], "strides": [1], "paddings": [1]}, [2, 1]),
        ("adaptive_max_pool1d", [1.0, 1.0, 1.0], {"output_size": [2]}, [1, 1, 0]),
        ("global_max_pool", [2.0, 1.0, 2.0], {}, [1, 0, 0]),
        ("lp_pool", [0.0, 0.0, 3.0, -4.0], {"kernel_size": [2]}, [0, 0, 0.6, -0.8]),
        ("lp_pool", [0.0, 0.0, 0.0, -4.0], {"kernel_size": [2], "p": 3.0}, [0, 0, 0, -1]),
        ("avg_pool1d", [1.0, 2.0, 3.0], {"kernel_size": [2], "ceil_mode": True}, [0.5, 0.5, 1]),
        ("adaptive_avg_pool1d", [1.0, 2.0, 3.0], {"output_size": [2]}, [0.5, 1, 0.5]),
    ],
)
def test_the_gradient_of_pooling_at_ties_and_borders_is_the_defined_one(type, value, attrs, wanted):
    close(gradient_of_op(type, [[value]], **attrs), [[wanted]], 1e-12)


def test_the_first_of_several_maxima_in_row_major_order_is_selected():
    x = np.array([[[[0.0, 7, 0], [7, 0, 7], [0, 7, 0]]]])

    for kernel, strides in (((3, 3), None), ((2, 2), (1, 1))):
        out, index = run("max_pool2d", x, kernel_size=kernel, strides=strides)
        assert (out == 7).all()
        assert index.ravel().tolist() == ([1] if kernel == (3, 3) else [1, 1, 3, 5])
    assert run("adaptive_max_pool2d", x, output_size=(1, 1))[1].item() == 1


@pytest.mark.parametrize("kernel", [(2,), (4,)])
def test_nan_counts_as_the_maximum_and_its_position_is_returned(kernel):
    out, index = run("max_pool1d", np.array([[[9.0, np.nan, 9.0, 1.0]]]), kernel_size=kernel)

    assert np.isnan(out[0, 0, 0])
    assert index[0, 0, 0] == 1


def test_a_p_norm_propagates_nan():
    assert np.isnan(run("lp_pool", np.array([[[np.nan, 1.0]]]), kernel_size=(2,))[0]).all()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_elements_unpooled_to_one_position_add_up_and_each_gets_its_gradient(dtype):
    s = Sketch()
    s.param("w", [[[1.0, 2.0, 4.0]]])
    s.feed("i", np.array([[[1, 0, 1]]]), dtype)
    s.total(s.op("square", s.op("max_unpool", "w", "i", output_size=[2])))

    close(grads(s)["w"], [[[10, 4, 10]]], 1e-12)


@pytest.mark.parametrize(("dtype", "wanted"), [("int64", 2**54 + 4), ("int8", -56), ("bool", True)])
def test_unpooled_integers_keep_all_their_bits(dtype, wanted):
    x = {"int64": [2**53 + 1, 2**53 + 3], "int8": [100, 100], "bool": [True, True]}[dtype]

    (found,) = run("max_unpool", np.array([[x]], dtype), np.array([[[1, 1]]]), output_size=(2,))

    assert found.dtype == dtype
    assert found.tolist() == [[[0, wanted]]]


@pytest.mark.parametrize("position", [-5, 4, 2**40])
def test_a_position_outside_the_image_is_refused(position):
    with pytest.raises(ExecutionError) as error:
        run("max_unpool", np.ones((1, 1, 1)), np.array([[[position]]]), output_size=(4,))
    assert error.value.code == "index_out_of_range"


HUGE = 10**9


@pytest.mark.parametrize(
    ("type", "shapes", "attrs", "wanted"),
    [
        # padding is never stored: only elements of x are read
        ("conv2d", [(1, 1, 2, 2), (1, 1, 1, 1)], {"paddings": (HUGE, HUGE), "strides": (HUGE, HUGE)}, (1, 1, 3, 3)),
        ("conv1d", [(1, 1, 3), (1, 1, 3)], {"paddings": (HUGE,), "dilations": (HUGE,)}, (1, 1, 3)),
        (
            "avg_pool2d",
            [(1, 1, 2, 2)],
            {"kernel_size": (HUGE,), "paddings": (HUGE - 1,), "strides": (HUGE,)},
            (1, 1, 2, 2),
        ),
        (
            "max_pool2d",
            [(1, 1, 2, 2)],
            {"kernel_size": (HUGE,), "paddings": (HUGE - 1,), "strides": (HUGE,)},
            (1, 1, 2, 2),
        ),
        ("avg_pool3d", [(1, 1, 2, 2, 2)], {"kernel_size": (HUGE,), "paddings": (HUGE // 2,)}, (1, 1, 1, 1, 1)),
    ],
)
def test_large_padding_needs_no_memory(type, shapes, attrs, wanted):
    out = run(type, *[np.ones(s) for s in shapes], **attrs)[0]

    assert out.shape == wanted
    assert np.isfinite(out).all()


def test_an_adaptive_size_beyond_memory_is_refused_by_type_inference():
    b = BlockBuilder()
    out = b.emit("adaptive_max_pool1d", b.param(TensorType((1, 1, 5), "float64")), output_size=(10**9,))[0]
    assert out.shape == (1, 1, 10**9)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("type", "shapes", "attrs"),
    [
        ("conv2d", [(2, 4, 6, 5), (4, 2, 3, 3), (4,)], {"groups": 2, "paddings": (1,)}),
        ("conv1d_transpose", [(2, 4, 6), (4, 2, 3)], {"strides": (2,)}),
        ("max_pool2d", [(2, 4, 6, 5)], {"kernel_size": (2,), "paddings": (1,)}),
        ("max_pool2d", [(2, 4, 6, 5)], {"kernel_size": (6, 5)}),
        ("avg_pool2d", [(2, 4, 6, 5)], {"kernel_size": (2,), "paddings": (1,)}),
        ("adaptive_avg_pool2d", [(2, 4, 6, 5)], {"output_size": (3, 2)}),
        ("adaptive_max_pool2d", [(2, 4, 6, 5)], {"output_size": (3, 2)}),
        ("lp_pool", [(2, 4, 6, 5)], {"kernel_size": (2,)}),
    ],
)
def test_half_precision_is_kept_and_close_to_float64(dtype, type, shapes, attrs):
    from core.ops.common.types import as_dtype

    r = np.random.default_rng(1)
    halves = [r.standard_normal(s).astype(as_dtype(dtype)) for s in shapes]

    out = run(type, *halves, **attrs)[0]

    assert str(out.dtype) == dtype
    wanted = run(type, *[x.astype("float64") for x in halves], **attrs)[0]
    np.testing.assert_allclose(out.astype("float64"), wanted, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("room", [1, 7, 60, 500])
def test_blocks_of_any_size_give_the_same_convolution(monkeypatch, room):
    r = np.random.default_rng(2)
    x, f = r.standard_normal((3, 4, 6, 5)), r.standard_normal((6, 2, 3, 2))
    attrs = {"strides": (2, 1), "paddings": (1, 0, 2, 1), "dilations": (1, 2), "groups": 2}
    (y,) = run("correlate", x, f, **attrs)
    whole = (y, *run("correlate_input_adjoint", y, f, x, **attrs), *run("correlate_filter_adjoint", y, x, f, **attrs))

    monkeypatch.setattr(correlate, "BLOCK", room)

    pieces = (
        *run("correlate", x, f, **attrs),
        *run("correlate_input_adjoint", y, f, x, **attrs),
        *run("correlate_filter_adjoint", y, x, f, **attrs),
    )
    for a, b in zip(pieces, whole, strict=True):
        close(a, b, 1e-12)


@pytest.mark.parametrize(
    ("type", "shapes", "attrs", "code"),
    [
        ("conv2d", [(1, 3, 4, 4), (2, 2, 3, 3)], {}, "shape_mismatch"),
        ("conv2d", [(1, 2, 4, 4), (2, 2, 5, 5)], {}, "shape_mismatch"),
        ("conv2d", [(1, 2, 4, 4), (3, 1, 3, 3)], {"groups": 2}, "bad_attr"),
        ("conv2d_transpose", [(1, 2, 4, 4), (2, 2, 3, 3)], {"output_padding": (1,)}, "bad_attr"),
        ("correlate_input_adjoint", [(1, 2, 9, 9), (2, 2, 3, 3), (1, 2, 4, 4)], {}, "shape_mismatch"),
        ("max_pool2d", [(1, 2, 4, 4)], {"kernel_size": (2,), "paddings": (2,)}, "bad_attr"),
        ("max_pool1d", [(1, 2, 0)], {"kernel_size": (3,), "paddings": (2,)}, "shape_mismatch"),
        ("adaptive_avg_pool1d", [(1, 2, 4)], {"output_size": (0,)}, "bad_attr"),
        ("lp_pool", [(1, 2, 4)], {"kernel_size": (2,), "p": 0.0}, "bad_attr"),
    ],
)
def test_wrong_types_are_refused(type, shapes, attrs, code):
    b = BlockBuilder()
    with pytest.raises(ProgramError) as error:
        b.emit(type, *[b.param(TensorType(s, "float32")) for s in shapes], **attrs)
    assert error.value.code == code
