"""The workers to start: one for each GPU, or several for the CPU cores. Does not load CUDA into this process."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from service.engine.protocol import NoCapacity
from service.settings import Settings

__all__ = ["WorkerPlan", "lacking", "plan_workers", "visible_gpus"]

THREAD_VARIABLES = (
    "BACKPASS_THREADS",  # threads of compiled code and of the compiler
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

NO_GPU = "BACKPASS_DEVICE is cuda, but no GPU is visible here"


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One worker to start: its device, and the environment variables to set on top of the service's own."""

    device: str
    environment: Mapping[str, str] = field(default_factory=dict)


def lacking(settings: Settings) -> str | None:
    """A sentence about the part that the setting `device` needs and this machine lacks; None if it has all."""
    if settings.device != "cuda":
        return None
    if not visible_gpus():
        return NO_GPU
    if importlib.util.find_spec("cupy") is None:
        return "BACKPASS_DEVICE is cuda, but cupy is not installed: pip install 'backpass[gpu]'"
    return None


def plan_workers(settings: Settings) -> list[WorkerPlan]:
    """One plan for each worker slot. Raises NoCapacity if the settings require CUDA and no GPU is visible."""
    gpus = [] if settings.device == "cpu" else visible_gpus()
    if settings.device == "cuda" and not gpus:
        raise NoCapacity(NO_GPU)
    if gpus and (settings.device == "cuda" or importlib.util.find_spec("cupy") is not None):
        threads = _thread_limits(settings.threads_per_worker(len(gpus)))
        return [WorkerPlan("cuda", {"CUDA_VISIBLE_DEVICES": gpu, **threads}) for gpu in gpus]
    # Without a limit each worker would start one thread per core, and the workers would compete for the cores.
    threads = _thread_limits(settings.threads_per_worker(settings.workers))
    return [WorkerPlan("cpu", {"CUDA_VISIBLE_DEVICES": "", **threads}) for _ in range(settings.workers)]


def _thread_limits(threads: int) -> dict[str, str]:
    return {variable: str(threads) for variable in THREAD_VARIABLES}


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, named as in CUDA_VISIBLE_DEVICES."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    program = shutil.which("nvidia-smi")
    if program is None:
        nodes = Path("/dev").glob("nvidia[0-9]*")
        return [str(index) for index, _ in enumerate(sorted(nodes))]
    query = [program, "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (subprocess.SubprocessError, OSError):  # nvidia-smi is installed, but the driver does not work
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]
