"""Generated requests, alone and in sequences that use values of earlier answers: no 500, and no answer outside of the
OpenAPI document. Bodies are JSON or safetensors files. schemathesis finds the links between requests and answers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT
from tests.service.conftest import Served

LONG = "BACKPASS_TEST_PROGRAMS" in os.environ
"""`make test-all` runs ten minutes, and draws other requests each time."""

CHECKS = "problem_documents,content_type_conformance,response_schema_conformance"


def test_generated_sequences_of_requests_get_documented_answers(service: Served, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(ROOT / "openapi" / "openapi.json")]
    command += ["--url", service.url, "--phases", "coverage,stateful,fuzzing", "--checks", CHECKS]
    command += ["--max-time", "600"] if LONG else ["--max-time", "8", "--seed", "1"]
    command += ["--no-color", "--no-shrink", "--request-timeout", "120"]
    command += ["--generation-database", "none", "--suppress-health-check", "all", "--max-failures", "5"]
    hooks = {"SCHEMATHESIS_HOOKS": "tests.service.problems.schemathesis_hooks", "PYTHONPATH": str(ROOT)}

    done = subprocess.run(command, cwd=tmp_path, env=os.environ | hooks, capture_output=True, text=True, timeout=900)

    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    assert service.client.get("/healthz/ready").status_code == 200
