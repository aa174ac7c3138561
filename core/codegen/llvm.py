"""A writer of LLVM IR text: values that know their dtype and lanes, functions, counted loops.

An `IRValue` is the name of an SSA register or a literal; `Function` appends instructions and returns new values.
Floating-point operations carry no fast-math flags: each is rounded as numpy rounds it, and a product and a sum become
one fused operation only where a kernel writes `fma`.

A 16-bit float is a float32 in a register: `load` widens, `convert` rounds, `store` drops bits that are zero. Arithmetic
on them without conversion to float32 is refused, because nothing would round it.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from core.codegen import halves
from core.codegen.cpus import cpu
from core.ir.errors import InternalError
from core.ir.precision import HALVES
from core.ops.common.types import as_dtype

__all__ = ["I64", "Function", "IRValue", "element_type", "is_number", "itemsize", "literal", "storage_type"]

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

EXACT = frozenset({"fabs", "floor", "ceil", "trunc", "rint"})
"""Intrinsics of a 16-bit float whose results are numbers of its dtype."""

_SUFFIX = {"float32": "f32", "float64": "f64"} | dict.fromkeys(HALVES, "f32")
"""The dtype in the name of an intrinsic."""


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


def _first_lanes(mask: IRValue) -> int:
    """How many of the first lanes a constant mask is true for; 0 if it is no such mask."""
    lanes = mask.name.strip("<>").split(", ")
    count = lanes.count("i1 true")
    return count if lanes == ["i1 true"] * count + ["i1 false"] * (len(lanes) - count) else 0


class Function:
    """One function under construction.

    name:         without the @.
    params:       (name, dtype) or (name, dtype, lanes) of each parameter; `param` returns its value.
    noalias:      whether no two pointer parameters reach the same memory.
    internal:     whether only this module calls it.
    uses:         how often the function uses each elementary function, by its name.
    declarations: texts that the module needs once: declarations, and definitions of functions called here.
    stop:         address of the stop word, for loops that poll; None if the function ends soon enough without.
    known:        values for reuse, by their expressions. A loop or branch sees the values from before it, not after it.
    lines, top:   the instructions, and those of the entry block.
    """

    def __init__(
        self, name: str, params: Sequence[tuple[str, str] | tuple[str, str, int]], returns: str = "void",
        noalias: bool = True, internal: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.params = tuple(IRValue(f"%{n}", *type) for n, *type in params)
        self.returns = returns
        self.noalias = noalias
        self.internal = internal
        self.uses: Counter[str] = Counter()
        self.stop: IRValue | None = None
        self.declarations: set[str] = set()
        self.known: dict[object, tuple[IRValue, ...]] = {}
        self.lines: list[str] = []
        self.top: list[str] = []
        self.block = "entry"
        self._count = 0

    # --- values --------------------------------------------------------------------------------------------------

    def param(self, name: str) -> IRValue:
        return next(p for p in self.params if p.name == f"%{name}")

    def has_param(self, name: str) -> bool:
        return any(p.name == f"%{name}" for p in self.params)

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

    def fma(self, a: IRValue, b: IRValue, c: IRValue) -> IRValue:
        """``a * b + c``, rounded once."""
        lanes = max(a.lanes, b.lanes, c.lanes)
        return self.intrinsic("fma", self.splat(a, lanes), b, c)

    def convert(self, value: IRValue, dtype: str) -> IRValue:
        """As numpy's astype, but a float out of an integer's range saturates, and NaN becomes 0.

        float64 to bfloat16 rounds to float32 first, as ml_dtypes does.
        """
        if value.dtype == dtype:
            return value
        if dtype in HALVES:
            return self._rounded(value, dtype)
        if value.dtype in HALVES:
            value = IRValue(value.name, "float32", value.lanes)
            return value if dtype == "float32" else self.convert(value, dtype)
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

    def rounded(self, value: IRValue, dtype: str) -> IRValue:
        """A float32 computed from numbers of `dtype`, a 16-bit float, rounded to `dtype`.

        Cheaper than `convert`: if it is NaN, the operands' bits are such that rounding keeps it NaN.
        """
        return IRValue(halves.rounded(self, value, dtype, any_nan=False).name, dtype, value.lanes)

    def exact(self, value: IRValue, dtype: str) -> IRValue:
        """A float32 that is known to be a number of `dtype`, a 16-bit float."""
        return IRValue(value.name, dtype, value.lanes)

    def _rounded(self, value: IRValue, dtype: str) -> IRValue:
        if value.dtype == "float64" and dtype == "float16":
            value = halves.rounded_to_odd(self, value)
        value = self.convert(value, "float32")
        return IRValue(halves.rounded(self, value, dtype, any_nan=True).name, dtype, value.lanes)

    def _cast(self, opcode: str, value: IRValue, target: IRValue) -> IRValue:
        return self.op(f"{opcode} {value} to {target.type}", target.dtype, value.lanes)

    # --- memory --------------------------------------------------------------------------------------------------

    def at(self, base: IRValue, offset: IRValue, dtype: str) -> IRValue:
        """The address of element `offset` of an array of `dtype` at `base`."""
        return self.op(f"getelementptr inbounds {storage_type(dtype)}, {base}, {offset}", "ptr")

    def load(self, address: IRValue, dtype: str, lanes: int = 1, mask: IRValue | None = None) -> IRValue:
        """`lanes` elements from `address`. Where the mask is false, memory is not read and the lane is zero."""
        stored = storage_type(dtype)
        one = stored if lanes == 1 else f"<{lanes} x {stored}>"
        raw = "uint8" if dtype == "bool" else "uint16" if dtype in HALVES else dtype
        align = itemsize(raw)
        if mask is None:
            value = self.op(f"load {one}, {address}, align {align}", raw, lanes)
        else:
            suffix = f"v{lanes}{ {'float': 'f32', 'double': 'f64'}.get(stored, stored) }"
            name = f"@llvm.masked.load.{suffix}.p0"
            self.declarations.add(f"declare {one} {name}(ptr, <{lanes} x i1>, {one})")
            value = self.op(
                f"call {one} {name}(ptr align {align} {address.name}, {mask}, {one} zeroinitializer)", raw, lanes
            )
        if dtype in HALVES:
            return IRValue(halves.widened(self, value, dtype).name, dtype, lanes)
        return self.convert(value, "bool") if dtype == "bool" else value

    def store(self, value: IRValue, address: IRValue, mask: IRValue | None = None) -> None:
        """Write `value` to `address`, with a mask only the lanes where it is true."""
        if value.dtype == "bool":
            value = self.convert(value, "uint8")
        if value.dtype in HALVES:
            value = halves.narrowed(self, IRValue(value.name, "float32", value.lanes), value.dtype)
        align = itemsize(value.dtype)
        if mask is None:
            self.do(f"store {value}, {address}, align {align}")
            return
        count = _first_lanes(mask)
        if count == 1 or (count and cpu().vector_bytes < 64):
            # A mask takes a dozen cycles where a CPU has no registers for masks. LLVM 20 writes too many bytes for a
            # truncation that is stored with a mask of one lane.
            self._store_first(value, address, count)
            return
        stored = element_type(value.dtype)
        suffix = f"v{value.lanes}{ {'float': 'f32', 'double': 'f64'}.get(stored, stored) }"
        name = f"@llvm.masked.store.{suffix}.p0"
        self.declarations.add(f"declare void {name}({value.type}, ptr, <{value.lanes} x i1>)")
        self.do(f"call void {name}({value}, ptr align {align} {address.name}, {mask})")

    def _store_first(self, value: IRValue, address: IRValue, count: int) -> None:
        """Store the first `count` lanes of `value`: powers of two of them, the largest first."""
        start = 0
        while start < count:
            lanes = 1 << (count - start).bit_length() - 1
            if lanes == 1:
                part = self.op(f"extractelement {value}, i64 {start}", value.dtype)
            else:
                places = ", ".join(f"i32 {start + i}" for i in range(lanes))
                mixed = f"shufflevector {value}, {value.type} poison, <{lanes} x i32> <{places}>"
                part = self.op(mixed, value.dtype, lanes)
            self.store(part, self.at(address, I64(start), value.dtype) if start else address)
            start += lanes

    def slot(self, dtype: str, lanes: int = 1) -> IRValue:
        """A stack slot for one value. LLVM turns slots into registers where it can."""
        name = self.fresh("slot")
        self.top.append(f"  {name} = alloca {IRValue('', dtype, lanes).type}, align 64")
        return IRValue(name, "ptr")

    def read(self, slot: IRValue, dtype: str, lanes: int = 1) -> IRValue:
        return self.op(f"load {IRValue('', dtype, lanes).type}, {slot}", dtype, lanes)

    def write(self, value: IRValue, slot: IRValue) -> None:
        self.do(f"store {value}, {slot}")

    # --- control -------------------------------------------------------------------------------------------------

    def label(self, hint: str) -> str:
        self._count += 1
        return f"{hint}{self._count}"

    def begin(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: IRValue, yes: str, no: str) -> None:
        self.do(f"br {condition}, label %{yes}, label %{no}")

    @contextmanager
    def loop(self, start: IRValue, end: IRValue, step: int | IRValue = 1, polls: bool = False) -> Iterator[IRValue]:
        """A loop that counts from `start` to `end` (excluded); the context's value is the counter.

        step:  greater than 0.
        polls: the loop ends as soon as the word at `stop` is set, if the function has one.
        """
        head, body, latch, done = (self.label(h) for h in ("head", "body", "latch", "done"))
        before, counter, following = self.block, self.fresh("i"), self.fresh("n")
        self.jump(head)
        self.begin(head)
        self.do(f"{counter} = phi i64 [ {start.name}, %{before} ], [ {following}, %{latch} ]")
        go = self.op(f"icmp slt i64 {counter}, {end.name}", "bool")
        self.branch(self.binary("and", go, self.goes_on()) if polls and self.stop else go, body, done)
        self.begin(body)
        before_body, self.known = self.known, self.known.copy()
        yield IRValue(counter, "int64")
        self.known = before_body
        self.jump(latch)
        self.begin(latch)
        self.do(f"{following} = add nsw i64 {counter}, {step.name if isinstance(step, IRValue) else step}")
        self.jump(head)
        self.begin(done)

    def goes_on(self) -> IRValue:
        """Whether the word at `stop` is not set."""
        word = self.op(f"load volatile i64, {self.stop}, align 8", "int64")
        return self.compare("icmp eq", word, I64(0))

    @contextmanager
    def when(self, condition: IRValue) -> Iterator[None]:
        """The instructions written inside the context run only if `condition` holds."""
        yes, after = self.label("yes"), self.label("after")
        self.branch(condition, yes, after)
        self.begin(yes)
        before_yes, self.known = self.known, self.known.copy()
        yield
        self.known = before_yes
        self.jump(after)
        self.begin(after)

    def either(self, condition: IRValue, yes: Callable[[], None], no: Callable[[], None]) -> None:
        """Run the instructions that `yes` writes if `condition` holds, else those that `no` writes."""
        then, otherwise, after = self.label("then"), self.label("else"), self.label("joined")
        self.branch(condition, then, otherwise)
        for label, write in ((then, yes), (otherwise, no)):
            self.begin(label)
            write()
            self.jump(after)
        self.begin(after)

    @property
    def declaration(self) -> str:
        """The declaration, for modules that call the function without defining it."""
        return f"declare {self.returns} @{self.name}({', '.join(p.type for p in self.params)})"

    def text(self) -> str:
        """The text of the finished function."""
        alias = " noalias" if self.noalias else ""
        params = ", ".join(f"{p.type}{alias if p.dtype == 'ptr' else ''} {p.name}" for p in self.params)
        last = ["  ret void"] if self.returns == "void" else []
        linkage = "internal " if self.internal else ""
        head = f"define {linkage}{self.returns} @{self.name}({params}) #0 {{"
        return "\n".join([head, "entry:", *self.top, "  br label %start", "start:", *self._body(), *last, "}"])

    def _body(self) -> list[str]:
        # phi nodes name the block that they come from: the entry block ends after the slots, and `start` follows it
        return [line.replace("%entry ]", "%start ]") for line in self.lines]
