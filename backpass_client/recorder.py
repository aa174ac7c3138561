"""Applying an op: the operands decide who records it, a tape or a program under construction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from backpass_client.arithmetic import Arithmetic
from backpass_client.errors import BackpassError
from backpass_client.foreign_names import METHODS
from backpass_client.op_table import hint_for, op_table

__all__ = ["OpRecorder", "Operand", "apply", "current_recorder"]

R = TypeVar("R")

RIGHT_OPERATORS = {
    "add": "__radd__",
    "bitwise_and": "__rand__",
    "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__",
    "divide": "__rtruediv__",
    "floor_divide": "__rfloordiv__",
    "greater": "__lt__",
    "greater_equal": "__le__",
    "less": "__gt__",
    "less_equal": "__ge__",
    "matmul": "__rmatmul__",
    "multiply": "__rmul__",
    "power": "__rpow__",
    "remainder": "__rmod__",
    "subtract": "__rsub__",
}
"""The function with which numpy computes an operator of an array -> the method of the operand on its right."""


class OpRecorder(Protocol):
    """A tape, or a program under construction."""

    def call(self, type: str, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Append the op `type` with Python's arguments; its output, or a tuple of them.

        Raises TypeError for arguments that the op does not have.
        """


current_recorder: ContextVar[OpRecorder | None] = ContextVar("recorder", default=None)
"""The recorder of the innermost ``with``: it takes the ops whose operands have no owner."""


class Operand(Arithmetic[R]):
    """A value with Python's operators, each of which appends an op."""

    @property
    @abstractmethod
    def owner(self) -> OpRecorder | None:
        """The only recorder that can use it; None if any can."""

    if not TYPE_CHECKING:  # a type checker knows the attributes that exist

        def __getattr__(self, name: str) -> NoReturn:
            """Raises AttributeError, which names the op for a method that other libraries have."""
            hint = "" if name.startswith("_") else self._hint_for(name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint and '; '}{hint}")

    def _hint_for(self, method: str) -> str:
        if method in METHODS:
            return METHODS[method]
        return f"write bp.{method}(x)" if method in op_table()["ops"] else hint_for(method)

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """The result of an operator between an array or a number of numpy and this operand, such as ``array * x``.

        Raises TypeError, which names the op, for other functions of numpy, such as ``np.exp(x)``.
        """
        operator = RIGHT_OPERATORS.get(function.__name__)
        if operator is None or method != "__call__" or options or inputs[1] is not self:
            self._no_function_of_numpy(f"np.{function.__name__}")
        return getattr(self, operator)(inputs[0])

    def _no_function_of_numpy(self, function: str) -> NoReturn:
        name = function.rpartition(".")[2]
        is_op = name in op_table()["ops"]
        hint = f"write x.{name}(...)" if hasattr(Arithmetic, name) else f"write bp.{name}" if is_op else hint_for(name)
        raise TypeError(f"{function} computes with arrays and records no op{hint and '; '}{hint}")

    def _apply(self, type: str, inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        return apply(type, inputs, attrs)


def apply(type: str, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Append the op `type`; its output, or a tuple of them.

    The first operand with an owner decides who records the op; without one, the innermost ``with`` does. Raises
    TypeError for arguments that the op does not have, and BackpassError if nothing records.
    """
    first = inputs[0] if inputs else None
    owner = first.owner if isinstance(first, Operand) else None
    if owner is None:
        owner = _owner_of([*inputs, *named.values()]) or current_recorder.get()
    if owner is None:
        where = "compute inside `with Tape(url):` or a function under @bp.program"
        raise BackpassError(f"nothing records the op {type!r}: {where}")
    return owner.call(type, inputs, named)


def _owner_of(values: Iterable[Any]) -> OpRecorder | None:
    for each in values:
        for x in each if isinstance(each, list | tuple) else [each]:
            if isinstance(x, Operand) and x.owner is not None:
                return x.owner
    return None
