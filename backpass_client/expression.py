"""Values on a tape."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from backpass_client.arithmetic import Arithmetic
from backpass_client.errors import BackpassError

if TYPE_CHECKING:
    from backpass_client.answers import Playback
    from backpass_client.tape import Tape
    from backpass_client.variable import Variable

__all__ = ["Expression", "Name"]


class Name:
    """A variable of the service's tape. It lives as long as something here depends on it.

    parents: what it was computed from. variable: of a leaf, the object whose value it holds.
    """

    __slots__ = ("__weakref__", "parents", "text", "variable")

    def __init__(self, text: str, parents: tuple[Name, ...] = ()) -> None:
        self.text = text
        self.parents = parents
        self.variable: weakref.ref[Variable] | None = None


class Expression(Arithmetic):
    """A value on a tape. `value`, `shape` and `dtype` are there as soon as they are asked for.

    place: of the op that wrote it, on the tape; None as long as it was not sent. grad: see `retain_grad`.
    """

    def __init__(self, tape: Tape, name: Name) -> None:
        self._tape: Tape | None = tape
        self.named = name
        self.generation = tape.generation
        self.place: int | None = None
        self.taken: np.ndarray | None = None
        self.grad: np.ndarray | None = None
        self.lost = False
        self._about: dict[str, Any] | None = None

    # --- what it is ----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What it is called on the tape."""
        return self.named.text

    @property
    def tape(self) -> Tape:
        assert self._tape is not None
        return self._tape

    @property
    def value(self) -> np.ndarray:
        """As an array. On a lazy tape what is needed for it runs now; each op runs once."""
        return self.tape.value(self) if self.taken is None else self.taken

    @property
    def data(self) -> Any:
        """The same as `value`."""
        return self.value

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        known = tuple(self._known()["shape"])
        return tuple(self.value.shape) if -1 in known else known

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self._known()["dtype"])

    @property
    def ndim(self) -> int:
        return len(self._known()["shape"])

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
            return f"{type(self).__name__}({self.taken!r})"
        return f"<{type(self).__name__} {self.name}, not computed yet>"

    def _known(self) -> dict[str, Any]:
        if self._about is None:
            self.check_on(self.tape)
            self.tape.flush()
        assert self._about is not None
        return self._about

    # --- what the tape tells it ----------------------------------------------------------------------------------

    def describe(self, place: int, about: dict[str, Any]) -> Self:
        self.place, self._about = place, about
        return self

    def take(self, value: np.ndarray | None) -> None:
        self.taken = self.taken if value is None else value

    def add_grad(self, value: np.ndarray) -> None:
        self.grad = value if self.grad is None else self.grad + value

    def check_on(self, tape: Tape) -> None:
        """Raises BackpassError if it cannot be used on `tape` as it stands now."""
        if self.lost:
            raise BackpassError(f"{self.name} was never computed: the ops it was sent with were refused, or got lost")
        if self._tape is not tape:
            raise BackpassError("an expression of another tape cannot be used here; its value can")
        if self.generation != tape.generation:
            raise BackpassError("the tape was renewed after this expression was computed; its value can still be used")

    # --- gradients -----------------------------------------------------------------------------------------------

    def backward(self, gradient: Any = None) -> Playback:
        """Gradients of this, added to the `grad` of every variable it depends on.

        gradient: its cotangent, if it is not a single number.
        """
        return self.tape.backward(self, gradient)

    def retain_grad(self) -> Self:
        """Let `backward` set the `grad` of this too."""
        self.tape.retain(self)
        return self

    def detach(self) -> Expression:
        """The same value as a constant."""
        return self._op("stop_gradient")
