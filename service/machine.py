"""The machine or container that the service runs on: its cores, its memory and its ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_cores", "available_memory", "check_port"]


def available_cores() -> int:
    """Number of cores this process may use; a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0))


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this process and its children may use: those of the machine, or of its control group.

    root: the directory that contains proc and sys.
    """
    return min(_machine_memory(root), *_group_limits(root))


def check_port(host: str, port: int) -> None:
    """Raises OSError if this process cannot listen there. Port 0 stands for any free one."""
    family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(family[0], family[1]) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(family[4])


def _machine_memory(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) * 2**10
    raise OSError("/proc/meminfo does not list MemTotal")


def _group_limits(root: Path) -> Iterator[int]:
    """The limits of the control group of this process and of the groups around it, version 1 and version 2."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        groups = []
    mounted = root / "sys/fs/cgroup"
    yield 2**63 - 1
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _limits_along(mounted, path, ("memory.max", "memory.high"))
        elif "memory" in controllers.split(","):
            yield from _limits_along(mounted / "memory", path, ("memory.limit_in_bytes",))


def _limits_along(mounted: Path, path: str, names: tuple[str, ...]) -> Iterator[int]:
    """The limits in the files `names` of the group at `path` and of all groups above it.

    In a container the path may be that of the host, where only the root of the mount exists.
    """
    group = mounted / path.lstrip("/")
    while True:
        for name in names:
            try:
                text = (group / name).read_text().strip()
            except OSError:
                continue
            if text.isdigit():  # "max" is no limit
                yield int(text)
        if group == mounted or mounted not in group.parents:
            return
        group = group.parent
