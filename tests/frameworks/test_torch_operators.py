"""`from_torch`: operators that torch's own ONNX exporter translates wrongly, compared with torch, or refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backpass_client as bp

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("onnxscript", reason="needs onnxscript, which exports models of PyTorch")
nn, functional = torch.nn, torch.nn.functional

from tests.frameworks.beside_torch import assert_as_in_torch  # noqa: E402

pytestmark = pytest.mark.slow

tensor = torch.tensor


# --- embeddings ----------------------------------------------------------------------------------------------------


def test_the_row_of_the_padding_has_no_gradient(service: bp.Service):
    assert_as_in_torch(service, nn.Embedding(4, 2, padding_idx=0), tensor([[0, 1], [0, 3]]))


def test_a_padding_may_be_counted_from_the_end(service: bp.Service):
    lookup = lambda table, index: functional.embedding(index, table, padding_idx=-1)

    assert_as_in_torch(service, lookup, torch.randn(5, 3), tensor([4, 0, 4]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_leave_out_the_padding(mode: str, service: bp.Service):
    assert_as_in_torch(service, nn.EmbeddingBag(7, 3, mode=mode, padding_idx=2), tensor([[1, 2], [6, 2]]))


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize(
    "feature", [{"scale_grad_by_freq": True}, {"max_norm": 1.0}], ids=lambda each: next(iter(each))
)
def test_embeddings_that_scale_are_refused(layer: Any, feature: dict[str, Any], service: bp.Service):
    module = nn.Sequential(layer(4, 2, **feature))

    with pytest.raises(bp.BackpassError, match=f"{next(iter(feature))} of an embedding.* \\(at 0\\)"):
        bp.from_torch(module, tensor([[1, 1]]), service)


# --- poles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "deviation",
    [
        torch.std,
        lambda x: torch.std(x, 1),
        lambda x: torch.std(x, (0, 1), correction=0, keepdim=True),
        lambda x: x.std(unbiased=False),
        lambda x: x.std(-1, unbiased=True, keepdim=True),
    ],
    ids=["all", "an axis", "two axes", "biased", "kept"],
)
@pytest.mark.parametrize("x", [torch.full((2, 4), 3.0), torch.randn(3, 5)], ids=["equal numbers", "others"])
def test_a_standard_deviation_of_zero_has_gradient_0(deviation: Any, x: Any, service: bp.Service):
    assert_as_in_torch(service, deviation, x)


def test_the_deviation_of_a_batch_of_any_size_has_a_gradient_where_it_is_zero(service: bp.Service):
    class Deviation(nn.Module):
        def forward(self, x):
            return torch.std(x, 0).sum()

    batch = torch.export.Dim("batch", min=2)
    program = bp.from_torch(Deviation(), torch.randn(3, 2), service, dynamic_shapes={"x": {0: batch}})

    for x in (np.full((5, 2), 3.0, "float32"), np.random.default_rng(0).normal(size=(4, 2)).astype("float32")):
        leaf = torch.tensor(x, requires_grad=True)
        torch.std(leaf, 0).sum().backward()
        found = program.gradients(feeds={"x": x}, targets=list(program.outputs), inputs=["x"])
        np.testing.assert_allclose(found.gradients["x"], leaf.grad.numpy(), 1e-4, 1e-6)


def test_the_quotient_of_sine_and_argument_is_smooth_at_zero(service: bp.Service):
    assert_as_in_torch(service, torch.sinc, tensor([-1.5, -1e-3, 0.0, 0.25, 2.0]))


def test_the_angle_of_a_point_has_a_gradient_on_both_axes(service: bp.Service):
    y, x = tensor([0.0, 0.0, 2.0, -1.0, 1.0, -3.0]), tensor([1.0, -1.0, 0.0, 0.0, -2.0, 0.5])

    assert_as_in_torch(service, torch.atan2, y, x)
    assert_as_in_torch(service, lambda y: torch.atan2(y[:, None] + 4, x), y)


@pytest.mark.parametrize(
    ("function", "inputs"),
    {
        "hypot": (torch.hypot, [[3.0, 0.0, 1e-25], [4.0, 2.0, 1e-25]]),
        "logaddexp": (torch.logaddexp, [[-200.0, 5.0, 3.0], [-200.0, 300.0, 3.0]]),
        "xlogy": (torch.xlogy, [[0.0, 0.0, 2.0], [0.5, 2.0, 3.0]]),
        "lgamma": (torch.lgamma, [[-2.5, 0.5, 2.0, 30.0]]),
        "digamma": (torch.digamma, [[-2.5, 0.5, 2.0, 30.0]]),
        "erfinv": (torch.erfinv, [[-0.99, 0.0, 0.5]]),
        "cumprod": (lambda x: torch.cumprod(x, 1), [[[0.0, 2.0, 3.0], [2.0, 0.0, 0.0]]]),
        "logcumsumexp": (lambda x: torch.logcumsumexp(x, -1), [[[-100.0, 0.0, 100.0], [3.0, 1.0, 2.0]]]),
    }.values(),
    ids=lambda each: getattr(each, "__name__", ""),
)  # fmt: skip
def test_functions_that_onnx_lacks_are_those_of_the_service(function: Any, inputs: Any, service: bp.Service):
    assert_as_in_torch(service, function, *map(tensor, inputs))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
def test_functions_that_onnx_lacks_keep_the_dtype(dtype: Any, service: bp.Service):
    x, y = tensor([0.5, 1.0, 2.0], dtype=dtype), tensor([1.0, 0.25, 3.0], dtype=dtype)

    assert_as_in_torch(service, lambda x, y: torch.xlogy(x.detach(), y), x, y, rtol=1e-2)


# --- losses --------------------------------------------------------------------------------------------------------

WEIGHT = tensor([1.0, 2.0, 0.5, 0.3])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_cross_entropy_takes_probabilities(reduction: str, weight: Any, smoothing: float, service: bp.Service):
    loss = lambda x, t: functional.cross_entropy(x, t, weight, reduction=reduction, label_smoothing=smoothing)

    assert_as_in_torch(service, loss, torch.randn(3, 4, 2), torch.randn(3, 4, 2).softmax(1))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_cross_entropy_smooths_labels(reduction: str, weight: Any, service: bp.Service):
    loss = lambda x, t: functional.cross_entropy(x, t, weight, reduction=reduction, label_smoothing=0.3)

    assert_as_in_torch(service, loss, torch.randn(3, 4), tensor([1, -100, 3]))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_cross_entropy_takes_one_row(smoothing: float, service: bp.Service):
    loss = lambda x, t: functional.cross_entropy(x, t, label_smoothing=smoothing)

    assert_as_in_torch(service, loss, torch.randn(4), tensor(2))


def test_the_classes_of_a_multilabel_margin_loss_end_at_a_negative_number(service: bp.Service):
    assert_as_in_torch(
        service,
        functional.multilabel_margin_loss,
        torch.randn(3, 4),
        tensor([[1, 2, -1, 0], [3, -1, 2, 2], [-1, 0, 0, 0]]),
    )


def test_losses_of_large_logits_are_finite(service: bp.Service):
    loss = lambda x, t: functional.binary_cross_entropy_with_logits(x, t, pos_weight=tensor(3.0), reduction="none")

    assert_as_in_torch(service, loss, tensor([-200.0, -100.0, 0.0, 3.0, 100.0]), tensor([0.0, 1.0, 0.3, 1.0, 0.0]))
    assert_as_in_torch(service, functional.logsigmoid, tensor([-109.0, -1.0, 0.0, 200.0]))


# --- pooling, scattering, images -----------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "divisor_override": lambda x: functional.avg_pool2d(x, 3, stride=2, padding=1, divisor_override=2),
    "divisor_override, 3 axes": lambda x: functional.avg_pool3d(x, (1, 2, 2), divisor_override=3),
    "upsampling between corners": lambda x: functional.interpolate(
        x, scale_factor=1.6, mode="bilinear", align_corners=True
    ),
    "bicubic upsampling between corners": lambda x: functional.interpolate(
        x, scale_factor=1.4, mode="bicubic", align_corners=True
    ),
    "nearest, factor 0.4": lambda x: functional.interpolate(x, scale_factor=0.4),
    "nearest, factor 1.3": lambda x: functional.interpolate(x, scale_factor=(1.3, 2)),
    "nearest, a size": lambda x: functional.interpolate(x, size=(11, 16)),
    "a size that single precision misses": lambda x: functional.interpolate(
        x, scale_factor=(1.0, 0.7), mode="bilinear"
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_images_are_pooled_and_resized_as_in_torch(name: str, service: bp.Service):
    assert_as_in_torch(service, FUNCTIONS[name], torch.randn(1, 2, 7, 10 if "single" in name else 8))


def test_nearest_resizing_of_open_sizes_repeats(service: bp.Service):
    class Doubled(nn.Module):
        def forward(self, x: Any) -> Any:
            return functional.interpolate(x, scale_factor=2)

    height = torch.export.Dim("height", min=2)
    program = bp.from_torch(Doubled(), torch.randn(1, 1, 4, 3), service, dynamic_shapes={"x": {2: height}})
    x = torch.randn(1, 1, 5, 3)

    found = program.gradients(
        feeds={"x": x.numpy()}, targets=program.outputs, inputs=["x"], fetch=program.outputs
    ).fetched[program.outputs[0]]

    assert found.tolist() == Doubled()(x).tolist()


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("in_place", [False, True])
def test_scattered_means_are_those_of_torch(include_self: bool, in_place: bool, service: bp.Service):
    index = tensor([[0, 0], [1, 1], [2, 0]])

    def scatter(x: Any, source: Any) -> Any:
        x = x * 2
        method = x.scatter_reduce_ if in_place else x.scatter_reduce
        changed = method(1, index, source, "mean", include_self=include_self)
        return x + changed

    assert_as_in_torch(service, scatter, torch.randn(3, 4), torch.randn(3, 2))


@pytest.mark.parametrize(
    ("module", "shape", "feature"),
    [
        (nn.AvgPool2d(2, divisor_override=3, ceil_mode=True), (1, 2, 5, 5), "divisor_override with ceil_mode"),
        (nn.LSTM(3, 4, proj_size=2), (5, 2, 3), "proj_size of an LSTM"),
    ],
    ids=["pooling", "LSTM"],
)
def test_features_without_a_counterpart_are_refused(module: Any, shape: Any, feature: str, service: bp.Service):
    with pytest.raises(bp.BackpassError, match=f"{feature}.* \\(at 0\\)"):
        bp.from_torch(nn.Sequential(module), torch.randn(shape), service)


# --- attention, precision ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(), (2, 1)], ids=["one mask", "a mask for each batch"])
def test_queries_whose_mask_hides_everything_get_zeros(lead: tuple[int, ...], service: bp.Service):
    mask = torch.randn(*lead, 3, 4)
    mask[..., 1, :] = -math.inf
    mask[..., 0, 2] = -math.inf
    attention = lambda q, k, m: functional.scaled_dot_product_attention(q, k, 2 * k, attn_mask=m)

    assert_as_in_torch(service, attention, torch.randn(2, 2, 3, 5), torch.randn(2, 2, 4, 5), mask)


def test_numbers_in_a_module_of_double_precision_are_not_rounded(service: bp.Service):
    attention = lambda q: functional.scaled_dot_product_attention(q, q, q, scale=0.3)
    numbers = lambda x: (x * 0.3 + 0.1).clamp(max=0.7) / 0.9
    x = torch.randn(1, 4, 2, dtype=torch.float64)

    assert_as_in_torch(service, attention, x, rtol=1e-12)
    assert_as_in_torch(service, numbers, x, rtol=1e-12)
