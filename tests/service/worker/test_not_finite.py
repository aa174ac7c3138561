"""`require_finite` names the value that is not finite."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from core.compiler.compile import Outputs
from core.ir.errors import ExecutionError
from service.worker.finite import judged
from service.worker.state import WorkerState


class OnCpu:
    """The part of a worker's state that a judgement reads."""

    xp = np


FINE, WRONG = np.ones(2), np.array([1.0, np.inf])


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"loss": np.array(np.nan), "fetched": {"y": WRONG}}, "the loss"),
        ({"loss": np.array(1.0), "fetched": {"x": FINE, "y": WRONG, "z": WRONG}}, "the fetched value 'y'"),
        ({"loss": np.array(1.0), "gradients": {"w": FINE, "b": WRONG}}, "the gradient of 'b'"),
        ({"loss": np.array(1.0), "fetched": {"y": WRONG}, "scaling": {"loss_scale": FINE}}, "the fetched value 'y'"),
    ],
)
@pytest.mark.parametrize("with_norms", [False, True])
def test_the_first_value_that_is_not_finite_is_named(members: dict[str, Any], named: str, with_norms: bool) -> None:
    state = cast("WorkerState", OnCpu())

    with pytest.raises(ExecutionError, match=f"^{named} is not finite") as raised:
        judged(state, Outputs(**members), with_norms=with_norms, require_finite=True)

    assert raised.value.code == "not_finite"
