"""Arithmetic in LLVM IR text: instructions on numbers, in a function under construction.

Floating-point operations carry no fast-math flags: each is rounded as numpy rounds it, and a product and a sum become
one fused operation only where a kernel writes `fma`. Arithmetic on 16-bit floats without conversion to float32 is
refused, because nothing would round it.
"""

from __future__ import annotations

import numpy as np

from core.codegen.ir_values import IRValue, element_type, literal
from core.ir.errors import InternalError
from core.ir.precision import HALVES

__all__ = ["Arithmetic"]

EXACT = frozenset({"fabs", "floor", "ceil", "trunc", "rint", "arithmetic.fence"})
"""Intrinsics of a 16-bit float whose results are numbers of its dtype."""

_SUFFIX = {"float32": "f32", "float64": "f64"} | dict.fromkeys(HALVES, "f32")
"""The dtype in the name of an intrinsic."""


class Arithmetic:
    """The part of `core.codegen.llvm.Function` that writes arithmetic.

    declarations: texts that the module needs once: declarations, and definitions of functions called here.
    lines:        the instructions.
    """

    def __init__(self) -> None:
        self.declarations: set[str] = set()
        self.lines: list[str] = []
        self._count = 0

    def fresh(self, hint: str = "") -> str:
        self._count += 1
        return f"%{hint}{self._count}" if hint else f"%v{self._count}"

    def op(self, text: str, dtype: str, lanes: int = 1) -> IRValue:
        """Append an instruction, given as text; its result."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return IRValue(name, dtype, lanes)

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}")

    def constant(self, number: float | int | bool | np.generic, like: IRValue) -> IRValue:
        """A literal with the dtype and the lanes of `like`."""
        return self.splat(literal(number, like.dtype), like.lanes)

    def splat(self, value: IRValue, lanes: int) -> IRValue:
        """A scalar in every lane of a vector; a vector of `lanes` lanes is returned as it is."""
        if value.lanes == lanes:
            return value
        if value.lanes != 1:
            raise InternalError(f"cannot splat {value} to {lanes} lanes: it has {value.lanes}, wanted 1")
        if not value.name.startswith("%"):
            return IRValue(f"splat ({value})", value.dtype, lanes)
        vector = f"<{lanes} x {value.type}>"
        first = self.op(f"insertelement {vector} poison, {value}, i64 0", value.dtype, lanes)
        return self.op(f"shufflevector {first}, {vector} poison, <{lanes} x i32> zeroinitializer", value.dtype, lanes)

    def binary(self, opcode: str, a: IRValue, b: IRValue) -> IRValue:
        """opcode: LLVM's name: fadd, mul, and, shl, ... A scalar operand is splatted to the lanes of the other one."""
        if a.dtype in HALVES:
            raise InternalError(f"cannot write {opcode} of {a.dtype} numbers: convert them to float32")
        lanes = max(a.lanes, b.lanes)
        a, b = self.splat(a, lanes), self.splat(b, lanes)
        return self.op(f"{opcode} {a}, {b.name}", a.dtype, lanes)

    def compare(self, predicate: str, a: IRValue, b: IRValue) -> IRValue:
        """predicate: with its class: "fcmp olt", "icmp eq", ..."""
        lanes = max(a.lanes, b.lanes)
        a, b = self.splat(a, lanes), self.splat(b, lanes)
        return self.op(f"{predicate} {a}, {b.name}", "bool", lanes)

    def select(self, condition: IRValue, a: IRValue, b: IRValue) -> IRValue:
        lanes = max(condition.lanes, a.lanes, b.lanes)
        a, b = self.splat(a, lanes), self.splat(b, lanes)
        if condition.lanes != 1:
            condition = self.splat(condition, lanes)
        return self.op(f"select {condition}, {a}, {b}", a.dtype, lanes)

    def intrinsic(self, name: str, *args: IRValue, dtype: str | None = None) -> IRValue:
        """Call `llvm.<name>`, overloaded on the type of its first argument. Scalar arguments are splatted."""
        lanes = max(a.lanes for a in args)
        args = tuple(self.splat(a, lanes) for a in args)
        if args[0].dtype in HALVES and name not in EXACT:
            raise InternalError(f"cannot write {name} of {args[0].dtype} numbers: convert them to float32")
        one = _SUFFIX.get(args[0].dtype) or element_type(args[0].dtype)
        suffix = one if lanes == 1 else f"v{lanes}{one}"
        dtype = dtype or args[0].dtype
        returned = IRValue("", dtype, lanes).type
        full = f"@llvm.{name}.{suffix}"
        self.declarations.add(f"declare {returned} {full}({', '.join(a.type for a in args)})")
        return self.op(f"call {returned} {full}({', '.join(map(str, args))})", dtype, lanes)

    def fence(self, value: IRValue) -> IRValue:
        """The same bits, in the same register. LLVM does not search the instructions behind a fence for patterns.

        Integers have no fence: they are returned as they are.
        """
        return self.intrinsic("arithmetic.fence", value) if value.is_float else value

    def fma(self, a: IRValue, b: IRValue, c: IRValue) -> IRValue:
        """``a * b + c``, rounded once."""
        lanes = max(a.lanes, b.lanes, c.lanes)
        return self.intrinsic("fma", self.splat(a, lanes), b, c)

    def convert(self, value: IRValue, dtype: str) -> IRValue:
        """Convert as numpy's astype does, but a float out of an integer's range saturates, and NaN becomes 0.

        dtype: neither this nor that of the value is a 16-bit float.
        """
        if value.dtype == dtype:
            return value
        if dtype == "bool":
            predicate = "fcmp une" if value.is_float else "icmp ne"
            return self.compare(predicate, value, self.constant(0, value))
        target = IRValue("", dtype, value.lanes)
        if value.is_float and target.is_float:
            return self._cast("fpext" if dtype == "float64" else "fptrunc", value, target)
        if value.is_float:
            name = "fptosi.sat" if target.is_signed else "fptoui.sat"
            one = element_type(dtype)
            suffix = one if value.lanes == 1 else f"v{value.lanes}{one}"
            source = _SUFFIX[value.dtype]
            source = source if value.lanes == 1 else f"v{value.lanes}{source}"
            full = f"@llvm.{name}.{suffix}.{source}"
            self.declarations.add(f"declare {target.type} {full}({value.type})")
            return self.op(f"call {target.type} {full}({value})", dtype, value.lanes)
        if target.is_float:
            return self._cast("sitofp" if value.is_signed else "uitofp", value, target)
        bits = {"bool": 1}
        have = bits.get(value.dtype) or int(element_type(value.dtype)[1:])
        want = int(element_type(dtype)[1:])
        if have == want:
            return IRValue(value.name, dtype, value.lanes)
        return self._cast("trunc" if want < have else "sext" if value.is_signed else "zext", value, target)

    def bitcast(self, value: IRValue, dtype: str) -> IRValue:
        """The same bits as another dtype of the same size."""
        return self._cast("bitcast", value, IRValue("", dtype, value.lanes))

    def _cast(self, opcode: str, value: IRValue, target: IRValue) -> IRValue:
        return self.op(f"{opcode} {value} to {target.type}", target.dtype, value.lanes)
