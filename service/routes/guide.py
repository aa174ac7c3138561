"""The guide: the documentation site, static pages that `make docs` builds into `service/static/guide`."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import StringConstraints

from service.http.entity_tags import unchanged
from service.http.request_body import header_of
from service.problems import HttpProblem

__all__ = ["GUIDE", "POLICY", "router"]

router = APIRouter()

GUIDE = Path(__file__).parent.parent / "static" / "guide"
POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TEXT = "text/plain; charset=utf-8"
MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
NOT_BUILT = "the guide is not part of this installation; `make docs` in a checkout builds it"
NOT_BUILT_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>The guide is not built</title></head>
<body><h1>The guide is not built</h1>
<p>This installation of Backpass has no guide. In a checkout, <code>make docs</code> builds it, and this address serves
it without a restart. <a href="/docs">The API</a> is documented in any case.</p></body>
</html>
"""

PART = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
INSIDE = re.compile(rf"(?:{PART}/)*(?:{PART})?")
"""Paths in which no part starts with a dot, so that they stay inside of the folder."""

Words = Annotated[str | None, StringConstraints(max_length=1000)]


@router.api_route("/guide", methods=["GET", "HEAD"], include_in_schema=False)
async def guide(request: Request, q: Words = None, h: Words = None) -> Response:
    """The address without a slash at its end, from which relative links of the pages would lead elsewhere."""
    return _to_folder(request, "guide")


@router.api_route("/guide/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
async def guide_page(request: Request, path: str, q: Words = None, h: Words = None) -> Response:
    """A page or a file of the guide. q, h: for scripts of the pages, the words to search and to mark."""
    if INSIDE.fullmatch(path) is None:
        return await asyncio.to_thread(_missing, request)
    name = f"{path}index.html" if path == "" or path.endswith("/") else path
    content = await asyncio.to_thread(_read, GUIDE / name)
    if content is None and await asyncio.to_thread(_read, GUIDE / name / "index.html") is not None:
        return _to_folder(request, path.rpartition("/")[2])
    if content is None:
        return await asyncio.to_thread(_missing, request)
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    # revalidated at each use: the files of a page must be of one build
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
    if (known := unchanged(request, tag, "file", headers)) is not None:
        return known
    return Response(content, headers={"ETag": tag, **headers, "Content-Type": MEDIA.get(Path(name).suffix, TEXT)})


def _to_folder(request: Request, name: str) -> Response:
    """To the same address with a slash at its end. It is relative, so that it holds behind a proxy with a prefix."""
    query = f"?{request.url.query}" if request.url.query else ""
    return Response(status_code=308, headers={"Location": f"{name}/{query}"})


def _missing(request: Request) -> Response:
    """404: for browsers as a page of the guide, or one that says how to build it; otherwise a problem document."""
    is_built = _read(GUIDE / "index.html") is not None
    if "text/html" not in header_of(request, b"accept"):
        raise HttpProblem("not-found", "the guide has no page of this name" if is_built else NOT_BUILT)
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": POLICY, "Vary": "Accept"}
    return Response(_read(GUIDE / "404.html") or NOT_BUILT_PAGE, 404, headers, media_type="text/html")


def _read(path: Path) -> bytes | None:
    """The content of a file; None if there is none: the path is unknown, a folder, or removed by a running build."""
    try:
        return path.read_bytes()
    except OSError:
        return None
