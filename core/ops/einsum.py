"""`einsum`: products and sums named by letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from core.errors import ProgramError
from core.ir import TensorType
from core.ops.types import broadcast_shapes, same_dtype
from core.registry import Example, lookup, op

__all__: list[str] = []

A = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
B = np.cos(np.arange(12.0)).reshape(3, 4)
SQUARE = np.sin(np.arange(9.0)).reshape(3, 3)
CUBE = np.cos(np.arange(12.0) * 3).reshape(2, 3, 2)
HIDDEN = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[::-1]


def _terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str, set[str]]:
    """The letters of each operand and of the result, an ellipsis spelled out, and the letters that stand for it.

    Raises ProgramError (bad_attr).
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ProgramError(f"{equation!r} names {len(terms)} operands, but there are {len(ranks)}", "bad_attr")
    named = {c for c in text if c.isalpha()}
    spare = [c for c in HIDDEN if c not in named]
    spelled, width = [], 0
    for term, rank in zip(terms, ranks, strict=True):
        letters, dots = term.replace("...", ""), term.count("...")
        if any(not c.isascii() or not c.isalpha() for c in letters) or dots > 1:
            raise ProgramError(f"{term!r} in {equation!r} is no list of letters", "bad_attr")
        missing = rank - len(letters)
        if missing < 0 or (missing and not dots):
            raise ProgramError(f"{term!r} does not name the {rank} axes of its operand", "bad_attr")
        width = max(width, missing)
        spelled.append((term, missing))
    if width > len(spare):
        raise ProgramError(f"{equation!r} has too many axes", "bad_attr")
    hidden = "".join(spare[:width])
    inputs = [term.replace("...", hidden[width - n :]) if "..." in term else term for term, n in spelled]
    if arrow:
        output = right.replace("...", hidden)
    else:
        joined = "".join(terms).replace("...", "")
        output = hidden + "".join(sorted(c for c in set(joined) if joined.count(c) == 1))
    if len(set(output)) < len(output) or any(c not in "".join(inputs) for c in output):
        raise ProgramError(f"the result of {equation!r} repeats a letter or has a new one", "bad_attr")
    if any(term.count(c) > 2 for term in inputs for c in term):
        raise ProgramError(f"a letter occurs three times in one operand of {equation!r}", "bad_attr")
    return inputs, output, set(hidden)


@op(broadcasts=True)
def einsum(xp, *x, equation: str):
    """Products of elements of the operands, summed over every letter that the result lacks, as in ``ij,jk->ik``.

    A letter that occurs twice in an operand takes its diagonal. Without ``->`` the letters that occur once come out, in
    alphabetical order. ``...`` stands for further axes, which broadcast.
    """
    inputs, output, _ = _terms(equation, [v.ndim for v in x])
    return xp.asarray(xp.einsum(f"{','.join(inputs)}->{output}", *x, **({"optimize": True} if len(x) > 2 else {})))


@einsum.infer
def einsum_infer(*x, equation):
    if not x:
        raise ProgramError("einsum needs an operand", "bad_slot")
    dtype = same_dtype(*x)
    if dtype == "bool":
        raise ProgramError("einsum needs numbers, not bool", "dtype_mismatch")
    inputs, output, hidden = _terms(equation, [t.rank for t in x])
    sizes: dict[str, int] = {}
    for term, type in zip(inputs, x, strict=True):
        for letter, n in zip(term, type.shape, strict=True):
            known = sizes.get(letter, n if letter not in hidden else 1)
            if letter in hidden:
                sizes[letter] = broadcast_shapes((known,), (n,))[0]
            elif -1 not in (known, n) and known != n:
                raise ProgramError(f"{letter!r} in {equation!r} has the sizes {known} and {n}", "shape_mismatch")
            else:
                sizes[letter] = n if known == -1 else known
    return TensorType(tuple(sizes[c] for c in output), dtype)


@einsum.vjp
def einsum_vjp(ct, out, *x, equation):
    inputs, output, hidden = _terms(equation, [v.rank for v in x])

    def dotted(term: str) -> str:
        """`term` with an ellipsis for the letters that stand for one, so that their axes broadcast again."""
        letters = [c for c in term if c not in hidden]
        at = next((i for i, c in enumerate(term) if c in hidden), None)
        return term if at is None else "".join([*letters[:at], "...", *letters[at:]])

    def emit(operands, result):
        terms = ",".join(dotted(term) for term, _ in operands)
        return lookup("einsum")(*(v for _, v in operands), equation=f"{terms}->{dotted(result)}")

    result = []
    for i, (term, value) in enumerate(zip(inputs, x, strict=True)):
        operands = [(output, ct), *((t, v) for j, (t, v) in enumerate(zip(inputs, x, strict=True)) if j != i)]
        wanted = "".join(dict.fromkeys(term))
        if any(all(c not in t for t, _ in operands) for c in wanted):
            operands.append((term, lookup("full_like")(value, value=1.0)))  # what was summed away comes back everywhere
        back = emit(operands, wanted)
        if wanted != term:
            back = lookup("sum_to_like")(back, emit([(term, value)], wanted))
            back = lookup("diagonals_into")(back, value, letters=term)
        result.append(back)
    return tuple(result)


@op
def diagonals_into(xp, x, like, *, letters: str):
    """Zeros shaped like `like`, with x where einsum reads ``letters -> letters without repeats``."""
    out = xp.zeros(like.shape, x.dtype)
    unique = "".join(dict.fromkeys(letters))
    index: list[Any] = []
    for letter, n in zip(letters, like.shape, strict=True):
        shape = [1] * len(unique)
        shape[unique.index(letter)] = n
        index.append(xp.arange(n).reshape(shape))
    out[tuple(index)] = x
    return out


@diagonals_into.infer
def diagonals_into_infer(x, like, *, letters):
    if len(letters) != like.rank or len(set(letters)) != x.rank:
        raise ProgramError(f"{letters!r} does not name the axes of {like} and {x}", "shape_mismatch")
    return TensorType(like.shape, x.dtype)


@diagonals_into.vjp
def diagonals_into_vjp(ct, out, x, like, *, letters):
    return lookup("einsum")(ct, equation=f"{letters}->{''.join(dict.fromkeys(letters))}"), None


diagonals_into.example(
    lambda: [
        Example((A[0], SQUARE), (np.diag(A[0]),), {"letters": "ii"}),
        Example(
            (CUBE[:, 0], np.zeros((2, 2, 2))), (np.einsum("ij,ik->ikj", CUBE[:, 0], np.eye(2)),), {"letters": "iij"}
        ),
    ]
)
einsum.example(
    lambda: [
        Example((A, B), (A @ B,), {"equation": "ij,jk->ik"}),
        Example((SQUARE,), (np.trace(SQUARE),), {"equation": "ii"}),
        Example((SQUARE, A), (np.diag(SQUARE) * A,), {"equation": "ii,ki->ki"}),
        Example((A, B), (A.sum(0) @ B,), {"equation": "ij,jk->k"}),
        Example((CUBE, CUBE[:1]), (np.einsum("bij,bkj->bik", CUBE, CUBE[[0, 0]]),), {"equation": "...ij,...kj->...ik"}),
        Example((A, B, B), (np.einsum("ij,jk,lk->il", A, B, B),), {"equation": "ij,jk,lk->il"}),
        Example((A[:0], B), (np.zeros((0, 4)),), {"equation": "ij,jk"}),
    ]
)
