"""Handlers of conversion processes, of which the file `crash` ends the process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from service.datasets.handlers import ingest
from service.worker.state import WorkerState

__all__ = ["HANDLERS"]


def crashing(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> tuple[dict, dict]:
    if Path(args["path"]).read_bytes() == b"crash":
        os.abort()
    return ingest(state, args, tensors)


HANDLERS = {"ingest": crashing}
