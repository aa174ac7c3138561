"""Python imports this module at its start if its folder is on the path: a wall clock that a test sets back.

The file that BACKPASS_TEST_CLOCK names holds the offset in seconds.
"""

import os
import time

_file = os.environ.get("BACKPASS_TEST_CLOCK", "")
_real = time.time


def _shifted() -> float:
    try:
        with open(_file) as file:
            return _real() + float(file.read() or 0)
    except (OSError, ValueError):
        return _real()


if _file:
    time.time = _shifted
