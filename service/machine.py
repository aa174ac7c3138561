"""The machine or container that the service runs on: its cores, its memory and its ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_cores", "available_memory", "available_processes", "check_port", "place", "reaching"]


def available_cores(root: Path = Path("/")) -> int:
    """Number of cores this process and its children may use at a time: those of its affinity, or of its control group.

    A limit of computing time, such as `docker run --cpus 1.5`, is rounded up: one thread less would not use it up.
    root: the directory that contains proc and sys.
    """
    return min(len(os.sched_getaffinity(0)), *_group_cores(root))


def available_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this process and its children may use: those of the machine, or of its control group.

    root: the directory that contains proc and sys.
    """
    return min(_machine_memory(root), *_group_limits(root))


def available_processes(root: Path = Path("/")) -> int | None:
    """Number of processes and threads that the control group of this process may have; None without a limit."""
    limits = [_text(group / "pids.max") for _, group in _groups(root, "pids")]
    return min((int(each) for each in limits if each.isdigit()), default=None)


def check_port(host: str, port: int) -> None:
    """Raises OSError if this process cannot listen there. Port 0 stands for any free one."""
    family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(family[0], family[1]) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(family[4])


def reaching(host: str) -> str:
    """An address of this machine that reaches a server which listens on `host`."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def place(host: str, port: int) -> str:
    """The address and port as in a URL: `[::1]:8080`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _machine_memory(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) * 2**10
    raise OSError("/proc/meminfo does not list MemTotal")


def _group_limits(root: Path) -> Iterator[int]:
    """The limits of memory of the control group of this process and of the groups around it."""
    yield 2**63 - 1
    for version, group in _groups(root, "memory"):
        for name in ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",):
            text = _text(group / name)
            if text.isdigit():  # "max" is no limit
                yield int(text)


def _group_cores(root: Path) -> Iterator[int]:
    """The limits of computing time of these groups, in cores."""
    yield 2**31
    for version, group in _groups(root, "cpu"):
        if version == 2:
            quota, _, period = _text(group / "cpu.max").partition(" ")
        else:
            quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):  # "max" and -1 are no limits
            yield max(1, -(-int(quota) // int(period)))


def _groups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """(version of control groups, directory) of the group of this process, and of all groups above it.

    In a container the path may be that of the host, where only the root of the mount exists.
    """
    mounted = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from ((2, each) for each in _upwards(mounted, path))
        elif controller in controllers.split(","):
            both = mounted / controllers  # as cpu,cpuacct; cpu is usually a link to it
            yield from ((1, each) for each in _upwards(both if both.is_dir() else mounted / controller, path))


def _upwards(mounted: Path, path: str) -> Iterator[Path]:
    """The directory of the group at `path`, and those above it up to the mount."""
    group = mounted / path.lstrip("/")
    while True:
        yield group
        if group == mounted or mounted not in group.parents:
            return
        group = group.parent


def _text(path: Path) -> str:
    """The content of a file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
