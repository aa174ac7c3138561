"""The documentation site: it builds, its links have targets, nothing comes from other hosts, nothing is missing."""

from __future__ import annotations

import html
import json
import posixpath
import re
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import backpass_client as bp
from service.problems.types import CODES
from tests.paths import ROOT

API = json.loads((ROOT / "openapi/openapi.json").read_text())
ROUTES = [(method, path) for path, methods in API["paths"].items() for method in methods]
LINK = re.compile(r'<(?:a|link|script|img|iframe|source)\b[^>]*?\s(?:href|src)="([^"]*)"')
ID = re.compile(r'\s(?:id|name)="([^"]+)"')
LOADED = re.compile(r'<(?:link|script|img|iframe|source|object|embed)\b[^>]*?\s(?:href|src|data|srcset)="([^"]*)"')
TAG = re.compile(r"<[^>]*>")


def after(page: str, heading: str) -> str:
    """The part of a page from `heading` to the next heading of the same level."""
    begin = page.index(heading)
    end = page.find(heading[:4], begin + 1)
    return page[begin : end if end > 0 else None]


def text_of(page: str) -> str:
    """The text of the article of a page."""
    article = page[page.index("<article") : page.index("</article>")]
    return html.unescape(TAG.sub("", article))


def target_of(site: Path, page: str, link: str) -> tuple[str, str] | None:
    """The (file of the site, anchor) that a link on `page` leads to; None for another host."""
    parts = urlsplit(html.unescape(link))
    if parts.scheme or parts.netloc:
        return None
    path = unquote(parts.path)
    joined = posixpath.join("/guide", posixpath.dirname(page), path) if path else f"/guide/{page}"
    target = posixpath.relpath(joined, "/guide")
    if (site / target).is_dir():
        target = posixpath.normpath(posixpath.join(target, "index.html"))
    return target, unquote(parts.fragment)


def test_every_link_and_anchor_inside_of_the_site_has_a_target(site: Path, pages: dict[str, str]) -> None:
    anchors = {name: {html.unescape(each) for each in ID.findall(page)} for name, page in pages.items()}
    wrong, followed = set(), 0
    for name, page in pages.items():
        for link in set(LINK.findall(page)):
            if (found := target_of(site, name, link)) is not None:
                target, anchor = found
                has_anchor = not anchor or target not in pages or anchor in anchors[target]
                if not (site / target).is_file() or not has_anchor:
                    wrong.add((name, link))
                followed += 1

    assert not wrong, sorted(wrong)[:20]
    assert followed > 5000


def test_no_page_loads_anything_from_another_host_or_has_scripts_and_styles_inside(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        assert not [each for each in LOADED.findall(page) if urlsplit(each).netloc], name
        assert not re.findall(r"<script(?![^>]* src=)(?![^>]* type=\"application/json\")", page), name
        assert "<style" not in page, name
        assert not re.findall(r"<[a-z][^<>]*\s(?:style|on[a-z]+)=\"[^\"]*\"", page), name


def test_no_style_sheet_loads_anything_from_another_host(site: Path) -> None:
    for path in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?(?:https?:)?//|@import", path.read_text()), path


def test_every_route_has_an_entry_with_its_answers(pages: dict[str, str]) -> None:
    for path, methods in API["paths"].items():
        for method, operation in methods.items():
            page = pages[f"api/{operation['tags'][0]}/index.html"]
            entry = after(page, f'<h2 id="{operation["operationId"]}">')
            found = html.unescape(TAG.sub("", entry))
            assert f"{method.upper()} {path}" in found
            assert operation["summary"] in found
            assert all(f"\n{status}\n" in found for status in operation["responses"]), (path, method)
            assert "curl -s" in found


def test_every_type_has_its_members(pages: dict[str, str]) -> None:
    page = pages["api/types/index.html"]
    for name, schema in API["components"]["schemas"].items():
        entry = after(page, f'<h2 id="{name}">')
        assert all(f"<code>{member}</code>" in entry for member in schema.get("properties", ())), name


def test_every_problem_code_has_its_status_and_meaning(pages: dict[str, str]) -> None:
    page = pages["api/problems/index.html"]
    for code, kind in CODES.items():
        entry = after(page, f'<h2 id="{code}">')
        found = " ".join(html.unescape(TAG.sub("", entry)).split())
        assert f"Status {' or '.join(map(str, kind.statuses))}" in found
        assert kind.meaning.replace("`", "") in found
        assert kind.remedy.replace("`", "") in found


def commands(page: str) -> list[str]:
    blocks = re.findall(r'<div class="highlight"><pre>.*?<code>(.*?)</code></pre>', page, re.S)
    return [html.unescape(TAG.sub("", each)) for each in blocks]


@pytest.mark.parametrize("tag", [each["name"] for each in API["tags"]])
def test_each_command_names_a_route_and_has_json_that_is_valid(pages: dict[str, str], tag: str) -> None:
    found = []
    for command in commands(pages[f"api/{tag}/index.html"]):
        words = shlex.split(command)
        address = next(word for word in words if word.startswith("http://127.0.0.1:8080/"))
        posts = "-d" in words and "-X" not in words
        method = (
            words[words.index("-X") + 1] if "-X" in words else "HEAD" if "-I" in words else "POST" if posts else "GET"
        )
        path = urlsplit(address).path
        matched = [
            (each, route) for each, route in ROUTES
            if each == method.lower() and re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", route), path)
        ]  # fmt: skip
        assert matched and "{" not in path, command
        found += matched
        if "-d" in words and "content-type: application/json" in words:
            json.loads(words[words.index("-d") + 1])
    expected = {(m, p) for m, p in ROUTES if API["paths"][p][m]["tags"][0] == tag}
    assert expected <= set(found)


def test_every_public_name_of_the_client_is_documented(pages: dict[str, str]) -> None:
    reference = [page for name, page in pages.items() if name.startswith("client/")]
    entries = {each.rpartition(".")[2] for page in reference for each in re.findall(r'<h2 id="([\w.]+)"', page)}
    shown = set(re.findall(r"<code>(\w+)</code>", pages["client/index.html"]))

    assert set(bp.__all__) | {"RemoteModule"} <= shown
    assert set(bp.__all__) - {"nn", *dtypes()} <= entries
    assert set(bp.nn.__all__) <= entries
    assert dtypes() <= set(re.findall(r"<code>(\w+)</code>", pages["client/programs/index.html"]))


def dtypes() -> set[str]:
    return {name for name in bp.__all__ if type(getattr(bp, name)).__name__ == "Dtype"}


def test_contracts_of_docstrings_become_lists(pages: dict[str, str]) -> None:
    page = pages["client/service/index.html"]

    assert re.search(r"<li>(<p>)?<code>api_key</code>: key of the service", page)
    assert "api_key:  key" not in page


def test_the_page_of_the_program_has_tables_in_place_of_comments(pages: dict[str, str]) -> None:
    found = text_of(pages["program/index.html"])

    for name in ("Program", "Block", "Variable", "Op", "Function"):
        for member in API["components"]["schemas"][name]["properties"]:
            assert f"\n{member}" in found
    assert "while" in found and "BACKPASS_BLOCK_NESTING" in found
    assert "<!-- " not in pages["program/index.html"]


def test_every_page_of_docs_is_in_the_navigation(pages: dict[str, str]) -> None:
    linked = set(
        re.findall(r'class="md-nav__link[^>]*?href="([^"]*)"|href="([^"]*)"[^>]*class="md-nav__link', pages["404.html"])
    )
    linked = {(one or other).removeprefix("/guide/").rstrip("/") for one, other in linked}
    for path in (ROOT / "docs").rglob("*.md"):
        name = str(path.relative_to(ROOT / "docs").with_suffix(""))
        name = re.sub(r"(^|/)(README|index)$", "", name)
        assert name in linked or name == "", name


def test_every_recipe_is_linked_from_the_first_page(pages: dict[str, str]) -> None:
    for path in (ROOT / "docs/recipes").glob("*.md"):
        assert f'href="recipes/{path.stem}/"' in pages["index.html"]
        assert f"recipes/{path.stem}/index.html" in pages


def test_every_recipe_shows_the_code_that_it_includes(pages: dict[str, str]) -> None:
    for path in (ROOT / "docs/recipes").glob("*.md"):
        found = text_of(pages[f"recipes/{path.stem}/index.html"])
        assert not re.search(r"--\s*8\s*<", found), path.name  # a line that was not understood as an inclusion
        assert "def " in found, path.name


def test_links_out_of_the_documents_lead_to_copies_of_the_files(site: Path) -> None:
    copied = site / "source/tests/core/backward/test_cases_lines.py.txt"

    assert copied.read_bytes() == (ROOT / "tests/core/backward/test_cases_lines.py").read_bytes()
