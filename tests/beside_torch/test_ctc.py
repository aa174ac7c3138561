"""`ctc_loss` and PyTorch's F.ctc_loss: equal losses, and gradients whose difference a `log_softmax` cancels."""

from __future__ import annotations

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.runtime.reference import execute
from tests.beside_torch.installed import MISSING, F, torch
from tests.core.ops.test_ctc import CASES, loss_and_arguments

pytestmark = [pytest.mark.slow, pytest.mark.skipif(torch is None, reason=MISSING)]
POSSIBLE = sorted(case for case in CASES if "without a path" not in case)


def in_torch(args, blank, normalised, **options):
    x, label, times, sizes = map(torch.tensor, args)
    x.requires_grad_()
    log_probs = F.log_softmax(x, 2) if normalised else x
    loss = F.ctc_loss(log_probs, label, times, sizes, blank=blank, **options)
    return loss.detach().numpy(), torch.autograd.grad(loss.sum(), x)[0].numpy()


def in_backpass(block, args):
    seed = np.ones(block.result_types[0].shape)
    return execute(optimize(vjp(block, [block.params[0]])), [*args, seed])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("case", sorted(CASES))
def test_losses_and_gradients_by_logits_equal_pytorchs(case, reduction):
    options = {"reduction": reduction, "zero_infinity": True}
    block, args = loss_and_arguments(case, normalised=True, **options)

    loss, slope = in_backpass(block, args)

    wanted, wanted_slope = in_torch(args, CASES[case][3], True, **options)
    np.testing.assert_allclose(loss, wanted, rtol=1e-11)
    np.testing.assert_allclose(slope, wanted_slope, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", POSSIBLE)
def test_pytorch_adds_the_probability_of_each_element_to_its_gradient_by_log_probs(case):
    block, args = loss_and_arguments(case, reduction="sum")
    within = np.arange(5)[:, None] < args[2]

    _, slope = in_backpass(block, args)

    _, wanted = in_torch(args, CASES[case][3], False, reduction="sum")
    np.testing.assert_allclose(slope + np.exp(args[0]) * within[:, :, None], wanted, rtol=1e-9, atol=1e-12)
