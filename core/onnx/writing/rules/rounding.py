"""Rounding, remainders and whole quotients."""

from __future__ import annotations

from core.onnx.writing.registry import writes


@writes("floor")
def floor(w, x, **_):
    return w.node("Floor", x)


@writes("ceil")
def ceil(w, x, **_):
    return w.node("Ceil", x)


@writes("round")
def round_(w, x, **_):
    return w.node("Round", x)


@writes("trunc")
def trunc(w, x, **_):
    v = w.wide(x)
    down, up = w.node("Floor", v), w.node("Ceil", v)
    return w.cast(w.where(w.node("Less", v, w.number(0, v)), up, down), x.dtype)


def _nonzero(w, y):
    """y, after a check that no divisor is 0; constants are checked here."""
    known = w.model.known.get(y.name)
    if known is not None and known.all():
        return y
    return w.guarded(y, w.node("Not", w.node("Equal", y, w.number(0, y))))


@writes("mod")
def mod(w, x, y):
    if not x.is_float:
        return w.node("Mod", x, _nonzero(w, y))
    return w.cast(_float_mod(w, w.wide(x), w.wide(y)), x.dtype)


def _float_mod(w, x, y):
    """The exact remainder of C, moved to the sign of y."""
    rest = w.node("Mod", x, y, fmod=1)
    zero = w.number(0, x)
    other = w.node("Xor", w.node("Less", rest, zero), w.node("Less", y, zero))
    moved = w.node("And", other, w.node("Not", w.node("Equal", rest, zero)))
    return w.where(moved, w.add(rest, y), rest)


@writes("fmod")
def fmod(w, x, y):
    return w.node("Mod", x, y if x.is_float else _nonzero(w, y), fmod=1)


@writes("floor_div")
def floor_div(w, x, y):
    if not x.is_float:
        return whole_floor_div(w, x, _nonzero(w, y))
    a, b = w.wide(x), w.wide(y)
    quotient = w.div(w.sub(a, _float_mod(w, a, b)), b)
    down = w.node("Floor", quotient)
    far = w.node("Greater", w.sub(quotient, down), w.number(0.5, a))
    near = w.where(far, w.add(down, w.number(1, a)), down)
    return w.cast(w.where(w.node("Equal", b, w.number(0, b)), w.div(a, b), near), x.dtype)


def whole_floor_div(w, x, y):
    """Integer division rounds towards 0, so a negative quotient with a remainder is one less."""
    quotient = w.div(x, y)
    if x.dtype == "uint8":
        return quotient
    rest = w.sub(x, w.mul(quotient, y))
    zero = w.number(0, x)
    below = w.node("Xor", w.node("Less", rest, zero), w.node("Less", y, zero))
    inexact = w.node("And", below, w.node("Not", w.node("Equal", rest, zero)))
    return w.sub(quotient, w.cast(inexact, x.dtype))
