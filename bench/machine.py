"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

__all__ = ["cores_of", "machine"]


def machine() -> dict[str, Any]:
    """The processor's name, the cores this process may use, and how much else the machine does (load average)."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    vector = next((name for name in ("avx512f", "avx2") if name in facts.get("flags", "").split()), "")
    model = facts.get("model name", platform.machine()).strip()
    kind = ", ".join(f"{name} {facts[name].strip()}" for name in ("cpu family", "model") if name in facts)
    return {
        "processor": f"{model} ({kind})" if kind else model,
        "vector": vector,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }


def cores_of(threads: str) -> list[int]:
    """The cores for "all", or for a number of threads: the last ones of those this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    return cores if threads == "all" else cores[-int(threads) :]
