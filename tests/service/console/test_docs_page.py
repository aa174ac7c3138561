"""The page of Swagger UI finds the description of the API wherever a proxy serves it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.paths import ROOT

RUN = """
const listeners = [];
globalThis.window = { addEventListener: (_, call) => listeners.push(call) };
globalThis.document = { currentScript: { src: process.argv[2] } };
globalThis.SwaggerUIBundle = (options) => console.log(options.url);
require(process.argv[1]);
globalThis.document.currentScript = null;  // as browsers do once a script has run
listeners.forEach((call) => call());
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize("prefix", ["", "/x", "/x/y"])
def test_the_docs_page_reads_the_description_below_its_own_prefix(prefix: str) -> None:
    origin = f"https://api.example.org{prefix}"
    command = ["node", "-e", RUN, str(ROOT / "service/static/docs.js"), f"{origin}/static/docs.js"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert found.stdout.strip() == f"{origin}/openapi.json", found.stderr
