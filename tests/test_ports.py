"""The ports of services that tests start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.ports import free_port

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.mark.skipif(not RANGE.exists(), reason="this system does not tell which ports it gives to connections")
def test_no_connection_takes_a_port_between_its_choice_and_the_start_of_the_service():
    first, last = map(int, RANGE.read_text().split())
    assert not any(first <= free_port() <= last for _ in range(100))


def test_ports_differ_and_a_port_in_use_is_not_chosen():
    ports = [free_port() for _ in range(100)]
    assert len(set(ports)) == 100
    with socket.create_server(("127.0.0.1", free_port() + 1)) as other:
        assert free_port() != other.getsockname()[1]
