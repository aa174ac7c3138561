"""Specifications of kernels of linear algebra (`Kernel.spec`): triangular systems and factorisations.

All arrays are batches of matrices. `strides` of an array are those of the batch, of rows and of columns; results are
dense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Cholesky",
    "Eigenvalues",
    "Elimination",
    "Exponential",
    "Orthogonalization",
    "SingularValues",
    "Steps",
    "Triangle",
]

Steps = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Triangle:
    """Solutions [n, k] of triangular systems ``t z = y``. A zero on the diagonal fails the check.

    upper:    whether t is upper triangular; the other triangle is not read.
    unit:     whether ones stand for the diagonal, which is not read.
    ordered:  "y": row i of the right-hand side is row ``order[i]`` of y. "z": row i of the solution is row ``order[i]``
              of the result. "": neither.
    order:    elements from the order of one matrix to that of the next.
    identity: whether y is the identity.
    """

    dtype: str
    batch: int
    n: int
    k: int
    t: Steps
    y: Steps
    upper: bool
    unit: bool
    ordered: Literal["", "y", "z"] = ""
    order: int = 0
    identity: bool = False

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return self.batch * self.n * (self.n + 32) * (self.k + 8)

    @property
    def flops(self) -> int:
        return self.batch * self.n**2 * self.k


@dataclass(frozen=True, slots=True)
class Cholesky:
    """Lower triangular factors of symmetric matrices x, whose upper triangle is not read.

    A matrix that is not positive definite fails the check.
    """

    dtype: str
    batch: int
    n: int
    x: Steps

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return self.batch * self.n * (self.n + 16) * (self.n + 16) // 2

    @property
    def flops(self) -> int:
        return self.batch * self.n**3 // 3

    @property
    def units(self) -> int:
        return self.batch


@dataclass(frozen=True, slots=True)
class Elimination:
    """LU factors of square matrices x with partial pivoting: the first largest element of a column is the pivot.

    Results: both factors in one array, without the ones on the diagonal of the lower one; the order of the rows of x;
    and 1 or -1, the sign of that permutation.
    """

    dtype: str
    batch: int
    n: int
    x: Steps

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return self.batch * self.n * (self.n + 16) * (self.n + 16)

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.n**3 // 3

    @property
    def units(self) -> int:
        return self.batch


@dataclass(frozen=True, slots=True)
class Orthogonalization:
    """QR factors of matrices x [m, n], m >= n: q [m, n] and r [n, n], whose diagonal is not negative."""

    dtype: str
    batch: int
    m: int
    n: int
    x: Steps

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 4 * self.batch * self.m * (self.n + 8) * (self.n + 8)

    @property
    def flops(self) -> int:
        return 4 * self.batch * self.n**2 * (self.m - self.n // 3)

    @property
    def units(self) -> int:
        return self.batch


@dataclass(frozen=True, slots=True)
class Eigenvalues:
    """Ascending eigenvalues of dense symmetric matrices, of which the upper triangle is not read.

    vectors: whether their vectors, as columns with the signs of `core.ops.linalg.spectral`, are a second result.
    """

    dtype: str
    batch: int
    n: int
    vectors: bool

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 16 * self.flops + 100_000 * self.batch

    @property
    def flops(self) -> int:
        return (9 if self.vectors else 2) * self.batch * self.n**3

    @property
    def units(self) -> int:
        return self.batch


@dataclass(frozen=True, slots=True)
class SingularValues:
    """Singular value decompositions of dense matrices [m, n]: u [m, k], descending s [k] and v [n, k], k the smaller of
    m and n, with the signs of `core.ops.linalg.spectral`.
    """

    dtype: str
    batch: int
    m: int
    n: int

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 16 * self.flops + 100_000 * self.batch

    @property
    def flops(self) -> int:
        k = min(self.m, self.n)
        return self.batch * (6 * self.m * self.n * k + 16 * k**3)

    @property
    def units(self) -> int:
        return self.batch


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponentials of dense square matrices. One with a number that is not finite becomes NaN."""

    dtype: str
    batch: int
    n: int

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long, with ten squarings."""
        return 32 * self.batch * (self.n + 8) ** 3

    @property
    def flops(self) -> int:
        return 12 * self.batch * self.n**3

    @property
    def units(self) -> int:
        return self.batch


System = Triangle | Cholesky | Elimination | Orthogonalization | Eigenvalues | SingularValues | Exponential
"""Any of them; `flops` are the operations that the usual count of its algorithm gives."""
