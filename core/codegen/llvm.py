"""A writer of LLVM IR text: functions, counted loops and branches, memory, and 16-bit floats.

`Function` appends instructions and returns new values. Its values (`core.codegen.ir_values`) and its arithmetic on
float32, float64 and integers (`core.codegen.arithmetic`) are in files of their own.

A 16-bit float is a float32 in a register: `load` widens, `convert` rounds, `store` drops bits that are zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from core.codegen import halves
from core.codegen.arithmetic import Arithmetic
from core.codegen.cpus import cpu
from core.codegen.ir_values import I64, IRValue, element_type, is_number, itemsize, literal, storage_type
from core.ir.precision import HALVES

__all__ = ["I64", "Function", "IRValue", "element_type", "is_number", "itemsize", "literal", "storage_type"]


def _first_lanes(mask: IRValue) -> int:
    """How many of the first lanes a constant mask is true for; 0 if it is no such mask."""
    lanes = mask.name.strip("<>").split(", ")
    count = lanes.count("i1 true")
    return count if lanes == ["i1 true"] * count + ["i1 false"] * (len(lanes) - count) else 0


class Function(Arithmetic):
    """One function under construction.

    name:         without the @.
    params:       (name, dtype) or (name, dtype, lanes) of each parameter; `param` returns its value.
    noalias:      whether no two pointer parameters reach the same memory.
    internal:     whether only this module calls it.
    uses:         how often the function uses each elementary function, by its name.
    stop:         address of the stop word, for loops that poll; None if the function ends soon enough without.
    known:        values for reuse, by their expressions. A loop or branch sees the values from before it, not after it.
    top:          the instructions of the entry block.
    """

    def __init__(
        self, name: str, params: Sequence[tuple[str, str] | tuple[str, str, int]], returns: str = "void",
        noalias: bool = True, internal: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.name = name
        self.params = tuple(IRValue(f"%{n}", *type) for n, *type in params)
        self._by_name = {p.name: p for p in self.params}
        self.returns = returns
        self.noalias = noalias
        self.internal = internal
        self.uses: Counter[str] = Counter()
        self.stop: IRValue | None = None
        self.known: dict[object, tuple[IRValue, ...]] = {}
        self.top: list[str] = []
        self.block = "entry"

    def param(self, name: str) -> IRValue:
        return self._by_name[f"%{name}"]

    def has_param(self, name: str) -> bool:
        return f"%{name}" in self._by_name

    # --- 16-bit floats -------------------------------------------------------------------------------------------

    def convert(self, value: IRValue, dtype: str) -> IRValue:
        """Convert as numpy's astype does, but a float out of an integer's range saturates, and NaN becomes 0.

        float64 to bfloat16 rounds to float32 first, as ml_dtypes does.
        """
        if value.dtype == dtype:
            return value
        if dtype in HALVES:
            return self._rounded(value, dtype)
        if value.dtype in HALVES:
            value = IRValue(value.name, "float32", value.lanes)
            return value if dtype == "float32" else self.convert(value, dtype)
        return super().convert(value, dtype)

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
