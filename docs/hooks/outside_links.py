"""Links from pages to files of the repository outside of docs/.

On disk they work as they are. In the site a linked file is a copy under source/, as a text, so that no tool takes it
for code of the service. The README is the first page, and a linked folder is only text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["rewritten", "targets"]

LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((\.\.?/[^)\s#]+)(#[^)\s]*)?\)")
README = "README.md"


def targets(root: Path, files: Iterable[Any]) -> set[str]:
    """The files outside of docs/ that pages link to, as paths from the root."""
    pages = [file for file in files if file.is_documentation_page() and file.generated_by is None]
    linked = {_outside(page.src_uri, link[2]) for page in pages for link in LINK.finditer(page.content_string)}
    return {path for path in linked if path is not None and path != README and (root / path).is_file()}


def rewritten(markdown: str, page: str, root: Path) -> str:
    """`markdown` of `page` (its path below docs/) with links that work in the site."""

    def link(found: re.Match[str]) -> str:
        path = _outside(page, found[2])
        copy = f"source/{path}.txt"
        if path is None:
            return found[0]
        if path == README:
            return f"[{found[1]}]({_relative('index.md', page)})"
        if (root / path).is_file():
            return f"[{found[1]}]({_relative(copy, page)})"
        return found[1] if (root / path).is_dir() else found[0]  # a link to nothing stays, and fails the build

    return LINK.sub(link, markdown)


def _outside(page: str, target: str) -> str | None:
    """The path from the root, or None for a target inside of docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.startswith(("docs/", "..")) else path


def _relative(path: str, page: str) -> str:
    return posixpath.relpath(path, posixpath.dirname(page) or ".")
