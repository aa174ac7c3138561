"""Leaves of a tape: arrays of the client's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from backpass_client.expression import Expression, Name

if TYPE_CHECKING:
    from backpass_client.tape import Tape

__all__ = ["Variable"]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,99}")


class Variable(Expression):
    """A leaf: an array of yours. It is put on the tape when it is first used there, and again when it has changed.

    data:          the array, copied; assign to it, or change it in place, to train it. Whole numbers that are to have
                   a gradient become float64.
    grad:          what backward passes have added up; None before the first.
    requires_grad: whether they do.
    name:          what its name on the tape begins with: letters, digits and ``_ . / -``.
    """

    def __init__(self, data: Any, requires_grad: bool = True, name: str | None = None) -> None:
        if name is not None and NAME.fullmatch(name) is None:
            raise ValueError(f"the name {name!r} has other characters than letters, digits and _ . / -, or is too long")
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
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self._data.shape

    @property
    def dtype(self) -> np.dtype:
        return self._data.dtype

    @property
    def ndim(self) -> int:
        return self._data.ndim

    @property
    def tape(self) -> Tape:
        """The current one, or the one it was used on last."""
        from backpass_client.tape import current

        return current(self._tape)

    def zero_grad(self) -> None:
        self.grad = None

    def bind(self, tape: Tape) -> Name:
        """The variable of `tape` that holds the present data."""
        there = self._tape is tape and (self.requires_grad or self.generation == tape.generation)
        if not there or self._sent is None or not _same(self._sent, self._data):
            self._sent = self._data.copy()
            self.named = tape.put(self, self._sent)
            self._tape, self.generation = tape, tape.generation
        return self.named

    def unbind(self) -> None:
        """What was put last never arrived."""
        self._sent = None

    def check_on(self, tape: Tape) -> None:
        self.bind(tape)

    def take(self, value: np.ndarray | None) -> None:
        pass  # the data is ours

    def __repr__(self) -> str:
        return f"Variable({self._data!r})"


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the last bit."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
