"""All errors of the core, each with a stable code and a place in the program.

* CoreError
  + ProgramError          the program is wrong; the client must change it
    - InvalidProgram        the reader found several problems
    - TypeMismatch          shapes or dtypes do not fit together
    - NotDifferentiable     a requested gradient does not exist
  + ExecutionError        the program is right; this run of it failed
    - OutOfMemory           the run needs more memory than it may use
* InternalError           the core itself is wrong: a defect to report, not an answer for a client

The code that finds a problem raises an error without a location. A caller that knows the location catches the error and
calls `error.at(...)`, which sets the location once: the innermost place wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

__all__ = [
    "CoreError",
    "ExecutionError",
    "InternalError",
    "InvalidProgram",
    "Location",
    "NotDifferentiable",
    "OutOfMemory",
    "Place",
    "Problem",
    "ProgramError",
    "TypeMismatch",
    "below",
    "escaped",
    "pointing_to",
]


Place = tuple[str | None, int, int]
"""The place of an op in the client's program: (function or None, block, position)."""


def escaped(member: str) -> str:
    """A member's name as a step of a JSON pointer (RFC 6901)."""
    return member.replace("~", "~0").replace("/", "~1")


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the program that the client sent. Passes keep it unchanged.

    function: name of the function that contains the block; None for the blocks of the main program.
    adjoint:  the op belongs to the backward pass of the op at this place.
    """

    block: int
    op: int
    type: str
    slot: str | None = None
    variable: str | None = None
    adjoint: bool = False
    function: str | None = None

    @property
    def place(self) -> Place:
        """The key of the op: function, block, position."""
        return self.function, self.block, self.op

    @property
    def pointer(self) -> str:
        """JSON pointer to the op in the document."""
        within = "" if self.function is None else f"/functions/{escaped(self.function)}/program"
        return f"{within}/blocks/{self.block}/ops/{self.op}"

    def as_document(self) -> dict[str, Any]:
        """JSON-ready values. `function` is present only for an op of a function."""
        found = {"block": self.block, "op": self.op, "type": self.type}
        return found if self.function is None else {**found, "function": self.function}

    def __str__(self) -> str:
        place = f"block {self.block}, op {self.op} ({self.type})"
        if self.function is not None:
            place = f"function {self.function!r}, {place}"
        if self.variable is not None:
            place += f", variable {self.variable!r}"
        return f"backward of {place}" if self.adjoint else place


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a program: a stable code, a sentence, and a JSON pointer into the document.

    value: the name of the given value with the mistake, if it is not in the program itself.
    """

    code: str
    message: str
    pointer: str = ""
    location: Location | None = None
    suggestion: str | None = None
    value: str | None = None

    @property
    def block(self) -> int | None:
        return self.location.block if self.location else None

    @property
    def op(self) -> int | None:
        return self.location.op if self.location else None

    @property
    def op_type(self) -> str | None:
        return self.location.type if self.location else None

    @property
    def slot(self) -> str | None:
        return self.location.slot if self.location else None

    @property
    def variable(self) -> str | None:
        return self.location.variable if self.location else None


class CoreError(Exception):
    """Base class: a code, one message, and optionally a location and a suggestion."""

    default_code = "error"

    def __init__(
        self,
        message: str,
        code: str | None = None,
        *,
        location: Location | None = None,
        suggestion: str | None = None,
        pointer: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.location = location
        self.suggestion = suggestion
        self.pointer = pointer

    def __str__(self) -> str:
        return self.message if self.location is None else f"{self.location}: {self.message}"

    def at(self, location: Location | None, pointer: str = "") -> Self:
        """Set `location` and `pointer` where the error has none yet; return the error."""
        if self.location is None:
            self.location = location
        self.pointer = self.pointer or pointer
        return self

    @property
    def problems(self) -> Sequence[Problem]:
        pointer = self.pointer
        if not pointer and self.location is not None:
            pointer = self.location.pointer
        return [Problem(self.code, self.message, pointer, self.location, self.suggestion)]


class ProgramError(CoreError):
    """The program or the query is wrong. The same request will fail again."""

    default_code = "invalid_program"


@contextmanager
def pointing_to(pointer: str) -> Iterator[None]:
    """Set the pointer of a program error that has none. pointer: of a member of the request beside the program.

    Without it, an error about a name in a query would point to the program, though the program is right.
    """
    try:
        yield
    except ProgramError as error:
        error.at(None, pointer)
        raise


@contextmanager
def below(pointer: str) -> Iterator[None]:
    """Put `pointer` before the pointer of a program error.

    A function that reads one member of a request gives pointers into that member; its caller knows the member's place.
    """
    try:
        yield
    except ProgramError as error:
        error.pointer = pointer + error.pointer
        raise


class TypeMismatch(ProgramError):
    """Shapes or dtypes do not fit together."""

    default_code = "type_mismatch"


class NotDifferentiable(ProgramError):
    """A requested gradient does not exist."""

    default_code = "no_gradient_registered"


class ExecutionError(CoreError):
    """The program is right, but this run of it failed."""

    default_code = "execution_failed"


class OutOfMemory(ExecutionError):
    """A run needs more memory than it may use; it is raised before the memory is allocated.

    wanted, allowed: bytes.
    The code is out_of_memory if the same run can succeed when other work has ended, else too_large.
    """

    default_code = "out_of_memory"

    def __init__(self, message: str, code: str | None = None, *, wanted: int, allowed: int, **more: Any) -> None:
        super().__init__(message, code, **more)
        self.wanted = wanted
        self.allowed = allowed


class InternalError(Exception):
    """An invariant of the core does not hold: a defect of the core, not of the program.

    It is raised before compiled code touches memory that the broken invariant guards. It is no CoreError,
    because it is not a mistake of the client: a service answers 500 and logs the traceback.
    """

    def __init__(self, message: str, *, location: Location | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.location = location

    def __str__(self) -> str:
        return self.message if self.location is None else f"{self.location}: {self.message}"

    def at(self, location: Location | None) -> Self:
        """This error, with `location` filled in unless a closer one is there."""
        if self.location is None:
            self.location = location
        return self


class InvalidProgram(ProgramError):
    """All problems that the reader found in one program."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        first, more = problems[0], len(problems) - 1
        place = f"{first.location}: " if first.location else ""
        super().__init__(place + first.message + (f" (and {more} more)" if more else ""), first.code)
        self._problems = tuple(problems)

    @property
    def problems(self) -> Sequence[Problem]:
        return self._problems
