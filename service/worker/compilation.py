"""One compilation: its result, the calls that wait for it, and the time that it has taken."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from service.logs import FIELDS

__all__ = ["Abandoned", "Compilation", "CompilationPending"]


class CompilationPending(Exception):
    """The call needs the result of `compilation`, which is not done. Handlers let it pass and change no state."""

    def __init__(self, compilation: Compilation) -> None:
        super().__init__("the call waits for a compilation")
        self.compilation = compilation


class Abandoned(Exception):
    """No call waits for the compilation any more."""


@dataclass(eq=False, slots=True)
class Compilation:
    """One compilation.

    waiting:   numbers of the calls that wait for it.
    owner:     the owner of `begin`; it goes on without a call that waits for it.
    end:       time of the monotonic clock at which it ends without a result, because nobody needs it.
    began:     time at which it began to run.
    seconds:   time for which it has run Python code.
    fields:    members of its log lines: those of the call that requested it first.
    """

    key: Hashable
    compile: Callable[[], Any]
    done: bool = False
    value: Any = None
    error: Exception | None = None
    waiting: set[int] = field(default_factory=set)
    owner: Hashable = None
    end: float = math.inf
    began: float = math.inf
    seconds: float = 0.0
    fields: dict[str, str] = field(default_factory=FIELDS.get)

    @property
    def abandoned(self) -> bool:
        """Whether nobody needs it any more."""
        return self.end <= time.monotonic()
