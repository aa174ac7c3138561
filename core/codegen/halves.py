"""16-bit floats in LLVM IR: their bits in memory, and the float32 of the same value in a register.

bfloat16 is the upper half of a float32, so integer instructions convert it on every CPU. float16 has instructions of
its own on x86 with F16C and on ARM; elsewhere LLVM would call a library, and integer instructions do the work. All
conversions round to the nearest number, ties to even; denormals are numbers like others, and NaN stays NaN.
"""

from __future__ import annotations

import struct

from core.codegen.arithmetic import Arithmetic
from core.codegen.cpus import cpu
from core.codegen.ir_values import IRValue

__all__ = ["narrowed", "rounded", "rounded_to_odd", "widened"]


def widened(f: Arithmetic, bits: IRValue, dtype: str) -> IRValue:
    """The float32 of a 16-bit float that is given by its bits, an uint16."""
    if dtype == "bfloat16":
        wide = f.convert(bits, "int32")
        return f.bitcast(f.binary("shl", wide, f.constant(16, wide)), "float32")
    if cpu().converts_float16:
        return _through_half(f, bits, "bitcast", "fpext", "float", "float32")
    wide = f.convert(bits, "int32")
    magnitude = f.binary("shl", f.binary("and", wide, f.constant(0x7FFF, wide)), f.constant(13, wide))
    value = f.binary("fmul", f.bitcast(magnitude, "float32"), _power(f, 112, wide))  # denormals become normal
    special = f.compare("icmp uge", magnitude, f.constant(0x1F << 23, wide))
    magnitude = f.binary("or", magnitude, f.constant(0x7F800000, wide))
    magnitude = f.select(special, magnitude, f.bitcast(value, "int32"))
    sign = f.binary("shl", f.binary("and", wide, f.constant(0x8000, wide)), f.constant(16, wide))
    return f.bitcast(f.binary("or", magnitude, sign), "float32")


def narrowed(f: Arithmetic, value: IRValue, dtype: str) -> IRValue:
    """The bits, an uint16, of a float32 whose value the 16-bit float holds exactly."""
    if dtype == "bfloat16":
        bits = f.bitcast(value, "int32")
        return f.convert(f.binary("lshr", bits, f.constant(16, bits)), "uint16")
    if cpu().converts_float16:
        return _through_half(f, value, "fptrunc", "bitcast", "i16", "uint16")
    return _float16_bits(f, value)


def rounded(f: Arithmetic, value: IRValue, dtype: str, any_nan: bool) -> IRValue:
    """`value`, a float32, rounded to the 16-bit float `dtype`, as a float32.

    any_nan: whether a NaN may have bits that bfloat16 drops. Without it, a NaN is the result of operations on bfloat16
             numbers: its lower bits are 0, and rounding leaves it as it is.
    """
    if dtype == "float16":
        return widened(f, narrowed(f, value, dtype), dtype)
    bits = f.bitcast(value, "int32")
    near = _half_up_to_even(f, bits)
    if any_nan:
        near = f.select(f.compare("fcmp uno", value, value), f.constant(0x7FC00000, bits), near)
    return f.bitcast(f.binary("and", near, f.constant(-0x10000, bits)), "float32")


def _half_up_to_even(f: Arithmetic, bits: IRValue) -> IRValue:
    """The bits of a float32 plus 0x7FFF, plus 1 if the upper half is odd: its upper half is then rounded."""
    if cpu().adds_words and bits.lanes in (4, 8, 16):  # one instruction adds both halves of `words` to the bits
        words = f.binary("or", f.binary("and", bits, f.constant(0x10000, bits)), f.constant(0x7FFF, bits))
        width = 32 * bits.lanes
        pairs = f"<{2 * bits.lanes} x i16>"
        f.declarations.add(f"declare {bits.type} @llvm.x86.avx512.vpdpwssd.{width}({bits.type}, {pairs}, {pairs})")
        halves = f.op(f"bitcast {words} to {pairs}", "int16", 2 * bits.lanes)
        given = f"{bits}, {halves}, {f.constant(1, halves)}"
        return f.op(f"call {bits.type} @llvm.x86.avx512.vpdpwssd.{width}({given})", bits.dtype, bits.lanes)
    last = f.binary("and", f.binary("lshr", bits, f.constant(16, bits)), f.constant(1, bits))
    return f.binary("add", f.binary("add", bits, f.constant(0x7FFF, bits)), last)


def rounded_to_odd(f: Arithmetic, value: IRValue) -> IRValue:
    """A float64 as a float32 whose last bit is 1 if it is not exact, so that a second rounding sees on which side of a
    tie the number lies (Boldo and Melquiond 2008).
    """
    near = f.convert(value, "float32")
    back = f.convert(near, "float64")
    bits = f.bitcast(near, "int32")
    larger = f.compare("fcmp ogt", f.intrinsic("fabs", back), f.intrinsic("fabs", value))
    differs = f.compare("fcmp one", back, value)
    bits = f.binary("sub", bits, f.convert(larger, "int32"))
    return f.bitcast(f.binary("or", bits, f.convert(differs, "int32")), "float32")


def _through_half(f: Arithmetic, value: IRValue, first: str, second: str, to: str, dtype: str) -> IRValue:
    """Two instructions with LLVM's type for float16 in between."""
    half, to = (each if value.lanes == 1 else f"<{value.lanes} x {each}>" for each in ("half", to))
    between = f.op(f"{first} {value} to {half}", dtype, value.lanes)
    return f.op(f"{second} {half} {between.name} to {to}", dtype, value.lanes)


def _float16_bits(f: Arithmetic, value: IRValue) -> IRValue:
    """As `narrowed` for float16, but rounds `value`, with integer instructions and one addition."""
    bits = f.bitcast(value, "int32")
    sign = f.binary("and", bits, f.constant(-0x80000000, bits))
    magnitude = f.binary("xor", bits, sign)
    # normal results: rebias the exponent and round by integers
    last = f.binary("and", f.binary("lshr", magnitude, f.constant(13, bits)), f.constant(1, bits))
    near = f.binary("add", f.binary("add", magnitude, f.constant(0xFFF - (112 << 23), bits)), last)
    normal = f.binary("lshr", near, f.constant(13, bits))
    # denormal results: an addition puts the last bit where the number's last bit belongs, and rounds
    anchor = f.constant((127 - 15 + 24 - 10) << 23, bits)  # the float32 whose last bit is worth 2^-24
    shifted = f.binary("fadd", f.bitcast(magnitude, "float32"), f.bitcast(anchor, "float32"))
    tiny = f.binary("sub", f.bitcast(shifted, "int32"), anchor)
    small = f.compare("icmp ult", magnitude, f.constant(113 << 23, bits))
    large = f.compare("icmp uge", magnitude, f.constant((127 + 16) << 23, bits))
    nan = f.compare("icmp ugt", magnitude, f.constant(0x7F800000, bits))
    beyond = f.select(nan, f.constant(0x7E00, bits), f.constant(0x7C00, bits))
    result = f.select(large, beyond, f.select(small, tiny, normal))
    sign = f.binary("lshr", sign, f.constant(16, bits))
    return f.convert(f.binary("or", result, sign), "uint16")


def _power(f: Arithmetic, exponent: int, like: IRValue) -> IRValue:
    """2 to a power, in as many lanes as `like` has."""
    (bits,) = struct.unpack("<i", struct.pack("<f", 2.0**exponent))
    return f.bitcast(f.constant(bits, like), "float32")
