"""Code that reads the stop word: which functions do, and how they find it.

A step reads the word between its instructions. One instruction may take minutes, so a function with much work reads it
in its outer loops too: they end at once when it is set. The results are then wrong; the caller of the step sees the
word and raises an error (`core.runtime.region`).
"""

from __future__ import annotations

from core.codegen.llvm import I64, Function, IRValue
from core.runtime.control_words import CONTROL

__all__ = ["STOP_PARAM", "is_long", "polls_by_control", "product_polls", "stop_of"]

POLL_WORK = 300_000_000
"""Operations plus bytes between two reads of the stop word: some milliseconds, or a tenth of a second at worst."""

STOP_PARAM = ("stop", "ptr")
"""The parameter of a function that polls and does not take the control words."""


def is_long(work: int) -> bool:
    """Whether the stop word must be read during so much work. work: operations plus bytes."""
    return work > POLL_WORK


def stop_of(f: Function, control: IRValue) -> IRValue:
    """The address of the stop word. control: the address of the control words."""
    return f.at(control, I64(CONTROL.index("stop")), "int64")


def product_polls(m: int, n: int, k: int) -> bool:
    """Whether the function of a product of matrices polls."""
    return is_long(2 * m * n * k)


def polls_by_control(f: Function, work: int) -> None:
    """Let the loops of `f` poll if its work is long. Its parameter `error` is the address of the control words."""
    if is_long(work):
        f.stop = stop_of(f, f.param("error"))
