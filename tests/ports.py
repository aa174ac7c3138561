"""Loopback ports for services that tests start."""

from __future__ import annotations

import itertools
import os
import random
import socket

__all__ = ["free_port"]

_FIRST, _SHARE = 10_000, 700
"""The ports lie below those that the kernel gives to connections (Linux: from 32,768): one of these may become the near
end of a connection between its choice and the start of the service. Each process of a run has a share of its own."""


def _candidates() -> itertools.cycle[int]:
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 30
    first = _FIRST + process * _SHARE
    begin = random.SystemRandom().randrange(_SHARE)  # another run of the tests may be at work
    return itertools.cycle([*range(first + begin, first + _SHARE), *range(first, first + begin)])


_ports = _candidates()


def free_port() -> int:
    """A port of 127.0.0.1 that nothing uses, and that this run does not choose again soon."""
    for port in itertools.islice(_ports, _SHARE):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no port of {_SHARE} is free")
