"""The machine of a measurement."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

__all__ = ["cores_of", "machine"]


def machine() -> dict[str, Any]:
    """The processor's name, the cores this process may use, and the other work on the machine (load average).

    Prints a warning if the load is high.
    """
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    vector = next((name for name in ("avx512f", "avx2") if name in facts.get("flags", "").split()), "")
    model = facts.get("model name", platform.machine()).strip()
    kind = ", ".join(f"{name} {facts[name].strip()}" for name in ("cpu family", "model") if name in facts)
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 2:
        print(
            f"The machine is busy: a load of {load:.1f} on {cores} cores. Threads that wait for each other, as in all"
        )
        print("measurements with more than one, lose most by that.")
    return {
        "processor": f"{model} ({kind})" if kind else model,
        "vector": vector,
        "cores": cores,
        "load": round(load, 1),
        "python": platform.python_version(),
    }


def cores_of(threads: str) -> list[int]:
    """The cores for "all", or for a number of threads: the last ones of those this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    return cores if threads == "all" else cores[-int(threads) :]
