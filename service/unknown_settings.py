"""Environment variables that look like settings and are none, usually by a typing mistake."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator

from service.settings import Settings

__all__ = ["unknown_variables"]

PREFIX = "BACKPASS_"
FOR_OTHERS = {"BACKPASS_API_KEY", "BACKPASS_URL", "BACKPASS_TEST_PROGRAMS"}
"""Variables that the service itself does not read: of the client and of the tests."""

LIKENESS = 0.75
"""Least likeness of a setting that is suggested: two letters that changed places in a short name have it."""


def unknown_variables() -> Iterator[tuple[str, str | None]]:
    """Each such variable, and the variable of a setting with a similar name, if there is one."""
    known = [name.upper() for name in Settings.model_fields]
    for name in sorted(os.environ):
        upper = name.upper()
        own = upper.removeprefix(PREFIX)
        if upper.startswith(PREFIX) and own not in known and upper not in FOR_OTHERS:
            near = difflib.get_close_matches(own, known, 1, LIKENESS)
            yield name, PREFIX + near[0] if near else None
