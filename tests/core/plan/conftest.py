"""Memory of machine code that holds no numbers until the code writes them."""

from __future__ import annotations

import numpy as np
import pytest

import core.runtime.memory
from core.ir.aligned import aligned_empty


def poisoned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """As `aligned_empty`; floats in it are NaN, and integers are -1 (`test_open_integers` has others)."""
    array = aligned_empty(shape, dtype)
    array.view(np.uint8)[...] = 0xFF
    return array


@pytest.fixture(autouse=True)
def poisoned_arenas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that reads an element of its arena before it writes it gives NaN."""
    monkeypatch.setattr(core.runtime.memory, "aligned_empty", poisoned)
