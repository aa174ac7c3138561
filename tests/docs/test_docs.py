"""The documentation names all settings, and only settings and files that exist."""

from __future__ import annotations

import ast
import re

from service.settings import Settings
from tests.paths import ROOT


def documented(path: str) -> set[str]:
    return set(re.findall(r"`BACKPASS_([A-Z0-9_]+)`", (ROOT / path).read_text()))


def test_every_setting_is_documented_and_every_documented_setting_exists() -> None:
    assert documented("docs/settings.md") == {name.upper() for name in Settings.model_fields}


def test_the_readme_names_only_settings_that_exist() -> None:
    assert documented("README.md") <= {name.upper() for name in Settings.model_fields}


def test_documented_defaults_are_the_defaults() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    rows = dict(re.findall(r"^\| `BACKPASS_([A-Z0-9_]+)` \| ([^|]+?) \|", page, re.M))
    for name, field in Settings.model_fields.items():
        if field.default_factory is None and isinstance(field.default, int | float):
            shown = rows[name.upper()].split()[0]
            assert (shown == "true" if isinstance(field.default, bool) else float(shown)) == field.default, name


def test_the_service_publishes_every_limit_on_requests(client) -> None:
    page = (ROOT / "docs/settings.md").read_text()
    about_requests = page[page.index("## Time") :]
    names = {name.lower() for name in re.findall(r"^\| `BACKPASS_([A-Z0-9_]+)`", about_requests, re.M)}
    limits = client.get("/v1").json()["limits"]

    assert limits.keys() == names | {"queue_per_worker"}


def test_every_link_between_pages_has_a_target() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_the_page_of_each_room_names_its_files() -> None:
    missing = []
    for page in sorted(ROOT.glob("core/*/__init__.py")) + sorted(ROOT.glob("service/*/__init__.py")):
        room, readme = page.parent, page.parent / "README.md"
        text = (ast.get_docstring(ast.parse(page.read_text())) or "") + (readme.read_text() if readme.exists() else "")
        named = {*re.findall(r"\w+", text), "__init__"}
        missing += [str(file.relative_to(ROOT)) for file in room.glob("*.py") if file.stem not in named]

    assert missing == [], "name these files in the page of their room: its __init__.py or README.md"
