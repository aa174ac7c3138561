"""The columns of stored datasets in a worker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core.ir.errors import ExecutionError
from service.objects import Objects
from service.objects.tensor_file import chunks
from service.worker.columns import stored


def test_a_worker_reads_a_dataset_that_another_process_stored_in_a_remote_store(tmp_path: Path):
    """The job of the process that made the copy at its submission may go on in another process, on another machine."""
    url = f"memory://{tmp_path.name}"
    Objects(url).write("datasets/abc", chunks({"x": np.arange(3)}, {}))
    polled: list[Any] = []
    settings = {"data_dir": str(tmp_path), "objects_url": url}
    state: Any = SimpleNamespace(
        datasets=None, settings=settings, stop=SimpleNamespace(check=lambda: polled.append(None))
    )

    found = stored(state).columns(state, "datasets/abc")

    assert found["x"].tolist() == [0, 1, 2]
    assert polled
    with pytest.raises(ExecutionError, match="cannot be read: "):
        stored(state).columns(state, "datasets/missing")
