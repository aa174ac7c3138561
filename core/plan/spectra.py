"""Eigenvalues and singular values, which the target takes from a library.

A library cannot be stopped, so a decomposition that takes long is left to the reference executor, which runs it in a
process of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from core.ir import Op
from core.ops.linalg.spectral import NO_VALUES
from core.plan.compose import Maker
from core.plan.entries import Entry, Uniform
from core.plan.factors import dense_matrices
from core.plan.instructions import Gemm, Kernel
from core.plan.lowering import Lowering, lowers
from core.plan.memory import View
from core.plan.shapes import reshaped
from core.plan.systems import Eigenvalues, SingularValues
from core.plan.unsupported import Unsupported

__all__: list[str] = []

Spec = TypeVar("Spec", Eigenvalues, SingularValues)

NO_CONVERGENCE = "no_convergence"

LONGEST = 2_000_000_000
"""Most operations of the decompositions of one instruction: about a quarter of a second."""


@lowers("eigh_factor")
def lower_eigh(low: Lowering, op: Op) -> None:
    x = dense_matrices(low, low.entry(op.inputs[0]))
    spec = _short(Eigenvalues(x.dtype, x.shape[0], x.shape[-1], True))
    values, vectors = (low.destination(name) for name in op.outputs)
    number = low.shared.check(NO_CONVERGENCE, f"{NO_VALUES} (Eigenvalues did not converge)", op.location)
    low.add(Kernel("eigenvectors", spec, (x, values, vectors), written=2, check=number, location=op.location))
    for name, view in zip(op.outputs, (values, vectors), strict=True):
        low.define(name, view)


@lowers("eigvalsh_factor")
def lower_eigvalsh(low: Lowering, op: Op) -> None:
    x = dense_matrices(low, low.entry(op.inputs[0]))
    spec = _short(Eigenvalues(x.dtype, x.shape[0], x.shape[-1], False))
    values = low.destination(op.outputs[0])
    number = low.shared.check(NO_CONVERGENCE, f"{NO_VALUES} (Eigenvalues did not converge)", op.location)
    low.add(Kernel("eigenvalues", spec, (x, values), check=number, location=op.location))
    low.define(op.outputs[0], values)


@lowers("svd")
def lower_svd(low: Lowering, op: Op) -> None:
    made = [low.destination(name) for name in op.outputs]
    _decompose(low, op, made[0], made[1], made[2], NO_VALUES)
    for name, view in zip(op.outputs, made, strict=True):
        low.define(name, view)


def _decompose(low: Lowering, op: Op, u: View, s: View, v: View, problem: str) -> None:
    """Append the singular value decomposition of the operand of `op`."""
    x = dense_matrices(low, low.entry(op.inputs[0]))
    spec = _short(SingularValues(x.dtype, x.shape[0], x.shape[-2], x.shape[-1]))
    number = low.shared.check(NO_CONVERGENCE, f"{problem} (SVD did not converge)", op.location)
    low.add(Kernel("singular_values", spec, (x, u, s, v), written=3, check=number, location=op.location))


@lowers("pinv")
def lower_pinv(low: Lowering, op: Op) -> None:
    of, type = Maker(low), low.type(op.inputs[0])
    (m, n), batch, dtype = type.shape[-2:], type.shape[:-2], type.dtype
    k = min(m, n)
    u, s, v = (low.allocate((*batch, *shape), dtype) for shape in ((m, k), (k,), (n, k)))
    _decompose(low, op, u, s, v, "the singular values did not converge: is every element finite?")
    given = op.attrs["rcond"]
    tolerance = np.dtype(dtype).type(float(np.finfo(dtype).eps) * max(m, n) if given is None else given)
    one, none = Uniform(1, dtype, ()), Uniform(0, dtype, ())
    least = of.mul(of.reduce("max", s, frozenset({len(batch)})), Uniform(tolerance, dtype, ()))
    zero = of("less_equal", s, least)
    inverted = of.where(zero, none, of("div", one, of.where(zero, one, s)))
    scaled: Entry = of.mul(v, reshaped(low, inverted, (*batch, 1, k)))
    a, out = low.dense(scaled), low.destination(op.outputs[0])
    b = replace(u, shape=(*batch, k, m), strides=(*u.strides[:-2], u.strides[-1], u.strides[-2]))
    low.add(Gemm(a, b, out, location=op.location))
    low.define(op.outputs[0], out)


def _short(spec: Spec) -> Spec:
    if spec.flops > LONGEST:
        raise Unsupported("a decomposition that takes long, which only a process of its own can stop")
    return spec
