"""The transpose of a matrix: square blocks, transposed in registers."""

from __future__ import annotations

from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.vector_slices import mask
from core.plan.geometry import Transposition

__all__ = ["transpose", "transpose_square", "transpose_units", "transposed_square"]


def transpose_units(spec: Transposition) -> int:
    """Units of work: as many rows of the result in each as a vector has lanes."""
    return -(-spec.columns // lanes(spec.dtype))


def transpose(_: Module, f: Function, spec: Transposition) -> None:
    """``(x, out)``: out [columns, rows] from x [rows, columns]."""
    width = lanes(spec.dtype)
    whole, rest = divmod(spec.columns, width)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        start = f.op(f"mul nsw {unit}, {width}", "int64")
        if whole:
            with f.when(f.compare("icmp slt", unit, I64(whole))):
                _strip(f, spec, start, width)
        if rest:
            with f.when(f.compare("icmp eq", unit, I64(whole))):
                _strip(f, spec, start, rest)


def _strip(f: Function, spec: Transposition, start: IRValue, columns: int) -> None:
    """`columns` columns of x from `start`, in all rows."""
    width = lanes(spec.dtype)
    whole, rest = divmod(spec.rows, width)
    if whole:
        with f.loop(I64(0), I64(whole * width), width) as row:
            _block(f, spec, row, width, start, columns)
    if rest:
        _block(f, spec, I64(whole * width), rest, start, columns)


def _block(f: Function, spec: Transposition, row: IRValue, rows: int, start: IRValue, columns: int) -> None:
    width, dtype = lanes(spec.dtype), spec.dtype
    x = f.at(f.at(f.param("x"), f.op(f"mul nsw {row}, {spec.step}", "int64"), dtype), start, dtype)
    vectors = [f.load(f.at(x, I64(i * spec.step), dtype), dtype, width, mask(columns, width)) for i in range(rows)]
    vectors = transposed_square(f, vectors)
    out = f.at(f.at(f.param("out"), f.op(f"mul nsw {start}, {spec.rows}", "int64"), dtype), row, dtype)
    for i in range(columns):
        f.store(vectors[i], f.at(out, I64(i * spec.rows), dtype), mask(rows, width))


def transpose_square(
    module: Module, f: Function, dtype: str, source: tuple[IRValue, IRValue], target: tuple[IRValue, IRValue],
    rows: IRValue, columns: IRValue, lanes: int, pads: bool = False,
) -> None:  # fmt: skip
    """Store the transpose of a matrix of `rows` by `columns` numbers, each from 1 to `lanes`; more count as `lanes`.

    source, target: (address, elements from one row to the next). One function of the module serves all calls.
    pads:           store zeros for missing rows. Stale numbers that only fill a vector may be denormal, for which
                    arithmetic can take a hundred times as long.
    """
    params = [("source", "ptr"), ("step", "int64"), ("target", "ptr"), ("distance", "int64"),
              ("rows", "int64"), ("columns", "int64")]  # fmt: skip
    name = module.function(
        ("square", dtype, lanes, pads), "square", lambda name: _square(Function(name, params), dtype, lanes, pads)
    )
    f.do(f"call void @{name}({', '.join(map(str, [*source, *target, rows, columns]))})")


def _square(f: Function, dtype: str, lanes: int, pads: bool) -> Function:
    rows, columns = f.param("rows"), f.param("columns")
    whole = f.compare("icmp sge", f.intrinsic("smin", rows, columns), I64(lanes))
    f.either(whole, lambda: _whole_square(f, dtype, lanes), lambda: _partial_square(f, dtype, lanes, pads))
    return f


def _whole_square(f: Function, dtype: str, lanes: int) -> None:
    read = [f.load(_line(f, "source", "step", I64(i), dtype), dtype, lanes) for i in range(lanes)]
    for i, line in enumerate(transposed_square(f, read)):
        f.store(line, _line(f, "target", "distance", I64(i), dtype))


def _partial_square(f: Function, dtype: str, lanes: int, pads: bool) -> None:
    rows, columns = f.param("rows"), f.param("columns")
    counts = IRValue(f"<{', '.join(f'i64 {i}' for i in range(lanes))}>", "int64", lanes)
    across, down = (f.compare("icmp slt", counts, f.splat(n, lanes)) for n in (columns, rows))
    last = f.binary("sub", rows, I64(1))  # a missing row is read as the last one
    places = [_line(f, "source", "step", f.intrinsic("smin", I64(i), last), dtype) for i in range(lanes)]
    for i, line in enumerate(transposed_square(f, [f.load(at, dtype, lanes, across) for at in places])):
        with f.when(f.compare("icmp slt", I64(i), columns)):
            whole = f.select(down, line, f.splat(literal(0, dtype), lanes)) if pads else line
            f.store(whole, _line(f, "target", "distance", I64(i), dtype), None if pads else down)


def _line(f: Function, base: str, step: str, number: IRValue, dtype: str) -> IRValue:
    return f.at(f.param(base), f.binary("mul", number, f.param(step)), dtype)


def transposed_square(f: Function, rows: list[IRValue]) -> list[IRValue]:
    """The columns of a square whose rows are vectors. Elements of missing rows are undefined in the result.

    Fences keep LLVM from trying to merge each exchange with all those before it, which takes more time than the rest of
    the compilation. Rows that are missing or constant make exchanges simpler, and get no fence.
    """
    width = rows[0].lanes
    vectors = [*rows, *[IRValue("poison", rows[0].dtype, width)] * (width - len(rows))]
    step, computed = width // 2, all(each.name.startswith("%") for each in vectors)
    while step:  # exchange the off-diagonal quarters of ever smaller squares
        for i in range(width):
            if not i & step:
                vectors[i], vectors[i + step] = _exchanged(f, vectors[i], vectors[i + step], step)
        step //= 2
        if step and computed:
            vectors = [f.fence(each) for each in vectors]
    return vectors


def _exchanged(f: Function, a: IRValue, b: IRValue, step: int) -> tuple[IRValue, IRValue]:
    width = a.lanes
    upper = [lane if not lane & step else width + lane - step for lane in range(width)]
    lower = [lane + step if not lane & step else width + lane for lane in range(width)]
    return _shuffled(f, a, b, upper), _shuffled(f, a, b, lower)


def _shuffled(f: Function, a: IRValue, b: IRValue, lanes: list[int]) -> IRValue:
    order = ", ".join(f"i32 {lane}" for lane in lanes)
    return f.op(f"shufflevector {a}, {b}, <{len(lanes)} x i32> <{order}>", a.dtype, a.lanes)
