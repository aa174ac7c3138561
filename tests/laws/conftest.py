"""The laws hold for the arrangement of large arrays, too, which their small arrays would not have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.plan import arena, freeing, narrow


@pytest.fixture(autouse=True, scope="package")
def small_arrays_as_large_ones() -> Iterator[None]:
    """Plans replace arrays, free them early and narrow what crosses memory, whatever their sizes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (arena, freeing, narrow):
            patch.setattr(module, "LEAST_BYTES", 0)
        yield
