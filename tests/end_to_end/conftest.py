"""Fixtures: a running service for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backpass_client import Service
from tests.service.conftest import serve


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(tmp_path_factory.mktemp("data"), workers=2) as served:
        yield served.url


@pytest.fixture(scope="module")
def service(url: str) -> Iterator[Service]:
    with Service(url) as service:
        yield service
