"""The answer that a worker makes from the outputs of a run, called directly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core.compiler.compile import Outputs
from service.worker.running import answer_of

STATE: Any = SimpleNamespace(device="cpu", xp=np, to_host=np.asarray, host_memory=None, answer_bytes=None)
COMPILED: Any = SimpleNamespace(fresh=False, executable=SimpleNamespace(choice=None))


@pytest.mark.parametrize("returned", ["none", "norms", "all"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_finite_is_true_for_all_finite_values_including_the_largest(dtype, returned):
    largest = ml_dtypes.finfo(dtype).max

    for number in (0, largest, -largest, np.inf, -np.inf, np.nan):
        gradient = np.ones((3, 4), dtype)
        gradient[1, 2] = number
        out = Outputs(loss=np.asarray(1.0), gradients={"v": np.ones(2, dtype), "w": gradient[:, ::2]})

        said, _ = answer_of(STATE, COMPILED, out, returned)

        assert said["finite"] == bool(np.isfinite(np.float64(number))), number
