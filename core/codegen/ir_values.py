"""Values of LLVM IR: registers and literals that know their dtype and lanes, and the types of dtypes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from core.ir.errors import InternalError
from core.ir.precision import HALVES
from core.ops.common.types import as_dtype

__all__ = ["I64", "IRValue", "element_type", "is_number", "itemsize", "literal", "storage_type"]

_REGISTER = {"bool": "i1", "float32": "float", "float64": "double", "ptr": "ptr"} | dict.fromkeys(HALVES, "float")
_REGISTER |= {f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


def element_type(dtype: str) -> str:
    """The LLVM type of one element in a register, where a bool is one bit."""
    return _REGISTER[dtype]


def storage_type(dtype: str) -> str:
    """The LLVM type of one element in memory, where a bool is one byte and a 16-bit float its bits."""
    return "i8" if dtype == "bool" else "i16" if dtype in HALVES else _REGISTER[dtype]


def itemsize(dtype: str) -> int:
    """Bytes of one element in memory."""
    return 8 if dtype == "ptr" else as_dtype(dtype).itemsize


FLOATS = frozenset({"float32", "float64", *HALVES})


@dataclass(frozen=True, slots=True)
class IRValue:
    """A register or literal. dtype: a dtype of the core, or "ptr". lanes: elements of the vector; 1 for a scalar."""

    name: str
    dtype: str
    lanes: int = 1

    @property
    def type(self) -> str:
        one = element_type(self.dtype)
        return one if self.lanes == 1 else f"<{self.lanes} x {one}>"

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def is_signed(self) -> bool:
        return self.dtype.startswith("int")

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


def I64(number: int) -> IRValue:
    """An integer literal: a size, a count, an offset."""
    return IRValue(str(number), "int64")


def literal(number: float | int | bool | np.generic, dtype: str) -> IRValue:
    """A scalar literal with the exact bits of `number` in `dtype`.

    Raises InternalError for an integer out of the range of `dtype`, which LLVM would truncate. An unsigned integer may
    be written as the signed one with the same bits.
    """
    if dtype == "bool":
        return IRValue("true" if number else "false", dtype)
    if dtype == "float64":
        return IRValue(f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}", dtype)
    if dtype in FLOATS:  # LLVM writes a float by the bits of the double of the same value
        with np.errstate(all="ignore"):
            as_double = float(as_dtype(dtype).type(number))
        return IRValue(f"0x{struct.unpack('<Q', struct.pack('<d', as_double))[0]:016X}", dtype)
    limits = np.iinfo(dtype)
    if not min(limits.min, -(limits.max // 2) - 1) <= int(number) <= limits.max:
        raise InternalError(f"{int(number)} is no {dtype}: its range is {limits.min} to {limits.max}")
    return IRValue(str(int(number)), dtype)


def is_number(value: IRValue) -> bool:
    """Whether a float value is a literal other than NaN, scalar or splatted."""
    bits = value.name.removeprefix("splat (").removesuffix(")").split()[-1]
    return bits.startswith("0x") and not np.isnan(struct.unpack("<d", struct.pack("<Q", int(bits, 16)))[0])
