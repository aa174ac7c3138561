"""Scripts and styles that the theme writes inside of pages, as files of the site.

The service allows only scripts and styles from files of its own (Content-Security-Policy), because what stands inside
of a page could come from somebody else.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

__all__ = ["moved"]

SCRIPT = re.compile(r"<script(?P<attributes>(?: id=\"[^\"]*\")?)>(?P<code>.*?)</script>", re.S)
ALIGNED = re.compile(r' style="text-align: (left|right|center);"')
FOLDER = "assets/own"


def moved(html: str, url: str | None, site: Path) -> str:
    """`html` with references to files in place of its scripts, and classes in place of alignments.

    url: of the page, relative to the site; None for the page of unknown addresses, whose links start at the host.
    """
    up = "/guide/" if url is None else "../" * url.count("/")

    def file(found: re.Match[str]) -> str:
        code = found["code"].encode()
        name = f"{FOLDER}/{hashlib.sha256(code).hexdigest()[:12]}.js"
        path = site / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(code)
        return f'<script{found["attributes"]} src="{up}{name}"></script>'

    return ALIGNED.sub(r' class="align-\1"', SCRIPT.sub(file, html))
