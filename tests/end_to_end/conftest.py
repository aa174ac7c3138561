"""Fixtures: a running service for each test module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backpass_client import Service
from examples.demo import running_service
from tests.ports import free_port


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_service(device="cpu", workers="2", port=str(free_port())) as address:
        yield address


@pytest.fixture(scope="module")
def service(url: str) -> Iterator[Service]:
    with Service(url) as service:
        yield service
