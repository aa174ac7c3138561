"""The results of an op or a layer that has several: a tuple whose members have names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Self

__all__ = ["Results"]

BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
UNARY = {"neg": "-x", "invert": "~x", "abs": "abs(x)"}


class Results(tuple[Any, ...]):
    """The results of an op or a layer with several: a tuple in their order, and each under its name.

        top, positions = bp.topk(x, k=2)
        out, (h, c) = bp.nn.LSTM(8)(x)
        bp.topk(x, k=2).index, bp.nn.LSTM(8)(x).out

    op:    the name of the op, or of the class of the layer.
    slots: the names of the results; too few or none if there may be any number of results.

    Operators and attributes of a single result raise an error that names the results.
    """

    __array_ufunc__ = None  # so that numpy leaves `array * results` to this class

    op: str = ""
    slots: Sequence[str] = ()
    source: str = ""

    @classmethod
    def of(cls, op: str, slots: Sequence[str], values: Iterable[Any], source: str = "") -> Self:
        """`values` as the results of `op`. source: an expression with these results, for messages."""
        found = cls(values)
        found.op, found.slots, found.source = op, slots, source or f"bp.{op}(...)"
        if len(slots) == len(found):  # in the instance, because `index` and `count` are methods of a tuple
            found.__dict__.update(zip(slots, found, strict=True))
        return found

    def like(self, values: Iterable[Any]) -> Self:
        """Other values under the same names."""
        return type(self).of(self.op, self.slots, values, self.source)

    def __getattr__(self, name: str) -> Any:
        """Raises AttributeError, which names the results, for an attribute that a single result has."""
        advice = "" if name.startswith("_") or not self.op else f": {self.advice}"
        raise AttributeError(f"a tuple has no attribute {name!r}{advice}")

    @property
    def advice(self) -> str:
        """The results, in words, and how to take one of them."""
        taken = f"{', '.join(self.slots)} = {self.source}" if len(self.slots) == len(self) else "take one of them"
        return f"{self.op} returns {len(self)} results; {taken}"

    def __repr__(self) -> str:
        if len(self.slots) != len(self):
            return f"{self.op or 'Results'}({', '.join(map(repr, self))})"
        return f"{self.op}({', '.join(f'{n}={each!r}' for n, each in zip(self.slots, self, strict=True))})"

    def _refuse(self, operator: str) -> NoReturn:
        raise TypeError(f"{operator} needs one array, not a tuple of them: {self.advice}")


def _binary(sign: str, of_tuple: Callable[[Any, Any], Any] | None) -> Callable[[Results, Any], Any]:
    def operator(self: Results, other: Any) -> Any:
        if of_tuple is not None and isinstance(other, tuple):  # tuples are joined and compared
            return of_tuple(self, other)
        return self._refuse(sign)

    return operator


def _unary(sign: str) -> Callable[[Results], Any]:
    return lambda self: self._refuse(sign)


for _name, _sign in {**BINARY, **COMPARISONS}.items():
    setattr(Results, f"__{_name}__", _binary(_sign, None if _name == "mul" else getattr(tuple, f"__{_name}__", None)))
    if _name in BINARY:
        setattr(Results, f"__r{_name}__", _binary(_sign, None))
for _name, _sign in UNARY.items():
    setattr(Results, f"__{_name}__", _unary(_sign))
