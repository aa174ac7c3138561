"""The events of the build of the documentation site, in order. Everything generated is made here and never committed.

openapi_pages   the reference of the API
placeholders    comments of pages that become tables and entries
navigation      patterns of the navigation that become the pages they match
outside_links   links out of docs/ to files of the repository
own_files       scripts and styles inside of pages as files, because the service forbids them inside
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import navigation
import openapi_pages
import outside_links
import own_files
import placeholders
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
UNKNOWN = "<h1>404 - Not found</h1>"
UNKNOWN_TEXT = (
    '<p>The guide has no page at this address. The search may find it, or <a href="/guide/">the first page</a>.</p>'
)
API = openapi_pages.document(ROOT)


def on_files(files: Any, config: Any) -> Any:
    for path, text in openapi_pages.pages(API).items():
        files.append(File.generated(config, path, content=text))
    for path in outside_links.targets(ROOT, files):
        files.append(File.generated(config, f"source/{path}.txt", abs_src_path=str(ROOT / path)))
    config.nav = navigation.expanded(config.nav, [file.src_uri for file in files.documentation_pages()])
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    page.canonical_url = None  # the site is at an address of the reader's
    written = placeholders.filled(markdown, page.file.src_uri, ROOT, API)
    return outside_links.rewritten(written, page.file.src_uri, ROOT)


def on_post_page(output: str, page: Any, config: Any) -> str:
    return own_files.moved(output, page.url, Path(config.site_dir))


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    if template_name != "404.html":
        return output_content
    told = output_content.replace(UNKNOWN, f"<h1>No such page</h1>\n{UNKNOWN_TEXT}")
    return own_files.moved(told, None, Path(config.site_dir))


def on_post_build(config: Any) -> None:
    for name in ("sitemap.xml", "sitemap.xml.gz"):  # a list of addresses, which the site does not know
        (Path(config.site_dir) / name).unlink(missing_ok=True)
