"""Random numbers from a counter, for one element or for a vector of elements: the bits of `core.ops.random.counter`.

A block of Philox gives two numbers, at an even position and at the following one. A vector of adjacent numbers that
begins at an even position computes each block once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from core.codegen.llvm import Function, IRValue, literal

__all__ = ["DRAWS"]

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
LOW = 0xFFFFFFFF
NEXT_KEY = 0x6B657921
"""The third word of the counter of `next_key`."""

Words = tuple[IRValue, IRValue, IRValue, IRValue]

Word = int | IRValue
"""A number below 2**32, or a scalar uint64 that holds one."""


def _philox(f: Function, counter: Words, key: IRValue) -> Words:
    """Four words for each counter. All words are uint64 below 2**32; `key` has 64 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = f.binary("and", key, f.constant(LOW, key)), f.binary("lshr", key, f.constant(32, key))
    for i in range(10):
        if i:
            k0, k1 = (f.binary("and", f.binary("add", k, f.constant(w, k)), f.constant(LOW, k))
                      for k, w in ((k0, W0), (k1, W1)))  # fmt: skip
        p0, p1 = f.binary("mul", c0, f.constant(M0, c0)), f.binary("mul", c2, f.constant(M1, c2))
        high = [f.binary("lshr", p, f.constant(32, p)) for p in (p1, p0)]
        c0 = f.binary("xor", f.binary("xor", high[0], c1), k0)
        c2 = f.binary("xor", f.binary("xor", high[1], c3), k1)
        c1, c3 = (f.binary("and", p, f.constant(LOW, p)) for p in (p1, p0))
    return c0, c1, c2, c3


def _bits(f: Function, block: IRValue, key: IRValue, stream: Word, seed: Word) -> tuple[IRValue, IRValue]:
    """The two numbers of each block, as 53 bits each."""
    words = (
        f.binary("and", block, f.constant(LOW, block)),
        f.binary("lshr", block, f.constant(32, block)),
        _whole(f, stream, block),
        _whole(f, seed, block),
    )
    a, b, c, d = _philox(f, words, key)

    def joined(high: IRValue, low: IRValue) -> IRValue:
        high = f.binary("shl", f.binary("lshr", high, f.constant(5, high)), f.constant(26, high))
        return f.binary("or", high, f.binary("lshr", low, f.constant(6, low)))

    return joined(a, b), joined(c, d)


def _whole(f: Function, word: Word, like: IRValue) -> IRValue:
    """A word for each lane of `like`."""
    return f.constant(word, like) if isinstance(word, int) else f.splat(word, like.lanes)


def _unit(f: Function, bits: IRValue, dtype: str) -> IRValue:
    """53 bits as a number in [0, 1), rounded to `dtype`."""
    return f.binary("fmul", f.convert(bits, dtype), f.splat(literal(2.0**-53, dtype), bits.lanes))


def _uniform(f: Function, at: IRValue, key: IRValue, *, stream: Word, seed: Word, paired: bool) -> IRValue:
    """The bits of the numbers at positions `at`. paired: the positions are adjacent, and the first one is even."""
    position = IRValue(at.name, "uint64", at.lanes)
    if paired and at.lanes > 2:
        half = at.lanes // 2
        even = ", ".join(f"i32 {2 * i}" for i in range(half))
        block = f.op(f"shufflevector {position}, {position.type} poison, <{half} x i32> <{even}>", "uint64", half)
        pair = _bits(f, f.binary("lshr", block, f.constant(1, block)), key, stream, seed)
        order = ", ".join(f"i32 {i // 2 + half * (i % 2)}" for i in range(at.lanes))
        return f.op(f"shufflevector {pair[0]}, {pair[1]}, <{at.lanes} x i32> <{order}>", "uint64", at.lanes)
    first, second = _bits(f, f.binary("lshr", position, f.constant(1, position)), key, stream, seed)
    odd = f.compare("icmp ne", f.binary("and", position, f.constant(1, position)), f.constant(0, position))
    return f.select(odd, second, first)


INLINE = 2
"""Draws that are inlined in one function; more of them are calls of one function: each is a hundred instructions."""


def _draw(f: Function, attrs: Mapping[str, Any], inputs: Sequence[IRValue], paired: bool) -> IRValue:
    """A number in [0, 1), from (position, key)."""
    at, key = inputs[0], IRValue(inputs[1].name, "uint64", inputs[1].lanes)
    stream, seed = attrs["stream"] % 2**32, (attrs["seed"] ^ (attrs["seed"] >> 32)) % 2**32
    f.uses["draw"] += 1
    if f.uses["draw"] <= INLINE:
        bits = _uniform(f, at, key, stream=stream, seed=seed, paired=paired)
    else:
        name = f"draw_{at.lanes}_{key.lanes}{'_paired' if paired else ''}"
        f.declarations.add(_text(name, at.lanes, key.lanes, paired))
        given = ", ".join(map(str, (at, key, IRValue(str(stream), "uint64"), IRValue(str(seed), "uint64"))))
        bits = f.op(f"call {IRValue('', 'uint64', at.lanes).type} @{name}({given})", "uint64", at.lanes)
    return _unit(f, bits, attrs["dtype"])


@functools.cache
def _text(name: str, lanes: int, key_lanes: int, paired: bool) -> str:
    """The function of any draw with so many lanes: (positions, key, words of the stream and of the seed) -> bits."""
    params = [("at", "int64", lanes), ("key", "uint64", key_lanes), ("stream", "uint64", 1), ("seed", "uint64", 1)]
    g = Function(name, params, IRValue("", "uint64", lanes).type, internal=True)
    at, key, stream, seed = g.params
    g.do(f"ret {_uniform(g, at, key, stream=stream, seed=seed, paired=paired)}")
    return g.text()


def _next_key(f: Function, attrs: Mapping[str, Any], inputs: Sequence[IRValue], paired: bool) -> IRValue:
    key = IRValue(inputs[0].name, "uint64", inputs[0].lanes)
    zero = f.constant(0, key)
    a, b, _, _ = _philox(f, (zero, zero, zero, f.constant(NEXT_KEY, key)), key)
    joined = f.binary("or", a, f.binary("shl", b, f.constant(32, b)))
    return IRValue(joined.name, "int64", joined.lanes)


DRAWS: dict[str, Callable[[Function, Mapping[str, Any], Sequence[IRValue], bool], IRValue]] = {
    "draw": _draw,
    "next_key": _next_key,
}
"""Names of "apply" instructions that draw -> their generators: (function, attributes, arguments, paired) -> value."""
