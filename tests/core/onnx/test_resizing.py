"""Resize, GridSample, regions, blocks and Col2Im agree with onnxruntime, and their gradients with differences."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from core.ir.errors import ProgramError
from tests.core.onnx.beside_runtime import by_runtime, check_gradient, check_node, one_node
from tests.core.onnx.models import imported, model_of, run


def some(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


X = some(2, 3, 4, 6)
MODES = [
    {"mode": "nearest"},
    {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
    {"mode": "nearest", "nearest_mode": "ceil", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear"},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    {"mode": "linear", "antialias": 1},
    {"mode": "cubic", "cubic_coeff_a": -0.5},
    {"mode": "cubic", "exclude_outside": 1},
]


@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("scales", [[1, 1, 2, 1.5], [1, 1, 0.5, 0.5]])
def test_scales_agree(how, scales):
    inputs = {"x": X, "roi": None, "scales": np.array(scales, "float32")}

    check_node("Resize", inputs, opset=19, constants=("scales",), **how)


@pytest.mark.parametrize("tenths", range(1, 40))
def test_an_axis_gets_the_length_of_its_product_in_float32(tenths):
    x = some(1, 1, 10, 30)
    inputs = {"x": x, "roi": None, "scales": np.array([1, 1, tenths / 10, tenths / 30], "float32")}

    check_node("Resize", inputs, opset=19, constants=("scales",), gradient=False, mode="linear")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", MODES)
def test_sizes_agree(how):
    inputs = {"x": X, "roi": None, "scales": None, "sizes": np.array([2, 3, 7, 4])}

    check_node("Resize", inputs, opset=19, constants=("sizes",), **how)


OPEN = [
    {"mode": mode, "coordinate_transformation_mode": coordinates}
    for mode in ("nearest", "linear")
    for coordinates in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", [*OPEN, {"nearest_mode": "ceil"}, {"nearest_mode": "floor"}])
@pytest.mark.parametrize("scales", [[1, 1, 2, 3], [1, 1, 2, 1.5], [1, 1, 0.5, 2.5]])
def test_scales_of_open_sizes_agree(how, scales):
    inputs = {"x": X, "roi": None, "scales": np.array(scales, "float32")}
    if how.get("coordinate_transformation_mode") == "align_corners" and scales != [1, 1, 2, 3]:
        with pytest.raises(ProgramError, match="cannot be resized in this way"):
            imported(one_node("Resize", inputs, opset=19, constants=("scales",), open_sizes=True, **how))
        return

    check_node("Resize", inputs, opset=19, constants=("scales",), open_sizes=True, **how)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", OPEN)
def test_a_tensor_takes_the_open_sizes_of_another(how):
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **how)
    types = {"x": (TensorProto.FLOAT, ["b", 3, "h", "w"]), "like": (TensorProto.FLOAT, ["b", 3, "H", "W"])}
    model = model_of([helper.make_node("Shape", ["like"], ["sizes"]), node], types, ["y"])
    found = imported(model)
    for h, w in ((7, 4), (2, 12), (5, 1)):
        feeds = {"x": X, "like": some(2, 3, h, w)}
        np.testing.assert_allclose(run(found, feeds)[0], by_runtime(model, feeds)[0], rtol=1e-5, atol=1e-6)
        check_gradient(found, feeds)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tenths", range(1, 40, 3))
def test_an_open_axis_gets_the_length_and_elements_of_a_known_one(tenths):
    inputs = {"x": some(1, 1, 10, 5), "roi": None, "scales": np.array([1, 1, tenths / 10, 2.6], "float32")}
    for how in ({"nearest_mode": "ceil"}, {"mode": "linear"}):
        known, open_ = (
            imported(one_node("Resize", inputs, opset=19, constants=("scales",), open_sizes=o, **how))
            for o in (False, True)
        )
        expected = run(known, [inputs["x"]])[0]
        np.testing.assert_allclose(run(open_, [inputs["x"]])[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_policies_agree(policy):
    inputs = {"x": X, "roi": None, "scales": None, "sizes": np.array([7, 9])}

    check_node(
        "Resize", inputs, opset=19, constants=("sizes",), axes=[2, 3], mode="linear", keep_aspect_ratio_policy=policy
    )


def test_crops_agree():
    inputs = {
        "x": X,
        "roi": np.array([0, 0, 0.2, 0.3, 1, 1, 0.7, 1.2], "float32"),
        "scales": None,
        "sizes": np.array([2, 3, 5, 4]),
    }

    check_node(
        "Resize", inputs, opset=13, constants=("roi", "sizes"), mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.0,
    )  # fmt: skip


@pytest.mark.parametrize("op", ["Upsample", "Resize"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_scales_of_older_opsets_agree(op, mode):
    opset = 9 if op == "Upsample" else 10
    scales = [[1, 1, 2, 3]] if op == "Upsample" else [[1, 1, 2, 3], [1, 1, 0.6, 0.5]]
    for each in scales:
        inputs = {"x": X, "scales": np.array(each, "float32")}
        check_node(op, inputs, opset=opset, constants=("scales",), mode=mode)


@pytest.mark.parametrize("how", MODES[:2])
def test_whole_scales_of_open_sizes_agree(how):
    inputs = {"x": X, "roi": None, "scales": np.array([1, 1, 2, 3], "float32")}

    check_node("Resize", inputs, opset=19, constants=("scales",), open_sizes=True, **how)


def test_cubic_scales_of_open_sizes_are_refused():
    inputs = {"x": X, "roi": None, "scales": np.array([1, 1, 2, 2], "float32")}
    model = one_node("Resize", inputs, opset=19, constants=("scales",), open_sizes=True, mode="cubic")

    with pytest.raises(ProgramError, match="open size"):
        imported(model)


def test_a_given_batch_is_checked_by_the_run():
    inputs = {"x": X, "roi": None, "scales": None, "sizes": np.array([2, 3, 8, 9])}
    model = one_node("Resize", inputs, opset=19, constants=("sizes",), mode="linear")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    found = imported(model)

    assert run(found, [X])[0].shape == (2, 3, 8, 9)
    with pytest.raises(ProgramError, match="cannot have the shape"):
        run(found, [X[:1]])


# --- samples and regions ---------------------------------------------------------------------------------------------


@pytest.mark.sampled(2, each="mode")
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_samples_agree(mode, padding, corners):
    inputs = {"x": X, "grid": some(2, 3, 2, 2, seed=4)}

    check_node("GridSample", inputs, opset=20, mode=mode, padding_mode=padding, align_corners=corners)


@pytest.mark.parametrize("n", [2, 3])
def test_affine_grids_agree(n):
    theta = some(2, n, n + 1)
    size = np.array([2, 3, 4, 5, 6][: n + 2])

    check_node("AffineGrid", {"theta": theta, "size": size}, opset=20, constants=("size",))


BOXES = np.array([[0.3, 0.4, 4.1, 3.2], [1.2, 0.1, 5.3, 2.7]], "float32")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("samples", [0, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_agree(coordinates, samples, mode):
    inputs = {"x": X, "boxes": BOXES, "image": np.array([1, 0])}

    check_node(
        "RoiAlign", inputs, opset=16, output_height=2, output_width=3, sampling_ratio=samples, spatial_scale=0.9,
        coordinate_transformation_mode=coordinates, mode=mode,
    )  # fmt: skip


def test_maxima_of_regions_agree():
    rois = np.array([[0, 0, 0, 4, 3], [1, 1, 1, 5, 2]], "float32")

    check_node("MaxRoiPool", {"x": X, "rois": rois}, opset=21, pooled_shape=[2, 2], gradient=False)


@pytest.mark.parametrize("how", [{}, {"strides": [2, 1], "pads": [1, 0, 0, 2]}, {"dilations": [2, 1]}])
def test_columns_agree(how):
    strides, pads, dilations = (
        how.get(n, d) for n, d in (("strides", [1, 1]), ("pads", [0] * 4), ("dilations", [1, 1]))
    )
    counts = [(m + pads[i] + pads[i + 2] - dilations[i] - 1) // strides[i] + 1 for i, m in enumerate((5, 6))]
    inputs = {"x": some(2, 12, counts[0] * counts[1]), "image": np.array([5, 6]), "block": np.array([2, 2])}

    check_node("Col2Im", inputs, opset=18, constants=("image", "block"), **how)


@pytest.mark.parametrize("open_sizes", [False, True])
@pytest.mark.parametrize("opset, mode", [(6, None), (11, "CRD"), (13, "DCR"), (20, "CRD")])
def test_depth_goes_to_space(opset, mode, open_sizes):
    how = {} if mode is None else {"mode": mode}
    check_node("DepthToSpace", {"x": some(2, 8, 3, 5)}, opset=opset, open_sizes=open_sizes, blocksize=2, **how)


@pytest.mark.parametrize("open_sizes", [False, True])
@pytest.mark.parametrize("opset", [6, 13])
def test_space_goes_to_depth(opset, open_sizes):
    check_node("SpaceToDepth", {"x": some(2, 3, 4, 6)}, opset=opset, open_sizes=open_sizes, blocksize=2)


def test_upsample_of_the_first_opsets_repeats_rows_and_columns():
    x = some(2, 3, 4, 5)
    (found,) = run(imported(one_node("Upsample", {"x": x}, opset=6, height_scale=2.0, width_scale=3.0)), {"x": x})

    np.testing.assert_array_equal(found, x.repeat(2, axis=2).repeat(3, axis=3))


@pytest.mark.parametrize("op, shape", [("DepthToSpace", (1, 6, 2, 2)), ("SpaceToDepth", (1, 2, 3, 4))])
def test_images_that_are_no_multiple_of_the_block_are_refused(op, shape):
    with pytest.raises(ProgramError, match="multiple"):
        imported(one_node(op, {"x": some(*shape)}, opset=13, blocksize=2))
