"""Expressions: values on a tape, and the interface of the tape as its expressions see it."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from backpass_client.batch import Batch
from backpass_client.errors import BackpassError
from backpass_client.names import Name
from backpass_client.recorder import Operand, OpRecorder
from backpass_client.text import fields, shown

__all__ = ["Expression", "Playback", "Recorder", "current", "current_tape"]

current_tape: ContextVar[Recorder | None] = ContextVar("tape", default=None)
"""The tape of the innermost ``with``."""


@dataclass(frozen=True, slots=True, repr=False)
class Playback:
    """A record of one backward pass. A place is the number of an op on the tape, as in `Expression.place`.

    played:   places of the ops that the pass differentiated, in the order of the pass.
    final:    (variable, place of the op after which its gradient was final), in the order in which they became final.
    ran:      places of the ops whose forward computation the pass had to run first.
    missing:  (variable without a gradient, reason).
    compiled: whether the worker had to compile this structure.
    """

    played: list[int]
    final: list[tuple[Expression, int | None]]
    ran: list[int]
    missing: list[tuple[Expression, str]]
    compiled: bool

    def __repr__(self) -> str:
        return fields(self, "played", "final", "ran", "missing", "compiled")


class Recorder(OpRecorder, Protocol):
    """The tape as expressions and variables use it; `Tape` implements it."""

    generation: int

    def put(self, variable: Expression, data: np.ndarray) -> Name:
        """Add a leaf that holds `data`."""

    def flush(self) -> object:
        """Send the recorded ops."""

    def value(self, expression: Expression) -> np.ndarray:
        """The value of `expression`, computed if necessary."""

    def retain(self, expression: Expression) -> None:
        """Let `backward` set the `grad` of `expression`."""

    def backward(self, target: Expression, gradient: Any = None) -> Playback:
        """Add the gradients of `target` to the `grad` of each variable."""

    def gradients(self, target: Expression, wrt: Sequence[Expression], gradient: Any = None) -> list[np.ndarray | None]:
        """The gradients of `target` as arrays."""

    def record_gradients(
        self, target: Expression, wrt: Sequence[Expression], gradient: Expression | None = None
    ) -> list[Expression | None]:
        """The gradients of `target` as expressions."""


class Expression(Operand["Expression"]):
    """A value on a tape. Reading `value`, `shape` or `dtype` sends the recorded ops if necessary.

    grad: see `retain_grad`.
    """

    grad: np.ndarray | None = None
    _value: np.ndarray | None = None

    def __init__(self, name: Name, batch: Batch, number: int, output: int = 0) -> None:
        """The output `output` of op `number` of `batch`."""
        self.named = name
        self._batch = batch
        self._number = number
        self._output = output

    # --- properties ----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of its variable on the tape."""
        return self.named.text

    @property
    def place(self) -> int | None:
        """The number of the op that computed it; None until that op is sent."""
        first = self._batch.first
        return None if first is None else first + self._number

    @property
    def taken(self) -> np.ndarray | None:
        """The value if an answer contained it."""
        return self._batch.values.get(self.named.text) if self._value is None else self._value

    @property
    def batch(self) -> Batch | None:
        """The batch of its op; None for a variable."""
        return self._batch

    @property
    def tape(self) -> Recorder:
        tape: Recorder = self._batch.owner
        return tape

    @property
    def owner(self) -> Recorder | None:
        """The only tape that can use it; None for a variable, which any tape can use."""
        return self.tape

    @property
    def generation(self) -> int:
        """How often the tape had been renewed when it was recorded."""
        return self._batch.generation

    @property
    def value(self) -> np.ndarray:
        """The value as an array. On a lazy tape the ops it depends on run now, each once."""
        taken = self.taken
        return self.tape.value(self) if taken is None else taken

    @property
    def data(self) -> Any:
        """The same as `value`."""
        return self.value

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        known = tuple(self._known()["shape"])
        return tuple(self.value.shape) if -1 in known else known

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the elements."""
        return np.dtype(self._known()["dtype"])

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._known()["shape"])

    @property
    def _known_rank(self) -> int | None:
        return None if self._batch.first is None else self.ndim

    @property
    def _known_dtype(self) -> str | None:
        return None if self._batch.first is None else self._known()["dtype"]

    def item(self) -> Any:
        """The value as a Python number."""
        return self.value.item()

    def __float__(self) -> float:
        return float(self.item())

    def __bool__(self) -> bool:
        return bool(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype)

    def __repr__(self) -> str:
        if self.taken is not None:
            return f"{type(self).__name__}({shown(self.taken)})"
        return f"<{type(self).__name__} {self.name}, not computed yet>"

    def _known(self) -> dict[str, Any]:
        if self._batch.first is None:
            self.check_on(self.tape)
            self.tape.flush()
        about: dict[str, Any] = self._batch.appended[self._number]["outputs"][self._output]
        return about

    # --- called by the tape --------------------------------------------------------------------------------------

    def take(self, value: np.ndarray | None) -> None:
        """Set the value, if the service returned one."""
        self._value = self._value if value is None else value

    def add_grad(self, value: np.ndarray) -> None:
        self.grad = value if self.grad is None else self.grad + value

    def check_on(self, tape: Recorder) -> None:
        """Raises BackpassError unless `tape`, in its present generation, can use this expression."""
        if self._batch.lost:
            raise BackpassError(f"{self.name} was never computed: the request with its op failed or was refused")
        if self.tape is not tape:
            raise BackpassError("an expression of another tape cannot be used here; its value can")
        if self.generation != tape.generation:
            raise BackpassError("the tape was renewed after this expression was computed; its value can still be used")

    # --- gradients -----------------------------------------------------------------------------------------------

    def backward(self, gradient: Any = None) -> Playback:
        """Add the gradients of this expression to the `grad` of every variable it depends on.

        gradient: the cotangent to start from; needed unless this is a scalar.
        """
        return self.tape.backward(self, gradient)

    def retain_grad(self) -> Self:
        """Let `backward` set the `grad` of this expression too."""
        self.tape.retain(self)
        return self

    def detach(self) -> Expression:
        """The same value as a constant."""
        return self._op("stop_gradient")


def current(default: Recorder | None = None) -> Recorder:
    """The tape of the innermost ``with``, else `default`. Raises BackpassError if there is neither."""
    tape = current_tape.get() or default
    if tape is None:
        raise BackpassError("there is no current tape: compute inside `with Tape(url):`")
    return tape
