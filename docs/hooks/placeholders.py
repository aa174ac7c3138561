"""Comments in pages that the build replaces by tables and entries, so that these cannot go stale.

<!-- members of Program -->       the members of a type of openapi.json
<!-- ops of control -->           the ops of a family, from its page in docs/ops
<!-- settings BLOCKS, OPS -->     rows of docs/settings.md
<!-- routes -->                   every tag with its routes
<!-- routes of problems -->       the entries of the routes of a tag
<!-- types -->                    the entries of all types
<!-- problem codes -->            the entries of all problem codes
<!-- recipes -->                  links to the pages in docs/recipes
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openapi_pages import problem_codes, routes, routes_of, types
from schema_text import members

__all__ = ["filled"]

COMMENT = re.compile(
    r"^<!-- (members of|ops of|settings|routes of|routes|types|problem codes|recipes)(?: (.+?))? -->$", re.M
)


def filled(markdown: str, page: str, root: Path, api: Mapping[str, Any]) -> str:
    """`markdown` of `page` (its path below docs/) with tables. api: the OpenAPI document.

    Raises KeyError for an unknown type or setting, FileNotFoundError for an unknown family.
    """
    up = posixpath.relpath(".", posixpath.dirname(page) or ".")

    def written(found: re.Match[str]) -> str:
        match found[1]:
            case "members of":
                return members(api["components"]["schemas"][found[2]], f"{up}/api/types.md")
            case "ops of":
                return _ops(root, found[2], up)
            case "settings":
                return _settings(root, found[2].split(", "))
            case "routes of":
                return routes_of(api, found[2])
            case "routes":
                return routes(api)
            case "types":
                return types(api)
            case "problem codes":
                return problem_codes(root)
            case _:
                return _recipes(root, up)

    return COMMENT.sub(written, markdown)


def _ops(root: Path, family: str, up: str) -> str:
    text = (root / "docs" / "ops" / f"{family}.md").read_text()
    table = text[text.index("| section") :].partition("\n\n")[0]
    return table.replace("](#", f"]({up}/ops/{family}.md#")


def _settings(root: Path, names: list[str]) -> str:
    text = (root / "docs" / "settings.md").read_text()
    rows = dict(re.findall(r"^(?=\| `BACKPASS_([A-Z0-9_]+)`)(.*)$", text, re.M))
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *(rows[name] for name in names)])


def _recipes(root: Path, up: str) -> str:
    pages = sorted((root / "docs" / "recipes").glob("*.md"))
    titles = [page.read_text().partition("\n")[0].removeprefix("# ") for page in pages]
    return "\n".join(f"* [{title}]({up}/recipes/{page.name})" for title, page in zip(titles, pages, strict=True))
