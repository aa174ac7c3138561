"""A library for products in place of cuBLASLt, which runs on this CPU. It accepts only what the header allows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from core.ir.errors import InternalError

__all__ = ["EmulatedCublasLt"]

DTYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}
SCALES = {68: 0, 77: 0, 70: 1}
RESULTS = {68: {0: (0,), 2: (0, 2), 14: (0, 14)}, 77: {0: (0,)}, 70: {1: (1,)}}
"""Types of results, for each type of a computation and of operands. A bias has the type of the result."""

SIZES = {
    "MatmulDesc": {3: 4, 4: 4, 7: 4, 8: 8},
    "MatrixLayout": {5: 4, 6: 8},
    "MatmulPreference": {1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4},
}
"""Bytes of each attribute."""

ALGORITHM = 0x5EED


@dataclass
class _Described:
    kind: str
    given: tuple[int, ...] = ()
    attributes: dict[int, int] = field(default_factory=dict)


@dataclass
class EmulatedCublasLt:
    """give:         takes a piece of work for the stream whose address a call has.
    check:        that bytes at an address are memory of the GPU, as (address, bytes).
    is_capturing: during which no algorithm can be searched.
    refuses:      whether no algorithm is found.
    error:        added to all results.
    cuts:         whether results of 16 bits are rounded to zero.
    """

    give: Callable[[int, Callable[[], None]], None]
    check: Callable[[int, int], None]
    is_capturing: Callable[[], bool]
    refuses: bool = False
    error: float = 0.0
    cuts: bool = False
    products: int = 0
    searches: int = 0
    made: dict[int, _Described] = field(default_factory=dict)
    handles: int = 0

    def cublasLtCreate(self, handle: Any) -> int:
        handle._obj.value = 77
        return 0

    def __getattr__(self, name: str) -> Any:
        for kind in SIZES:
            for what in ("Create", "Destroy", "SetAttribute"):
                if name == f"cublasLt{kind}{what}":
                    return lambda *args: getattr(self, f"_{what.lower()}")(kind, *args)
        raise AttributeError(name)

    def _create(self, kind: str, made: Any, *given: Any) -> int:
        self.handles += 1
        made._obj.value = self.handles
        self.made[self.handles] = _Described(kind, tuple(getattr(each, "value", each) for each in given))
        return 0

    def _destroy(self, kind: str, made: Any) -> int:
        assert self.made.pop(made.value).kind == kind
        return 0

    def _setattribute(self, kind: str, made: Any, attribute: Any, value: Any, size: Any) -> int:
        assert SIZES[kind][attribute.value] == size.value == ctypes.sizeof(value._obj)
        self._of(kind, made).attributes[attribute.value] = value._obj.value
        return 0

    def _of(self, kind: str, made: Any) -> _Described:
        found = self.made[made.value]
        assert found.kind == kind
        return found

    def cublasLtMatmulAlgoGetHeuristic(
        self, handle: Any, product: Any, left: Any, right: Any, old: Any, out: Any, preference: Any, wanted: Any,
        found: Any, count: Any,
    ) -> int:  # fmt: skip
        assert not self.is_capturing(), "an algorithm is searched during a capture"
        assert (handle.value, wanted.value) == (77, 1)
        settings = self._of("MatmulPreference", preference).attributes
        assert settings.keys() == SIZES["MatmulPreference"].keys()
        assert settings[3] == 2, "parts of sums are added in the type of the computation"
        assert all(settings[each] in (2, 4, 8, 16, 32, 64, 128, 256) for each in (5, 6, 7, 8))
        self.searches += 1
        compute, _ = self._of("MatmulDesc", product).given
        types = [self._of("MatrixLayout", each).given[0] for each in (left, right, old, out)]
        assert types[0] == types[1]
        assert types[2] == types[3]
        assert types[2] in RESULTS[compute].get(types[0], ()), "the library has no product with these types"
        if self.refuses:
            return 15
        bias = self._of("MatmulDesc", product).attributes.get(8, 16)
        # what an algorithm is good for: products with these descriptors on memory with these alignments
        alignments = (*(settings[each] for each in (5, 6, 7)), bias & -bias)
        found._obj.algorithm[:] = (ALGORITHM, product.value, *alignments, 0, 0)
        count._obj.value = 1
        return 0

    def cublasLtMatmul(
        self, handle: Any, product: Any, alpha: Any, a: Any, left: Any, b: Any, right: Any, beta: Any, c: Any, old: Any,
        d: Any, out: Any, algorithm: Any, workspace: Any, nbytes: Any, stream: Any,
    ) -> int:  # fmt: skip
        chosen = list(algorithm._obj)
        assert chosen[:2] == [ALGORITHM, product.value], "an algorithm of other descriptors"
        assert all(p.value % alignment == 0 for p, alignment in zip((a, b, d), chosen[2:5], strict=True))
        assert (handle.value, c.value, old.value) == (77, d.value, out.value)
        described = self._of("MatmulDesc", product)
        compute, scale = described.given
        assert SCALES[compute] == scale
        assert type(alpha._obj) is type(beta._obj) is (ctypes.c_double if scale else ctypes.c_float)
        turns, settings = [described.attributes[3], described.attributes[4], 0], dict(described.attributes)
        layouts = [self._of("MatrixLayout", each) for each in (left, right, out)]
        assert settings[7] != 4 or settings[8] % chosen[5] == 0, "a bias at an address of another alignment"
        old_weight = beta._obj.value
        assert alpha._obj.value == 1

        def work() -> None:
            self.products += 1
            self.check(workspace.value, nbytes.value)
            x, y, z = (self._array(p.value, each) for p, each in zip((a, b, d), layouts, strict=True))
            wide = np.float64
            x, y = (np.swapaxes(v, -1, -2) if turn else v for v, turn in zip((x, y), turns, strict=False))
            sums = x.astype(wide) @ y.astype(wide)
            if settings[7] == 4:
                dtype = np.dtype(DTYPES[layouts[2].given[0]])
                self.check(settings[8], z.shape[-2] * dtype.itemsize)
                sums = sums + _numbers(settings[8], z.shape[-2], dtype).astype(wide)[:, None]
            sums = sums + self.error + (old_weight * z.astype(wide) if old_weight else 0)
            sums = sums.astype(np.float64 if scale else np.float32)
            if self.cuts and z.dtype.itemsize == 2:
                bits = {"float16": 13, "bfloat16": 16}[z.dtype.name]
                sums = (sums.view(np.uint32) >> bits << bits).view(np.float32)
            z[...] = sums.astype(z.dtype)  # rounded once

        self.give(stream.value, work)
        return 0

    def _array(self, address: int, layout: _Described) -> np.ndarray:
        """The matrices at an address, [count, rows, columns]."""
        kind, rows, columns, leading = layout.given
        dtype = np.dtype(DTYPES[kind])
        count, step = layout.attributes.get(5, 1), layout.attributes.get(6, 0)
        assert leading >= rows
        size = (count - 1) * step + (columns - 1) * leading + rows
        self.check(address, size * dtype.itemsize)
        strides = (step * dtype.itemsize, dtype.itemsize, leading * dtype.itemsize)
        if size < 1:
            raise InternalError("an empty product")
        return np.lib.stride_tricks.as_strided(_numbers(address, size, dtype), (count, rows, columns), strides)


def _numbers(address: int, count: int, dtype: np.dtype) -> np.ndarray:
    room = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(room, np.uint8).view(dtype)
