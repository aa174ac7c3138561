"""The Python blocks of docs/frameworks.md run, each section in one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.slow

NEEDS = {"PyTorch": ["torch", "onnxscript"], "JAX": ["jax", "jax2onnx"], "Keras": ["keras", "jax", "jax2onnx"]}


def blocks_of(section: str) -> str:
    """The blocks of a section, one after the other."""
    text = (ROOT / "docs" / "frameworks.md").read_text()
    (body,) = re.findall(rf"^## {section}$(.*?)(?=^## |\Z)", text, re.M | re.S)
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", body, re.M | re.S))


@pytest.mark.parametrize("section", NEEDS)
def test_the_recipes_of_a_framework_run(section: str, url: str, tmp_path: Path):
    missing = [name for name in NEEDS[section] if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    script = tmp_path / "recipe.py"
    script.write_text(f"url = {url!r}\n{blocks_of(section)}")

    done = subprocess.run(
        [sys.executable, str(script)], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3000:]
