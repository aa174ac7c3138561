"""The handler of conversion processes, which run `service.worker.main`. They keep no state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from service.datasets.convert import assembled, convert
from service.datasets.options import Limits, Options
from service.objects import Objects
from service.problems import HttpProblem
from service.worker.state import Handler, WorkerState

__all__ = ["HANDLERS"]

pa.set_cpu_count(1)  # each thread would take a stack from the memory of the process
pa.set_io_thread_count(1)


def ingest(
    state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert a file. args: path, or url, keys and sha256 of stored parts; scratch, options, limits.

    The result is empty, or a `problem`.
    """
    scratch = Path(args["scratch"])
    try:
        path = Path(args["path"]) if args.get("path") else None
        if path is None:
            path = assembled(Objects(args["url"]), args["keys"], args["sha256"], scratch)
        convert(path, Options(**args["options"]), scratch, Limits(**args["limits"]))
    except HttpProblem as problem:
        errors = [(each.pointer, each.code, each.detail, each.location) for each in problem.errors]
        return {"problem": (problem.code, problem.detail, problem.status, errors)}, {}
    except (MemoryError, pa.ArrowMemoryError):
        detail = "a part of the file needs more memory than its conversion may take; use smaller row groups or rows"
        return {"problem": ("limit-exceeded", detail, 422, [])}, {}
    except OSError as error:
        return {"error": (error.errno, error.strerror or str(error))}, {}
    return {}, {}


HANDLERS: dict[str, Handler] = {"ingest": ingest}
