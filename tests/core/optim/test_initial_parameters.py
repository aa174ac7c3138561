"""Initial values are drawn in pieces, so that the call that draws them can be stopped."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest

from core.ir import TensorType, Variable
from core.ir.errors import ExecutionError
from core.ir.stop import watched_by
from core.optim import initializers
from core.optim.initializers import initial_parameters

KINDS = ["uniform", "normal", "glorot_uniform", "he_normal", "unit_rows"]


class StopsAfter:
    """A watch that stops its transformation at poll number `polls`."""

    def __init__(self, polls: int) -> None:
        self.left = polls

    def poll(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ExecutionError("the call was stopped", "canceled")

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()


def drawn(kind: str, dtype: str = "float32") -> np.ndarray:
    w = Variable("w", TensorType((30, 70), dtype), "parameter")
    return initial_parameters([w], {"w": {"type": kind}}, seed=4)["w"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_have_the_numbers_of_the_whole(monkeypatch, kind, dtype):
    whole = drawn(kind, dtype)
    monkeypatch.setattr(initializers, "PIECE", 97)

    assert drawn(kind, dtype).tobytes() == whole.tobytes()
    assert whole.shape == (30, 70) and len(np.unique(whole)) > 100


def test_drawing_stops_between_two_pieces(monkeypatch):
    monkeypatch.setattr(initializers, "PIECE", 97)

    with watched_by(StopsAfter(5)), pytest.raises(ExecutionError, match="stopped"):
        drawn("normal")
