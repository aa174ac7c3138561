"""The range of columns that a stripe computes under a mask, found by the run (see `core.plan.column_windows`)."""

from __future__ import annotations

from dataclasses import replace

from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.module import Module
from core.codegen.polling import stop_of
from core.codegen.reductions import identity
from core.codegen.rows import row_function, rows_poll
from core.ir.precision import HALVES
from core.plan.row_kernels import Operand, RowInstruction, RowKernel
from core.plan.striped import Domain, Window

__all__ = ["columns_of", "is_moderate"]


def is_moderate(
    module: Module, f: Function, window: Window, domain: Domain, batch: IRValue, bases: dict[int, IRValue]
) -> IRValue:
    """Whether all numbers of matrix `batch` that enter are between -limit and limit; false if one is NaN.

    bases: by the position of a guard, the address of its array.
    """
    holds: IRValue | None = None
    for at, guard in enumerate(window.guards):
        kernel = guard.kernel
        (operand,), (code, dtype) = kernel.operands, _loaded(kernel)
        height = kernel.rows // domain.batch
        full = kernel.code[0].full
        code = (
            *code,
            RowInstruction("apply", dtype, full, (len(code) - 1,), "abs"),
            RowInstruction("accumulate", dtype, full, (len(code),), "max", operand=1),
        )
        first = f.op(f"mul nsw {batch}, {height}", "int64")
        end = f.binary("add", first, I64(height))
        (largest,) = _reduced(module, f, kernel, operand, code, bases[at], first, end)
        below = f.compare("fcmp ole", f.load(largest, dtype), literal(window.limit, dtype))
        holds = below if holds is None else f.binary("and", holds, below)
    return IRValue("true", "bool") if holds is None else holds


def columns_of(
    module: Module, f: Function, window: Window, domain: Domain, moderate: IRValue, mask: IRValue | None,
    first: IRValue, row: IRValue, height: int,
) -> tuple[IRValue, IRValue]:  # fmt: skip
    """The first column that `height` rows from `row` of a matrix need, and the one after the last.

    moderate: whether the window holds for the matrix. mask: the address of the mask. first: the row among all rows.
    """
    columns, start, end = I64(domain.columns), I64(0), I64(domain.columns)
    if window.first is not None:
        start = f.intrinsic("smax", f.binary("add", row, I64(window.first)), I64(0))
    if window.last is not None:
        end = f.binary("add", row, I64(height + window.last))
    if window.mask is not None and mask is not None:
        after = f.binary("add", first, I64(height))
        shows, start, end = _shown(module, f, window, mask, first, after)
        moderate = f.binary("and", moderate, shows)
    start = f.intrinsic("smin", f.intrinsic("smax", start, I64(0)), columns)  # a run that stops finds no columns
    end = f.intrinsic("smin", f.intrinsic("smax", end, I64(0)), columns)
    below = f.binary("sub", start, f.op(f"srem {start}, {window.block}", "int64"))
    above = f.binary("add", end, I64(window.block - 1))
    above = f.binary("sub", above, f.op(f"srem {above}, {window.block}", "int64"))
    above = f.intrinsic("smin", above, columns)
    return f.select(moderate, below, I64(0)), f.select(moderate, above, columns)


def _shown(
    module: Module, f: Function, window: Window, mask: IRValue, first: IRValue, end: IRValue
) -> tuple[IRValue, IRValue, IRValue]:
    """Whether each row of the mask shows a column and none adds a large number; the first column shown, and the end."""
    assert window.mask is not None
    kernel = window.mask.kernel
    (operand,), (loaded, dtype), columns = kernel.operands, _loaded(kernel), kernel.inner
    rows = (0,) * len(kernel.outer)
    code, mask_at = list(loaded), len(loaded) - 1

    def add(*args: object, **more: object) -> int:
        code.append(RowInstruction(*args, **more))  # type: ignore[arg-type]
        return len(code) - 1

    shows = mask_at
    if dtype != "bool":
        shows = add("apply", "bool", True, (mask_at, add("constant", dtype, value=-window.hides)), "greater_than")
    for operator, number, otherwise, target in (("min", 0, columns, 1), ("max", 1, 0, 2)):
        place = add("iota", "int64", True, attrs=(("outer", rows), ("inner", 1)), value=number)
        chosen = add("apply", "int64", True, (shows, place, add("constant", "int64", value=otherwise)), "where")
        add("accumulate", "int64", True, (chosen,), operator, operand=target)
    largest = add("reduce", dtype, False, (mask_at,), "or" if dtype == "bool" else "max")
    add("accumulate", dtype, False, (largest,), "and" if dtype == "bool" else "min", operand=3)
    if dtype != "bool":
        add("accumulate", dtype, False, (largest,), "max", operand=4)
    start, after, least, *most = _reduced(module, f, kernel, operand, tuple(code), mask, first, end)
    holds = f.load(least, dtype)
    if most:
        above = f.compare("fcmp oge", holds, literal(-window.limit, dtype))
        holds = f.binary("and", above, f.compare("fcmp ole", f.load(most[0], dtype), literal(window.limit, dtype)))
    return holds, f.load(start, "int64"), f.load(after, "int64")


def _loaded(kernel: RowKernel) -> tuple[tuple[RowInstruction, ...], str]:
    """The instructions that load the array of a kernel, 16-bit numbers in float32, and the dtype of the last one."""
    (load,) = kernel.code
    if load.dtype not in HALVES:
        return (load,), load.dtype
    return (load, RowInstruction("apply", "float32", load.full, (0,), "cast", (("dtype", "float32"),))), "float32"


def _reduced(
    module: Module, f: Function, kernel: RowKernel, operand: Operand, code: tuple[RowInstruction, ...], base: IRValue,
    first: IRValue, end: IRValue,
) -> list[IRValue]:  # fmt: skip
    """The addresses of what `code` reduces the rows from `first` to `end` of an array to."""
    sums = {i.operand: i for i in code if i.kind == "accumulate"}
    steps = (0,) * len(kernel.outer)
    own = tuple(Operand(sums[n].dtype, steps, 0, True) for n in sorted(sums))
    made = replace(kernel, operands=(operand, *own), code=code)
    slots = []
    for number in sorted(sums):
        slots.append(f.slot(sums[number].dtype))
        f.store(identity(sums[number].op, sums[number].dtype), slots[-1])
    name = module.function(made, "rows", lambda name: row_function(name, made))
    stop = [stop_of(f, f.param("control"))] if rows_poll(made) else []
    module.polls |= bool(stop)
    f.do(f"call void @{name}({', '.join(map(str, [base, *slots, *stop, first, end]))})")
    return slots
