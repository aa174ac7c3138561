"""The commands of the API pages of the guide run as they are, in their order, on a service that has nothing stored."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from docs.hooks.curl import curl
from tests.paths import ROOT
from tests.service.conftest import Served

API = json.loads((ROOT / "openapi/openapi.json").read_text())
NEEDS_A_KEY = ("POST /v1/keys", "POST /v1/keys/{key_id}/rotate")
"""Commands that a service without keys refuses, and says so."""


def whole(part: dict[str, Any]) -> dict[str, Any]:
    """`part`, or the component that it refers to."""
    found: Any = API
    for step in part.get("$ref", "#/").removeprefix("#/").split("/"):
        found = found[step] if step else {}
    return {**found, **part}


COMMANDS = {
    f"{method.upper()} {path}": curl(API, path, method, operation, [whole(p) for p in operation.get("parameters", ())])
    for path, methods in API["paths"].items()
    for method, operation in methods.items()
}


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_command_of_each_route_succeeds(service: Served, tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # which the page leaves to its reader: the sample upload is complete
    status = '-o answer -m 60 -w "%{http_code}\\n"'
    lines = [f"{command.replace('curl -s', f'curl -s {status}', 1)}" for command in COMMANDS.values()]
    script = "\n".join(lines).replace("http://127.0.0.1:8080", service.url)

    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=280)

    found = dict(zip(COMMANDS, done.stdout.split(), strict=True))
    refused = {name: status for name, status in found.items() if not status.startswith("2")}
    assert refused == dict.fromkeys(NEEDS_A_KEY, "409")
