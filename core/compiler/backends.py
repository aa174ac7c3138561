"""The backend of this process: steps are compiled for it unless they are given another one."""

from __future__ import annotations

from core.codegen.backend import CPU
from core.runtime.backend import Backend

__all__ = ["CHOSEN", "use_backend"]


class _Chosen:
    """The mutable state of this process in `core.compiler`. backend: set by `use_backend`."""

    def __init__(self) -> None:
        self.backend: Backend = CPU


CHOSEN = _Chosen()


def use_backend(backend: Backend) -> Backend:
    """From now on compile steps for `backend`. Returns the one before. Steps that exist keep theirs."""
    before, CHOSEN.backend = CHOSEN.backend, backend
    return before
