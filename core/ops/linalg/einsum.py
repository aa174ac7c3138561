"""Einstein summation: products and sums whose axes are named by letters."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from core.ir import TensorType
from core.ir.bounds import Bounds
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, op
from core.ops.common.halves import with_halves_widened
from core.ops.common.types import broadcast_shapes, matches, same_dtype
from core.ops.shape.broadcast import sum_to_like
from core.ops.shape.creation import full_like

__all__ = ["diagonal_sizes", "terms_of"]

A = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
B = np.cos(np.arange(12.0)).reshape(3, 4)
SQUARE = np.sin(np.arange(9.0)).reshape(3, 3)
CUBE = np.cos(np.arange(12.0) * 3).reshape(2, 3, 2)
HIDDEN = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[::-1]


@lru_cache(maxsize=1024)
def terms_of(equation: str, ranks: tuple[int, ...]) -> tuple[tuple[str, ...], str, str]:
    """The letters of each operand, the letters of the result, and the letters that replace the ellipsis.

    Raises ProgramError (bad_attr) if the equation does not fit operands of these ranks.
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ProgramError(f"{equation!r} names {len(terms)} operands, but there are {len(ranks)}", "bad_attr")
    used = {c for c in text if c.isalpha()}
    unused_letters = [c for c in HIDDEN if c not in used]
    spelled, width = [], 0
    for term, rank in zip(terms, ranks, strict=True):
        letters, dots = term.replace("...", ""), term.count("...")
        if any(not c.isascii() or not c.isalpha() for c in letters) or dots > 1:
            raise ProgramError(f"{term!r} in {equation!r} is not a list of letters", "bad_attr")
        missing = rank - len(letters)
        if missing < 0 or (missing and not dots):
            raise ProgramError(f"{term!r} does not match the {rank} axes of its operand", "bad_attr")
        width = max(width, missing)
        spelled.append((term, missing))
    if width > len(unused_letters):
        raise ProgramError(f"{equation!r} needs more letters than there are", "bad_attr")
    ellipsis = "".join(unused_letters[:width])
    inputs = tuple(term.replace("...", ellipsis[width - n :]) for term, n in spelled)
    if arrow:
        output = right.replace("...", ellipsis)
    else:
        all_letters = "".join(terms).replace("...", "")
        output = ellipsis + "".join(sorted(c for c in set(all_letters) if all_letters.count(c) == 1))
    if len(set(output)) < len(output) or any(c not in "".join(inputs) for c in output):
        raise ProgramError(f"the result of {equation!r} repeats a letter or has one that no operand has", "bad_attr")
    return inputs, output, ellipsis


@op(broadcasts=True)
def einsum(xp, *x, equation: Annotated[str, Bounds(max_length=1000)]):
    """Einstein summation: multiplies the operands and sums over each letter that the result lacks, as in
    ``ij,jk->ik``.

    A letter that occurs more than once in an operand selects its diagonal. Without ``->`` the result has the letters
    that occur once, in alphabetical order. ``...`` stands for further axes, which broadcast; if the result has no
    ``...``, they are summed. Every other letter must have the same size in all operands.
    More than two operands are multiplied pairwise in an order chosen for their sizes.
    """
    inputs, output, ellipsis = terms_of(equation, tuple([v.ndim for v in x]))
    try:
        _sizes(equation, inputs, ellipsis, [v.shape for v in x])
    except ProgramError as error:
        raise ExecutionError(error.message, error.code) from None
    spelled = f"{','.join(inputs)}->{output}"

    def contracted(*operands: Any) -> Any:
        # optimize also for two operands: only then does numpy use a matrix product
        return xp.asarray(xp.einsum(spelled, *operands, **({"optimize": True} if len(x) > 1 else {})))

    return with_halves_widened(contracted, *x)


def _sizes(equation: str, inputs: tuple[str, ...], ellipsis: str, shapes: list[tuple[int, ...]]) -> dict[str, int]:
    """The size of each letter. Raises ProgramError (shape_mismatch) if a letter has two sizes.

    numpy broadcasts a size of 1 under any letter. Here only the letters of an ellipsis broadcast.
    """
    sizes: dict[str, int] = {}
    for term, shape in zip(inputs, shapes, strict=True):
        for letter, n in zip(term, shape, strict=True):
            known = sizes.get(letter, 1 if letter in ellipsis else n)
            if letter in ellipsis:
                sizes[letter] = broadcast_shapes((known,), (n,))[0]
            elif -1 not in (known, n) and known != n:
                raise ProgramError(f"{letter!r} in {equation!r} has two sizes, {known} and {n}", "shape_mismatch")
            else:
                sizes[letter] = n if known == -1 else known
    return sizes


@einsum.infer
def einsum_infer(*x, equation):
    if not x:
        raise ProgramError("einsum needs an operand", "bad_slot")
    dtype = same_dtype(*x)
    if dtype == "bool":
        raise ProgramError("einsum needs numbers, not bool", "dtype_mismatch")
    inputs, output, ellipsis = terms_of(equation, tuple([t.rank for t in x]))
    sizes = _sizes(equation, inputs, ellipsis, [t.shape for t in x])
    return TensorType(tuple(sizes[c] for c in output), dtype)


@einsum.vjp
def einsum_vjp(ct, out, *x, equation):
    """For each operand, an einsum of `ct` and the other operands in which the operand and the result change places.

    Two cases need more. A letter that occurs in no other term was summed, so a factor of ones restores its size; the
    same holds for a summed ellipsis whose size may be 1 in the other terms. A letter that occurs twice was read on a
    diagonal, so its cotangent goes to the diagonal of zeros.
    """
    inputs, output, ellipsis = terms_of(equation, tuple([v.rank for v in x]))
    result = []
    for i, (term, value) in enumerate(zip(inputs, x, strict=True)):
        operands = [(output, ct), *((t, v) for j, (t, v) in enumerate(zip(inputs, x, strict=True)) if j != i)]
        unique = "".join(dict.fromkeys(term))
        fixed = set("".join(t for t, _ in operands)) - (set(ellipsis) - set(output))
        if any(c not in fixed and not _has_size(operands, c, value.shape[term.index(c)]) for c in unique):
            operands.append((term, full_like(value, value=1.0)))
        own_ellipsis = "".join(c for c in term if c in ellipsis)
        if unique == term and (own_ellipsis == ellipsis or term.startswith(own_ellipsis)):
            result.append(_emit(operands, term, ellipsis))  # broadcast ellipsis axes are summed after this rule
            continue
        # move the ellipsis axes to the front, because sum_to_like sums leading axes
        leading = "".join(sorted(unique, key=lambda c: c not in ellipsis))
        adjoint = _emit(operands, leading, ellipsis)
        adjoint = sum_to_like(adjoint, _emit([(term, value)], leading, ellipsis))
        if leading != unique:
            adjoint = _emit([(leading, adjoint)], unique, ellipsis)
        result.append(adjoint if unique == term else diagonals_into(adjoint, value, letters=term))
    return tuple(result)


def _has_size(operands, letter, size):
    """Whether an operand is known to have this size under `letter`."""
    return size != -1 and any(letter in t and v.shape[t.index(letter)] == size for t, v in operands)


def _emit(operands, result, ellipsis):
    """An einsum whose ellipsis letters are written as ``...`` again, so that those axes broadcast."""

    def dotted(term):
        at = next((i for i, c in enumerate(term) if c in ellipsis), None)
        rest = "".join(c for c in term if c not in ellipsis)
        return term if at is None else f"{rest[:at]}...{rest[at:]}"

    terms = ",".join(dotted(term) for term, _ in operands)
    return einsum(*(v for _, v in operands), equation=f"{terms}->{dotted(result)}")


@op
def diagonals_into(xp, x, like, *, letters: Annotated[str, Bounds(max_length=64)]):
    """Zeros shaped like `like`, with x on the diagonals that einsum reads for ``letters -> letters without
    repeats``.
    """
    if x.shape != diagonal_sizes(letters, like.shape):
        raise ExecutionError(
            f"x of shape {list(x.shape)} does not fit the diagonals {letters!r} of {list(like.shape)}", "shape_mismatch"
        )
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
        raise ProgramError(f"{letters!r} does not match the axes of {like} and {x}", "shape_mismatch")
    wanted = diagonal_sizes(letters, like.shape)
    if wanted is None or not matches(x, TensorType(wanted, x.dtype)):
        raise ProgramError(f"x={x} does not fit the diagonals {letters!r} of {like}", "shape_mismatch")
    return TensorType(like.shape, x.dtype)


def diagonal_sizes(letters: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The size of each letter, in the order in which they first occur; -1 if no axis tells it.

    None if axes with the same letter have different sizes.
    """
    sizes: dict[str, int] = {}
    for letter, n in zip(letters, shape, strict=True):
        known = sizes.get(letter, -1)
        if -1 not in (known, n) and known != n:
            return None
        sizes[letter] = n if known == -1 else known
    return tuple(sizes.values())


@diagonals_into.vjp
def diagonals_into_vjp(ct, out, x, like, *, letters):
    return einsum(ct, equation=f"{letters}->{''.join(dict.fromkeys(letters))}"), None


diagonals_into.example(
    lambda: [
        Example((A[0], SQUARE), (np.diag(A[0]),), {"letters": "ii"}),
        Example((A[0, :0], SQUARE[:0, :0]), (np.zeros((0, 0)),), {"letters": "ii"}),
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
        Example((CUBE, CUBE[:1]), (np.stack([m @ CUBE[0].T for m in CUBE]),), {"equation": "...ij,...kj->...ik"}),
        Example((A, B, B), (A @ B @ B.T,), {"equation": "ij,jk,lk->il"}),
        Example((A[:0], B), (np.zeros((0, 4)),), {"equation": "ij,jk"}),
        Example((CUBE[:, :2],), (CUBE[[0, 1], [0, 1], [0, 1]],), {"equation": "iii->i"}),
        Example((A, CUBE), (A[:, None, :, None] * CUBE[None],), {"equation": "i...,...k->i...k"}),
        Example((A[:, :2], A), (A[:, None, :2].transpose(0, 2, 1) * A[:, None, :],), {"equation": "i...,i...j->i...j"}),
        Example((CUBE, CUBE[:1]), ((CUBE * CUBE[0]).sum((0, 2)),), {"equation": "...ij,...ij->i"}),
        Example((A, A[0, 0]), ((A * A[0, 0]).T,), {"equation": "ij,->ji"}),
    ]
)
