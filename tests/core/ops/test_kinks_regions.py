"""Edge cases of region pooling and deformable convolution: borders, integer positions, empty bins, NaN, equal
elements.
"""

from __future__ import annotations

import numpy as np
import pytest

from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import as_tuple
from core.runtime.reference import execute
from tests.core.ops.test_selection import pulled_back
from tests.programs import close

R = np.random.default_rng(2)
IMAGE = R.standard_normal((2, 4, 5, 6))
NONE = np.zeros(1, "int64")


def run(type: str, *arrays: np.ndarray, **attrs: object) -> np.ndarray:
    b = BlockBuilder()
    values = [b.param(TensorType(x.shape, str(x.dtype))) for x in arrays]
    return execute(b.build(as_tuple(b.emit(type, *values, **attrs))), list(arrays))[0]


@pytest.mark.parametrize("attrs", [{}, {"strides": (2, 1), "paddings": (1, 2), "dilations": (1, 2), "groups": 2}])
def test_a_deformable_convolution_with_offsets_0_equals_a_convolution(attrs):
    filter = R.standard_normal((6, 4 // attrs.get("groups", 1), 3, 2))
    wanted = run("conv2d", IMAGE, filter, **attrs)
    offset = np.zeros((2, 2 * 2 * 6, *wanted.shape[2:]))

    close(run("deformable_conv2d", IMAGE, offset, filter, deformable_groups=2, **attrs), wanted, 1e-12)


def test_integer_offsets_read_whole_elements():
    filter = np.ones((1, 1, 1, 1))
    offset = np.zeros((1, 2, 5, 6))
    offset[:, 0], offset[:, 1] = 2.0, -1.0

    out = run("deformable_conv2d", IMAGE[:1, :1], offset, filter)

    wanted = np.zeros((5, 6))
    wanted[:3, 1:] = IMAGE[0, 0, 2:, :5]
    close(out[0, 0], wanted, 1e-12)


def test_bins_of_whole_elements_equal_the_elements():
    """Unaligned boxes over whole elements with one point per bin: the element at the middle of the bin."""
    boxes = np.array([[0.5, 0.5, 4.5, 3.5]])
    close(
        run("roi_align", IMAGE, boxes - 0.5, NONE, output_size=(3, 4), sampling_ratio=1, aligned=False),
        [(IMAGE[0, :, :3, :4] + IMAGE[0, :, 1:4, :4] + IMAGE[0, :, :3, 1:5] + IMAGE[0, :, 1:4, 1:5]) / 4],
        1e-12,
    )
    close(
        run("roi_align", IMAGE, boxes - 0.5, NONE, output_size=(3, 4), sampling_ratio=1), [IMAGE[0, :, :3, :4]], 1e-12
    )


def test_far_outside_the_image_values_and_gradients_are_0():
    boxes = np.array([[100.0, 100.0, 110.0, 110.0]])
    for type in ("roi_align", "roi_pool"):
        assert (run(type, IMAGE, boxes, NONE, output_size=(2,)) == 0).all()
        assert (pulled_back(type, [IMAGE, boxes, NONE], np.full((1, 4, 2, 2), np.inf), output_size=(2,))[0] == 0).all()


def test_a_nan_box_gives_nan_or_is_refused():
    boxes = np.array([[np.nan, 0.0, 2.0, 2.0]])

    assert np.isnan(run("roi_align", IMAGE, boxes, NONE, output_size=(2,))).all()
    with pytest.raises(ExecutionError) as error:
        run("roi_pool", IMAGE, boxes, NONE, output_size=(2,))
    assert error.value.code == "not_finite"


def test_the_first_of_equal_elements_gets_the_gradient_and_overlapping_bins_add():
    x, boxes = np.ones((1, 1, 3, 3)), np.array([[0.0, 0.0, 2.0, 2.0]])

    dx, dboxes = pulled_back("roi_pool", [x, boxes, NONE], np.ones((1, 1, 2, 2)), output_size=(2,))

    assert dx[0, 0].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert (dboxes == 0).all()


def test_an_image_index_out_of_range_is_refused():
    for type in ("roi_align", "roi_pool"):
        with pytest.raises(ExecutionError) as error:
            run(type, IMAGE, np.array([[0.0, 0.0, 2.0, 2.0]]), np.array([2]), output_size=(2,))
        assert error.value.code == "index_out_of_range"


def test_too_many_bins_are_refused():
    with pytest.raises(ProgramError, match="bins"):
        run("roi_pool", IMAGE, np.array([[0.0, 0.0, 2.0, 2.0]]), NONE, output_size=(10**5,))
