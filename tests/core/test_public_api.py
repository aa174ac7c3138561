"""The public API of the library."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import core


def test_the_example_of_the_package_runs_and_gives_the_gradient_that_it_states():
    text = core.__doc__.partition("\n\n")[2].partition("`gradient`")[0]
    names: dict[str, object] = {}

    exec(textwrap.dedent(text), names)  # noqa: S102 (the text is our own)

    np.testing.assert_array_equal(names["gradient"], [6.0, -2.0])
    assert len([line for line in text.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("name", core.__all__)
def test_every_public_name_exists(name):
    assert getattr(core, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'compile'"):
        _ = core.compile


def test_importing_the_package_loads_no_room():
    code = "import sys, core; print([name for name in sys.modules if name.startswith('core.')])"

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == "[]"
