"""Variables: the leaves of a tape, whose arrays live in this process."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from backpass_client.expression import Expression, Recorder, current
from backpass_client.names import Name
from backpass_client.text import shown

__all__ = ["Variable"]

NAME = re.compile(r"(?![0-9]+:)[A-Za-z0-9_/][A-Za-z0-9_.:/-]{0,99}")


class Variable(Expression):
    """A leaf: a local array. The tape sends it at its first use, and again at the next use after it changed.

    data:          the array, copied; assign to it or change it in place to train it. Integers become float64 when
                   `requires_grad`.
    grad:          the sum of the gradients of all backward passes; None before the first one.
    requires_grad: whether backward passes compute its gradient.
    name:          the prefix of its name on the tape: letters, digits and ``_ . : / -``.
    """

    def __init__(self, data: Any, requires_grad: bool = True, name: str | None = None) -> None:
        if name is not None and NAME.fullmatch(name) is None:
            raise ValueError(
                f"the name {name!r} must have 1 to 100 letters, digits and _ . : / -, start with a letter, a digit, _ "
                "or /, and have no : after leading digits alone"
            )
        self._data = np.array(data)
        if self._data.dtype.kind in "USOMmc":
            why = ": complex numbers are not supported" if self._data.dtype.kind == "c" else ""
            raise TypeError(f"a variable holds an array of numbers, not {data!r}{why}")
        self.requires_grad = requires_grad
        if requires_grad and self._data.dtype.kind in "iub":
            self._data = self._data.astype(np.float64)
        self.label = name
        self._tape: Recorder | None = None
        self._sent: tuple[np.dtype, tuple[int, ...], bytes] | None = None
        self._generation = -1

    @property
    def batch(self) -> None:
        return None

    @property
    def place(self) -> None:
        """No op computes a variable."""
        return None

    @property
    def generation(self) -> int:
        """How often its tape had been renewed when its array was sent last."""
        return self._generation

    @property
    def taken(self) -> np.ndarray:
        return self._data

    @property
    def value(self) -> np.ndarray:
        return self._data

    @property
    def data(self) -> np.ndarray:
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        self._data = np.array(value, self._data.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return self._data.shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the elements."""
        return self._data.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._data.ndim

    @property
    def _known_rank(self) -> int:
        return self._data.ndim

    @property
    def _known_dtype(self) -> str:
        return self._data.dtype.name

    @property
    def tape(self) -> Recorder:
        """The current tape; without one, the tape that used this variable last."""
        return current(self._tape)

    @property
    def owner(self) -> None:
        return None

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.grad = None

    def bind(self, tape: Recorder) -> Name:
        """The name of the leaf of `tape` that holds the present data; adds a leaf if there is none."""
        there = self._tape is tape and (self.requires_grad or self.generation == tape.generation)
        data = self._data
        sent = (data.dtype, data.shape, data.tobytes())
        if not there or sent != self._sent:
            self.named = tape.put(self, data.copy())
            self._sent = sent
            self._tape, self._generation = tape, tape.generation
        self.named.used = tape.generation
        return self.named

    def owned_by(self, tape: Recorder) -> bool:
        """Whether its last leaf is on `tape`, and the request with it did not fail."""
        return self._tape is tape and self._sent is not None

    def unbind(self) -> None:
        """Forget the last leaf: the request with it failed."""
        self._sent = None

    def check_on(self, tape: Recorder) -> None:
        self.bind(tape)

    def take(self, value: np.ndarray | None) -> None:
        pass  # the local array is the value

    def __repr__(self) -> str:
        return f"Variable({shown(self._data)})"
