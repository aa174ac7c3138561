"""16-bit results that stay in float32 registers: those that only arithmetic inside of row kernels reads.

Rounding takes longer than most arithmetic, and a result that reaches no memory is more exact without it. An op that
compares, chooses or converts reads rounded numbers, as memory holds them. So the maximum of a row equals one of its
elements, and a client's cast gives what it names.

Row kernels may compute the same value each for itself (`repeated`, `made_rows`). A value is either rounded in all of
them or in none, so that no op of a program has two results: a value has a number, which follows from the op and the
numbers of its operands, and a load has the number of the value that was stored. A program that computes an op again, as
backward passes do to save memory, has two ops, which may differ in their last bit. So every result is rounded where a
program asks whether two numbers are equal, as the adjoint of a maximum does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.ir import Block
from core.ir.precision import HALVES
from core.ir.program import blocks_inside
from core.ir.stop import poll
from core.plan.elementary import WIDE, widens, with_shared_functions
from core.plan.flow import Branch, Loop
from core.plan.instructions import Gemm, Instruction, Instructions, Limited, Rows
from core.plan.memory import Root, View
from core.plan.row_kernels import RowInstruction, RowKernel
from core.plan.striped import Striped, StripedProduct

__all__ = ["ARITHMETIC", "compares_floats", "without_rounding"]

ARITHMETIC = frozenset(
    (
        "add", "asinh", "atan", "atan2", "cos", "cosh", "div", "erf", "erfc", "exp", "expm1", "hypot", "log", "log10",
        "log1p", "log2", "mul", "scale", "sigmoid", "sin", "sinh", "sqrt", "square", "sub", "sum", "tan", "tanh",
    )
)  # fmt: skip
"""Ops whose operands and results need not be 16-bit numbers. A result that is rounded ends in a function that rounds.

Functions that are defined up to a bound only, such as acos, are not among them: an operand that rounds to the bound may
lie beyond it.
"""


Rounded = Mapping[tuple[int, int], Sequence[bool]]
"""For a kernel, given by the id of its `Rows` and its number there: whether each of its values must be rounded."""


def without_rounding(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """`instructions` of a whole plan, in which results that only arithmetic reads are not rounded to 16 bits."""
    kernels = list(_row_kernels(instructions))
    if not any(map(_has_halves, kernels)):
        return tuple(instructions)
    values = _Values()
    for rows in kernels:
        poll()
        values.read(rows)
    rounded = values.rounded()
    return tuple(_rewritten(each, rounded) for each in instructions)


def _has_halves(rows: Rows) -> bool:
    poll()
    return any(instr.dtype in HALVES for _, kernel, _ in _kernels(rows) for instr in kernel.code)


def compares_floats(block: Block) -> bool:
    """Whether an op of `block`, or of a block inside, asks whether two floats are equal that are no constants."""
    return any(_compares(each) for each in (block, *blocks_inside(block.ops)))


def _compares(block: Block) -> bool:
    constants: set[str] = set()
    for op in block.ops:
        poll()
        if op.type == "fill_constant":
            constants.update(op.outputs)
        compares = op.type in ("equal", "not_equal") and constants.isdisjoint(op.inputs)
        if compares and block.types[op.inputs[0]].is_float:
            return True
    return False


class _Values:
    """The numbers of the values of row kernels, and those of values that must be rounded.

    Values with different numbers differ. Two that have the same number may differ, and are then rounded or not
    together.
    """

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._same: list[int] = []  # a number -> a smaller number of the same value, or itself
        self._in_memory: dict[Root, int] = {}
        self._rounded: set[int] = set()
        self._of: dict[tuple[int, int], list[int]] = {}  # the rows, and which of their kernels: numbers of its values

    def read(self, rows: Rows) -> None:
        """Number the values of `rows`, which runs after all that were read before."""
        for which, kernel, views in _kernels(rows):
            numbers: list[int] = []
            arithmetic = _arithmetic(kernel)
            for n, instr in enumerate(kernel.code):
                args = [self._first(numbers[a]) for a in instr.args]
                numbers.append(self._number(kernel, instr, args, views))
                if n not in arithmetic and not (instr.kind == "accumulate" and instr.op == "sum"):
                    self._rounded.update((*args, numbers[n]))
            if which >= 0:  # a merge adds up the last value
                self._rounded.add(numbers[-1])
            self._of[id(rows), which] = numbers

    def _number(self, kernel: RowKernel, instr: RowInstruction, args: Sequence[int], views: Sequence[View]) -> int:
        if instr.kind in ("load", "lookup"):
            return self._memory(views[instr.operand].root)
        if instr.kind == "store":
            self._unite(self._memory(views[instr.operand].root), args[0])
        if widens(kernel, instr):
            return args[0]  # a reader of the float32 number reads the 16-bit one
        key = instr.kind, instr.op, instr.dtype, repr(instr.attrs), repr(instr.value), *args
        return self._numbers[key] if key in self._numbers else self._new(key)

    def _memory(self, root: Root) -> int:
        if root not in self._in_memory:
            self._in_memory[root] = self._new(root)
        return self._in_memory[root]

    def _new(self, key: object) -> int:
        number = self._numbers[key] = len(self._same)
        self._same.append(number)
        return number

    def _first(self, number: int) -> int:
        while self._same[number] != number:
            number = self._same[number]
        return number

    def _unite(self, one: int, other: int) -> None:
        first, second = sorted((self._first(one), self._first(other)))
        self._same[second] = first

    def rounded(self) -> Rounded:
        """Whether each value of each kernel must be rounded."""
        firsts = {self._first(n) for n in self._rounded}
        return {kernel: [self._first(n) in firsts for n in numbers] for kernel, numbers in self._of.items()}


def _computes(instr: RowInstruction) -> bool:
    """Whether `instr` is an arithmetic op, and does not return its operand as it is."""
    attrs = dict(instr.attrs)
    same = instr.op == "scale" and attrs["scale"] == 1 and attrs["bias"] == 0
    same = same or (instr.op == "sum" and len(instr.args) == 1)
    return instr.kind == "apply" and instr.op in ARITHMETIC and not same


def _arithmetic(kernel: RowKernel) -> frozenset[int]:
    """The instructions of `kernel` whose operands need not be rounded, nor their results where these have 16 bits.

    Among them are conversions to 16 bits of float32 numbers that arithmetic makes from 16-bit ones, as adjoints do: no
    other float32 number loses its conversion.
    """
    found: set[int] = set()
    within: set[int] = set()  # numbers of 16 bits, and float32 ones that are computed from nothing else
    for n, instr in enumerate(kernel.code):
        inside = within.issuperset(instr.args)
        total = instr.kind == "reduce" and instr.op == "sum"
        narrows = instr.op == "cast" and instr.dtype in HALVES and kernel.code[instr.args[0]].dtype == WIDE and inside
        if total or narrows or widens(kernel, instr) or (_computes(instr) and "float" in instr.dtype):
            found.add(n)
        if instr.kind == "constant" or instr.dtype in HALVES or (n in found and inside):
            within.add(n)
    return frozenset(found)


def _kernels(rows: Rows) -> Iterator[tuple[int, RowKernel, Sequence[View]]]:
    """The kernel of `rows` with its views, numbered -1, and those of rows that it makes for its merges, from 0 on."""
    yield -1, rows.kernel, rows.views
    for which, merge in enumerate(rows.kernel.merged):
        if merge.made is not None:
            yield which, merge.made.kernel, [rows.views[i] for i in merge.made.params]


def _row_kernels(instructions: Iterable[Instruction | StripedProduct]) -> Iterator[Rows]:
    """All row kernels of `instructions`, in the order in which they run."""
    for each in instructions:
        poll()
        if isinstance(each, Rows):
            yield each
        elif isinstance(each, Gemm) and each.then is not None:
            yield each.then
        elif isinstance(each, Limited):
            yield from _row_kernels((each.instruction,))
        elif isinstance(each, StripedProduct):
            yield from _row_kernels((each.product,))
        elif isinstance(each, Striped):
            yield from _row_kernels(each.body)
        elif isinstance(each, Loop):
            yield from _row_kernels(each.body.instructions)
        elif isinstance(each, Branch):
            yield from _row_kernels((*each.yes.instructions, *each.no.instructions))


def _rewritten(each: Any, rounded: Rounded) -> Any:
    """An instruction, or a part of one, without the needless roundings; itself if it has none."""
    poll()
    if isinstance(each, Rows):
        return _unrounded(each, rounded)
    if isinstance(each, Gemm):
        return each if each.then is None else _with(each, then=_rewritten(each.then, rounded))
    if isinstance(each, Limited):
        return _with(each, instruction=_rewritten(each.instruction, rounded))
    if isinstance(each, StripedProduct):
        return _with(each, product=_rewritten(each.product, rounded))
    if isinstance(each, Striped):
        return _with(each, body=tuple(_rewritten(part, rounded) for part in each.body))
    if isinstance(each, Loop):
        return _with(each, body=_body(each.body, rounded))
    if isinstance(each, Branch):
        return _with(each, yes=_body(each.yes, rounded), no=_body(each.no, rounded))
    return each


def _body(body: Instructions, rounded: Rounded) -> Instructions:
    return _with(body, instructions=tuple(_rewritten(each, rounded) for each in body.instructions))


def _unrounded(rows: Rows, rounded: Rounded) -> Rows:
    found: dict[int, RowKernel] = {}
    for which, kernel, _ in _kernels(rows):
        code = tuple(
            replace(instr, rounds=False) if instr.kind == "apply" and instr.dtype in HALVES and not must else instr
            for instr, must in zip(kernel.code, rounded[id(rows), which], strict=True)
        )
        found[which] = _with(kernel, code=code)
    merged = tuple(
        _with(merge, made=_with(merge.made, kernel=found[which])) if merge.made else merge
        for which, merge in enumerate(rows.kernel.merged)
    )
    return _with(rows, kernel=_with(with_shared_functions(found[-1]), merged=merged))


def _with(each: Any, **parts: Any) -> Any:
    """`each` with other parts; itself if they are those that it has, because instructions compare by identity."""
    same = all(_is_same(getattr(each, name), part) for name, part in parts.items())
    return each if same else replace(each, **parts)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
    return one is other
