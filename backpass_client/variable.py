"""Variables: the leaves of a tape, whose arrays live in this process."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from backpass_client.expression import Expression, Name, Recorder, current
from backpass_client.text import shown

__all__ = ["Variable"]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,99}")


class Variable(Expression):
    """A leaf: a local array. The tape sends it at its first use, and again at the next use after it changed.

    data:          the array, copied; assign to it or change it in place to train it. Integers become float64 when
                   `requires_grad`.
    grad:          the sum of the gradients of all backward passes; None before the first one.
    requires_grad: whether backward passes compute its gradient.
    name:          the prefix of its name on the tape: letters, digits and ``_ . / -``.
    """

    def __init__(self, data: Any, requires_grad: bool = True, name: str | None = None) -> None:
        if name is not None and NAME.fullmatch(name) is None:
            raise ValueError(
                f"the name {name!r} must have 1 to 100 letters, digits and _ . / -, and start with a letter or _"
            )
        self._data = np.array(data)
        self.requires_grad = requires_grad
        if requires_grad and self._data.dtype.kind in "iub":
            self._data = self._data.astype(np.float64)
        self.label = name
        self.place = None
        self.grad = None
        self._tape = None
        self._sent: np.ndarray | None = None
        self.generation = -1

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
        return self._data.shape

    @property
    def dtype(self) -> np.dtype:
        return self._data.dtype

    @property
    def ndim(self) -> int:
        return self._data.ndim

    @property
    def tape(self) -> Recorder:
        """The current tape; without one, the tape that used this variable last."""
        return current(self._tape)

    @property
    def owner(self) -> None:
        return None

    def zero_grad(self) -> None:
        self.grad = None

    def bind(self, tape: Recorder) -> Name:
        """The name of the leaf of `tape` that holds the present data; adds a leaf if there is none."""
        there = self._tape is tape and (self.requires_grad or self.generation == tape.generation)
        if not there or self._sent is None or not _same_bits(self._sent, self._data):
            self._sent = self._data.copy()
            self.named = tape.put(self, self._sent)
            self._tape, self.generation = tape, tape.generation
        return self.named

    def unbind(self) -> None:
        """Forget the last leaf: the request with it failed."""
        self._sent = None

    def check_on(self, tape: Recorder) -> None:
        self.bind(tape)

    def take(self, value: np.ndarray | None) -> None:
        pass  # the local array is the value

    def __repr__(self) -> str:
        return f"Variable({shown(self._data)})"


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
