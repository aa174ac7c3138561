"""Types of symbols: a dtype, and sizes that may be numbers, names or unknown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backpass_client.arguments import DtypeName, dtype_name, misfit
from backpass_client.arithmetic import Arithmetic
from backpass_client.errors import BackpassError

__all__ = [
    "DTYPES",
    "FLOATS",
    "INTEGERS",
    "UNKNOWN",
    "Dtype",
    "DtypeLike",
    "InvalidOp",
    "NotKnown",
    "Size",
    "SizeName",
    "Type",
    "as_dtype",
    "check_fits",
    "joined",
    "same_sizes",
]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
DTYPES = ("bool", *INTEGERS, *FLOATS)

Size = int | str | None
"""A size of an axis: a number; a name, which stands for one number in all of the program; or None, any number."""

SIZE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class InvalidOp(BackpassError):
    """An op that the service would refuse: the operands or attributes do not fit. Raised where the op is written."""


class DtypesDiffer(InvalidOp):
    """The operands of an op have different dtypes."""


class SizeName(str):
    """The name of an open size, as `Symbol.shape` has it: a text that is no number, though it can be an operand."""

    __slots__ = ()

    def _no_arithmetic(self, other: Any) -> Any:
        if isinstance(other, Arithmetic):
            return NotImplemented  # the operand's own method takes the name
        raise InvalidOp(
            f"{str(self)!r} is the name of an open size, which Python cannot compute with: bp.shape(x)[axis] is its "
            "number as a symbol"
        )

    __mul__ = __rmul__ = __sub__ = __rsub__ = __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = _no_arithmetic

    def __index__(self) -> int:
        raise InvalidOp(
            f"{str(self)!r} is the name of an open size, which has a number in each step only: bp.dynamic_range(0, "
            "x.shape[axis], 1) has the positions, bp.scan runs over an axis, bp.zeros_like(x) has the shape of x"
        )

    def __add__(self, other: Any) -> Any:
        return str(self) + other if isinstance(other, str) else self._no_arithmetic(other)

    def __radd__(self, other: Any) -> Any:
        return other + str(self) if isinstance(other, str) else self._no_arithmetic(other)


class NotKnown(Exception):
    """A type rule needs a dtype or shape that is not known. The outputs of the op then have no known type."""


@dataclass(frozen=True, slots=True)
class Type:
    """The dtype and shape of a symbol; None where the client does not know it.

    ``bp.f32["batch", 784]`` is a float32 matrix with an open number of rows and 784 columns; ``bp.f32[()]`` and
    ``bp.f32`` are numbers.
    """

    dtype: str | None
    shape: tuple[Size, ...] | None

    @property
    def dims(self) -> tuple[Size, ...]:
        """The shape. Raises NotKnown."""
        if self.shape is None:
            raise NotKnown
        return self.shape

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def kind(self) -> str:
        """The dtype. Raises NotKnown."""
        if self.dtype is None:
            raise NotKnown
        return self.dtype

    @property
    def is_known(self) -> bool:
        return self.dtype is not None and self.shape is not None

    @property
    def is_float(self) -> bool:
        return self.kind in FLOATS

    @property
    def wire_shape(self) -> list[int]:
        """The shape in a program document, where -1 stands for every size that is not a number."""
        return [size if isinstance(size, int) else -1 for size in self.dims]

    def __str__(self) -> str:
        if self.dtype is None and self.shape is None:
            return "unknown"
        sizes = "..." if self.shape is None else ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{self.dtype or 'unknown'}[{sizes}]"


UNKNOWN = Type(None, None)


class Dtype(DtypeName):
    """A dtype that makes types: ``bp.f32["batch", 3]``. Without brackets it is the type of one number."""

    __slots__ = ()
    __iter__ = None  # __getitem__ makes a type of every index, so an iteration would never end

    def __getitem__(self, sizes: Size | tuple[Size, ...]) -> Type:
        given = tuple(
            int(size) if isinstance(size, np.integer) else size
            for size in (sizes if isinstance(sizes, tuple) else (sizes,))
        )
        for size in given:
            is_number = isinstance(size, int) and not isinstance(size, bool) and size >= 0
            is_name = isinstance(size, str) and SIZE_NAME.fullmatch(size) is not None
            if not (size is None or is_number or is_name):
                raise InvalidOp(
                    f"cannot make a {self.name} array of size {size!r}: a size is a number of at least 0, a name such "
                    'as "batch", or None for any size'
                )
        return Type(self.name, given)

    def __repr__(self) -> str:
        short = self.name.replace("bfloat", "bf").replace("float", "f").replace("uint", "u").replace("int", "i")
        return f"backpass_client.{'bool_' if self.name == 'bool' else short}"


DtypeLike = str | Dtype | type[np.generic] | np.dtype[Any]


def as_dtype(dtype: DtypeLike) -> Dtype:
    """The dtype of this name, or of numpy. Raises InvalidOp for one that programs do not have."""
    name = dtype if isinstance(dtype, str) else dtype_name(dtype)
    if name not in DTYPES:
        raise InvalidOp(f"{dtype!r} is no dtype of programs; there are {', '.join(DTYPES)}")
    return Dtype(name)


def check_fits(values: Any, dtype: str) -> None:
    """Raises InvalidOp if `dtype` does not have one of `values`, a number or an array of numbers."""
    wrong = misfit(values, dtype)
    if wrong is not None:
        raise InvalidOp(f"{wrong} is not a value of dtype {dtype}; bp.cast(x, dtype=...) converts the other operand")


def same_sizes(a: Size, b: Size) -> bool:
    """Whether two sizes may be equal: None may equal any, and two different names or numbers may not."""
    return a is None or b is None or a == b


def joined(a: Sequence[Size], b: Sequence[Size]) -> tuple[Size, ...]:
    """The sizes where `a` and `b` agree, and None where they differ."""
    return tuple(m if m == n else None for m, n in zip(a, b, strict=True))
