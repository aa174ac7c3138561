"""Runs in forked processes, which bad machine code may kill."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["survives"]


def survives(run: Callable[[], None]) -> tuple[bool, str]:
    """Whether `run` ends well in a forked process, and what that has written to its standard error."""
    source, target = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(target, 2)
            run()
            code = 0
        except BaseException as error:
            os.write(2, repr(error).encode())
        finally:
            os._exit(code)
    os.close(target)
    with os.fdopen(source) as said:
        text = said.read()
    return os.waitpid(child, 0)[1] == 0, text[-2000:]
