"""Products of matrices, einsum and determinants."""

from __future__ import annotations

from core.onnx.writing.registry import cannot, writes
from core.ops.linalg.einsum import terms_of

cannot(
    "ONNX has no operator for matrix decompositions",
    "cholesky_factor",
    "eigh_factor",
    "eigvalsh_factor",
    "lu",
    "matrix_exp",
    "pinv",
    "qr_factor",
    "svd",
)
cannot(
    "ONNX has no operator for linear systems",
    "cofactors",
    "cofactors_adjoint",
    "inverse",
    "slogdet",
    "solve",
    "triangular_solve",
)


@writes("matmul")
def matmul(w, x, y, *, transpose_x, transpose_y):
    x, y = (w.wide(v) if v.dtype == "bfloat16" else v for v in (x, y))
    x, y = (
        w.transpose(v, [*range(v.rank - 2), v.rank - 1, v.rank - 2]) if turn and v.rank > 1 else v
        for v, turn in ((x, transpose_x), (y, transpose_y))
    )
    return w.cast(w.node("MatMul", x, y, shape=w.types[0].shape), w.types[0].dtype)


@writes("einsum")
def einsum(w, *x, equation):
    """An `Einsum` with a letter for each axis; axes under ``...`` are broadcast before it."""
    inputs, output, ellipsis = terms_of(equation, tuple(v.rank for v in x))
    wide = [w.wide(v) for v in x]
    for letter in ellipsis:
        found = [w.size(v, term.index(letter)) for v, term in zip(wide, inputs, strict=True) if letter in term]
        if len(found) < 2 or (set(map(type, found)) == {int} and len(set(found)) == 1):
            continue
        most = 1
        for n in found:
            most = w.arith("Max", most, n) if 0 not in found else 0
        for i, term in enumerate(inputs):
            if letter in term:
                sizes = w.sizes(wide[i])
                sizes[term.index(letter)] = most
                wide[i] = w.expand(wide[i], sizes)
    out = w.node("Einsum", *wide, equation=f"{','.join(inputs)}->{output}", shape=w.types[0].shape)
    return w.cast(out, x[0].dtype)


@writes("det")
def det(w, x):
    return w.node("Det", x, shape=x.shape[:-2])


@writes("gap_quotient")
def gap_quotient(w, x, gap, values):
    """A division; a gap that is 0 up to rounding gives 0, and the run ends with an error if x is not 0 there."""
    import numpy as np

    from core.ops.linalg.spectral import ROUNDING

    if 0 in values.shape:
        return w.div(x, gap)
    unit = w.number(ROUNDING * float(np.finfo(x.dtype).eps), x)
    top = w.reduce("ReduceMax", w.node("Abs", values), [-1], False)
    limit = w.unsqueeze(w.mul(unit, top), [top.rank, top.rank + 1])
    equal = w.node("LessOrEqual", w.node("Abs", gap), limit)
    zero = w.node("Equal", x, w.number(0, x))
    fine = w.node("Or", w.node("Not", equal), zero)
    found = w.where(equal, w.number(0, x), w.div(x, w.where(equal, w.number(1, x), gap)))
    found = type(found)(found.name, found.dtype, w.types[0].shape)
    return w.guarded(found, fine)
