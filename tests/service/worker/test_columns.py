"""The columns of stored datasets in a worker."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core.ir.errors import ExecutionError
from service.objects import DamagedFile
from service.objects.tensor_file import chunks
from service.worker import columns
from service.worker.columns import stored
from tests.service.prepared import prepared


def test_a_worker_reads_a_dataset_that_another_process_stored_in_a_remote_store(tmp_path: Path):
    """The job of the process that made the copy at its submission may go on in another process, on another machine."""
    url = f"memory://{tmp_path.name}"
    prepared(url).write("datasets/abc", chunks({"x": np.arange(3)}, {}))
    polled: list[Any] = []
    settings = {"data_dir": str(tmp_path), "objects_url": url}
    state: Any = SimpleNamespace(
        datasets=None, settings=settings, stop=SimpleNamespace(check=lambda: polled.append(None))
    )

    found = stored(state).columns(state, "datasets/abc")

    assert found["x"].tolist() == [0, 1, 2]
    assert polled
    with pytest.raises(ExecutionError, match="is missing") as missing:
        stored(state).columns(state, "datasets/missing")
    assert missing.value.code == "dataset_unavailable"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "full"), "storage_full"),
        (ConnectionError("no answer"), "storage_unavailable"),
        (DamagedFile("other content"), "dataset_unavailable"),
    ],
)
def test_a_store_that_does_not_answer_is_no_lost_dataset(tmp_path: Path, monkeypatch, error, code):
    def fails(*given: Any, **named: Any) -> Path:
        raise error

    monkeypatch.setattr(columns, "local_file", fails)
    settings = {"data_dir": str(tmp_path), "objects_url": ""}
    state: Any = SimpleNamespace(datasets=None, settings=settings, stop=SimpleNamespace(check=lambda: None))

    with pytest.raises(ExecutionError) as raised:
        stored(state).columns(state, "datasets/abc")

    assert raised.value.code == code
