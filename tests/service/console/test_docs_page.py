"""The page of Swagger UI finds the API wherever a proxy serves it."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.paths import ROOT

RUN = """
const listeners = [];
globalThis.window = { addEventListener: (_, call) => listeners.push(call) };
globalThis.document = { currentScript: { src: process.argv[2] } };
globalThis.SwaggerUIBundle = (options) => {
  const wrap = options.plugins[0]().statePlugins.spec.wrapActions.updateJsonSpec;
  wrap((spec) => console.log(options.url, JSON.stringify(spec)))({ openapi: "3.1.0" });
};
require(process.argv[1]);
globalThis.document.currentScript = null;  // as browsers do once a script has run
listeners.forEach((call) => call());
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize("prefix", ["", "/x", "/x/y"])
def test_the_docs_page_reads_the_description_and_sends_requests_below_its_own_prefix(prefix: str) -> None:
    origin = f"https://api.example.org{prefix}"
    command = ["node", "-e", RUN, str(ROOT / "service/static/docs.js"), f"{origin}/static/docs.js"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)

    url, _, description = found.stdout.strip().partition(" ")
    assert url == f"{origin}/openapi.json", found.stderr
    assert json.loads(description) == {"openapi": "3.1.0", "servers": [{"url": origin}]}
