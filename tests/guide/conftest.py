"""Fixtures: the documentation site, and its pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guide.build import built_site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory)


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[str, str]:
    """Path in the site -> HTML."""
    return {str(path.relative_to(site)): path.read_text() for path in sorted(site.rglob("*.html"))}
