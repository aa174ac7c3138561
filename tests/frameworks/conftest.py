"""Fixtures: one running service for the tests of frameworks, and torch with a fixed seed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from backpass_client import Service
from tests.service.conftest import serve


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(Path(tmp_path_factory.mktemp("frameworks")), workers=1) as served:
        yield served.url


@pytest.fixture(scope="module")
def service(url: str) -> Iterator[Service]:
    with Service(url) as service:
        yield service


@pytest.fixture(autouse=True)
def _seed() -> None:
    if find_spec("torch") is not None:
        import torch

        torch.manual_seed(0)
