"""The translation of numpy's functions: LLVM instructions for one element, or for a vector of elements.

Arithmetic and comparisons are instructions. An elementary function (`vmath`) is inlined at its first uses in an LLVM
function; further uses call one shared function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from core.codegen import integers, vmath
from core.codegen.cpus import Cpu, cpu
from core.codegen.llvm import Function, IRValue, is_number, literal

__all__ = ["FUNCTIONS", "INLINE", "LONG", "NotTraceable", "polygamma"]


class NotTraceable(Exception):
    """The kernel uses something of numpy that has no translation, which the message names."""


# --- instructions ------------------------------------------------------------------------------------------------


def _arithmetic(name: str) -> Callable[..., IRValue]:
    def emit(f: Function, a: IRValue, b: IRValue) -> IRValue:
        _same(a, b)
        if a.dtype == "bool":
            raise NotTraceable("arithmetic of bools")
        return f.binary(("f" if a.is_float else "") + name, a, b)

    return emit


def _divide(f: Function, a: IRValue, b: IRValue) -> IRValue:
    _floating(a, b)
    return f.binary("fdiv", a, b)


def _negative(f: Function, a: IRValue) -> IRValue:
    if a.is_float:
        return f.op(f"fneg {a}", a.dtype, a.lanes)
    return f.binary("sub", f.constant(0, a), a)


def _abs(f: Function, a: IRValue) -> IRValue:
    if a.is_float:
        return f.intrinsic("fabs", a)
    return f.select(f.compare("icmp slt", a, f.constant(0, a)), _negative(f, a), a) if a.is_signed else a


def _sign(f: Function, a: IRValue) -> IRValue:
    zero, one = f.constant(0, a), f.constant(1, a)
    if not a.is_float:
        below = f.constant(-1, a) if a.is_signed else one
        positive = f.select(_less(f, zero, a), one, zero)
        return f.select(_less(f, a, zero), below, positive)
    nonzero = f.select(f.compare("fcmp ogt", a, zero), one, f.constant(-1, a))
    result = f.select(f.compare("fcmp oeq", a, zero), zero, nonzero)
    return f.select(f.compare("fcmp uno", a, a), a, result)


def _extreme(larger: bool) -> Callable[..., IRValue]:
    def emit(f: Function, a: IRValue, b: IRValue) -> IRValue:
        _same(a, b)
        if not a.is_float:
            first = _less(f, b, a) if larger else _less(f, a, b)
            return f.select(first, a, b)
        if is_number(b):  # then only a can be NaN, and an unordered comparison keeps it
            return f.select(f.compare("fcmp uge" if larger else "fcmp ule", a, b), a, b)
        first = f.compare("fcmp oge" if larger else "fcmp ole", a, b)
        return f.select(f.binary("or", first, f.compare("fcmp uno", a, a)), a, b)

    return emit


def _comparison(float_predicate: str, signed: str, unsigned: str) -> Callable[..., IRValue]:
    def emit(f: Function, a: IRValue, b: IRValue) -> IRValue:
        _same(a, b)
        if a.is_float:
            return f.compare(f"fcmp {float_predicate}", a, b)
        return f.compare(f"icmp {signed if a.is_signed else unsigned}", a, b)

    return emit


_less = _comparison("olt", "slt", "ult")


def _logical(opcode: str) -> Callable[..., IRValue]:
    def emit(f: Function, a: IRValue, b: IRValue) -> IRValue:
        return f.binary(opcode, f.convert(a, "bool"), f.convert(b, "bool"))

    return emit


def _bitwise(opcode: str) -> Callable[..., IRValue]:
    def emit(f: Function, a: IRValue, b: IRValue) -> IRValue:
        _same(a, b)
        if a.is_float:
            raise NotTraceable("bits of floats")
        return f.binary(opcode, a, b)

    return emit


def _not(f: Function, a: IRValue) -> IRValue:
    if a.is_float:
        raise NotTraceable("bits of floats")
    return f.binary("xor", a, f.constant(1 if a.dtype == "bool" else -1, a))


def _where(f: Function, condition: IRValue, a: IRValue, b: IRValue) -> IRValue:
    _same(a, b)
    return f.select(f.convert(condition, "bool"), a, b)


def _rounding(intrinsic: str) -> Callable[..., IRValue]:
    return lambda f, a: f.intrinsic(intrinsic, a) if a.is_float else a


def _class(float_test: Callable[[Function, IRValue], IRValue], otherwise: bool) -> Callable[..., IRValue]:
    return lambda f, a: float_test(f, a) if a.is_float else f.splat(literal(otherwise, "bool"), a.lanes)


def _is_inf(f: Function, a: IRValue) -> IRValue:
    return f.compare("fcmp oeq", f.intrinsic("fabs", a), f.constant(np.inf, a))


def _is_finite(f: Function, a: IRValue) -> IRValue:
    return f.compare("fcmp olt", f.intrinsic("fabs", a), f.constant(np.inf, a))


def _sqrt(f: Function, a: IRValue) -> IRValue:
    _floating(a)
    return f.intrinsic("sqrt", a)


def _same(a: IRValue, b: IRValue) -> None:
    if a.dtype != b.dtype:
        raise NotTraceable(f"{a.dtype} with {b.dtype}")


def _floating(*args: IRValue) -> None:
    for a in args:
        if not a.is_float or a.dtype != args[0].dtype:
            raise NotTraceable(f"a function of {a.dtype}")


# --- elementary functions, written out or called -----------------------------------------------------------------


INLINE = 8
"""Uses of an elementary function that are inlined in one function; more of them are calls. Both compile time and misses
of the instruction cache grow with the size of the code. The results have the same bits."""


LONG = ("digamma", "lgamma", "polygamma")
"""Functions, by how their names begin, whose every use is a call: each is some hundred instructions."""


def _special(function: Callable[..., IRValue]) -> Callable[..., IRValue]:
    def emit(f: Function, *args: IRValue) -> IRValue:
        _floating(*args)
        lanes = max(a.lanes for a in args)
        args = tuple(f.splat(a, lanes) for a in args)
        if not _counts(f, function):
            return function(f, *args)
        name = _function_of_its_own(f, function, args)
        return f.op(f"call {args[0].type} @{name}({', '.join(map(str, args))})", args[0].dtype, lanes)

    return emit


def polygamma(f: Function, x: IRValue, order: int) -> IRValue:
    """A derivative of digamma."""
    return _special(vmath.polygamma(order))(f, x)


def _one_of_two(function: Callable[..., tuple[IRValue, IRValue]], which: int) -> Callable[..., IRValue]:
    """One of the two values of `function`. Both are computed at once and kept in `Function.known`."""

    def emit(f: Function, x: IRValue) -> IRValue:
        _floating(x)
        key = (function.__name__, x)
        if key not in f.known:
            if _counts(f, function):
                name = _function_of_its_own(f, function, (x,))
                pair = f"{{ {x.type}, {x.type} }}"
                both = f.op(f"call {pair} @{name}({x})", "ptr").name
                f.known[key] = tuple(f.op(f"extractvalue {pair} {both}, {i}", x.dtype, x.lanes) for i in (0, 1))
            else:
                f.known[key] = function(f, x)
        return f.known[key][which]

    return emit


def _counts(f: Function, function: Callable[..., Any]) -> bool:
    """Count one more use of `function`; whether it is a call."""
    f.uses[function.__name__] += 1
    return f.uses[function.__name__] > (0 if function.__name__.startswith(LONG) else INLINE)


def _function_of_its_own(f: Function, function: Callable[..., Any], args: Sequence[IRValue]) -> str:
    """The name of an LLVM function that computes `function`; `f` gets its text."""
    name = f"{function.__name__}_{args[0].dtype}_{args[0].lanes}"
    f.declarations |= _texts(name, function, args[0].dtype, args[0].lanes, len(args), cpu())
    return name


@functools.cache
def _texts(name: str, function: Callable[..., Any], dtype: str, lanes: int, count: int, _: Cpu) -> frozenset[str]:
    """LLVM IR of the function and of its callees, for a CPU."""
    f = Function(name, [(f"x{i}", dtype, lanes) for i in range(count)], IRValue("", dtype, lanes).type, internal=True)
    result = function(f, *f.params)
    if isinstance(result, tuple):
        f.returns = f"{{ {', '.join(each.type for each in result)} }}"
        whole = "poison"
        for i, each in enumerate(result):
            whole = f.op(f"insertvalue {f.returns} {whole}, {each}, {i}", "ptr").name
        f.do(f"ret {f.returns} {whole}")
    else:
        f.do(f"ret {result}")
    return frozenset((f.text(), *f.declarations))


def _of_numbers(floats: Callable[..., IRValue] | None, integers: Callable[..., IRValue]) -> Callable[..., IRValue]:
    """A function of floats, None if they have none, and of integers."""

    def emit(f: Function, a: IRValue, b: IRValue) -> IRValue:
        _same(a, b)
        if a.dtype == "bool" or (a.is_float and floats is None):
            raise NotTraceable(f"bits or remainders of {a.dtype}")
        return _special(floats)(f, a, b) if floats is not None and a.is_float else integers(f, a, b)

    return emit


# --- all of them -------------------------------------------------------------------------------------------------


FUNCTIONS: dict[str, Callable[..., IRValue]] = {name: _special(each) for name, each in vmath.FUNCTIONS.items()}
FUNCTIONS |= {
    "sin": _one_of_two(vmath.sine_and_cosine, 0),
    "cos": _one_of_two(vmath.sine_and_cosine, 1),
    "add": _arithmetic("add"),
    "subtract": _arithmetic("sub"),
    "multiply": _arithmetic("mul"),
    "divide": _divide,
    "negative": _negative,
    "abs": _abs,
    "absolute": _abs,
    "sign": _sign,
    "sqrt": _sqrt,
    "square": lambda f, a: _arithmetic("mul")(f, a, a),
    "mod": _of_numbers(vmath.mod, integers.mod),
    "fmod": _of_numbers(vmath.fmod, integers.fmod),
    "floor_divide": _of_numbers(vmath.floor_divide, integers.floor_divide),
    "left_shift": _of_numbers(None, integers.shift_left),
    "right_shift": _of_numbers(None, integers.shift_right),
    "maximum": _extreme(larger=True),
    "minimum": _extreme(larger=False),
    "equal": _comparison("oeq", "eq", "eq"),
    "not_equal": _comparison("une", "ne", "ne"),
    "less": _less,
    "less_equal": _comparison("ole", "sle", "ule"),
    "greater": _comparison("ogt", "sgt", "ugt"),
    "greater_equal": _comparison("oge", "sge", "uge"),
    "logical_and": _logical("and"),
    "logical_or": _logical("or"),
    "logical_xor": _logical("xor"),
    "logical_not": lambda f, a: _not(f, f.convert(a, "bool")),
    "bitwise_and": _bitwise("and"),
    "bitwise_or": _bitwise("or"),
    "bitwise_xor": _bitwise("xor"),
    "invert": _not,
    "where": _where,
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "trunc": _rounding("trunc"),
    "rint": _rounding("rint"),
    "isnan": _class(lambda f, a: f.compare("fcmp uno", a, a), otherwise=False),
    "isinf": _class(_is_inf, otherwise=False),
    "isfinite": _class(_is_finite, otherwise=True),
}
