"""The handler of a conversion that crashes, hangs, or takes all memory, as the content of the file says, and whose
process ends once where a file is called so."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from service.models.handlers import onnx
from service.worker.state import Handler, WorkerState

__all__ = ["HANDLERS"]


def converted(
    state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, Any]]:
    path = Path(args["path"])
    if (once := path.with_name("ends once")).exists():
        once.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    match path.read_bytes():
        case b"crash":
            os.abort()
        case b"hang":
            while True:  # as C code that does not look at the deadline
                time.sleep(0.01)
        case b"memory":
            held = [np.ones(2**24) for _ in range(10_000)]
            return {"held": len(held)}, {}
        case b"defect":
            raise RuntimeError("a defect")
    return onnx(state, args, tensors)


HANDLERS: dict[str, Handler] = {"onnx": converted}
