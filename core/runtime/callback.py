"""The function that machine code calls for ops that have no machine code."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core.ir.errors import ExecutionError, InternalError
from core.ops.common.types import as_dtype
from core.plan.instructions import Interpreted
from core.plan.memory import View, bytes_of
from core.runtime.blas_threads import one_blas_thread
from core.runtime.control_words import ERROR, RAISED, STOP
from core.runtime.reference import interpreter_of
from core.runtime.run import Run

__all__ = ["Callback"]

SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p))


class Callback:
    """A C function ``(number, addresses)`` at `address`: it runs op `number` of `ops` on the arrays at `addresses`.

    run:    the run that the ops belong to; set before machine code is entered.
    raised: the error of an op. After it, after a check that failed, and after the stop word, no op runs any more.
    """

    def __init__(self, ops: Sequence[Interpreted], control: ctypes.Array[ctypes.c_int64]) -> None:
        self.run = Run()
        self.raised: BaseException | None = None
        self._ops = [(interpreter_of(each.block), each) for each in ops]
        self._control = control
        self._function = SIGNATURE(self._call)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def _call(self, number: int, addresses: ctypes._Pointer[ctypes.c_void_p]) -> None:
        try:
            op, each = self._ops[number]
            arrays = [_array(addresses[i], view) for i, view in enumerate(each.arrays)]
            lengths = iter(arrays[len(each.views) :])
            sizes = [{axis: next(lengths) for axis, _ in own} for own in each.lengths]
            arrays = arrays[: len(each.views)]
            given = len(op.block.params)
            made = list(zip(arrays[given:], sizes[given:], strict=True))
            _clear(made)
            if self._control[ERROR] or self._control[STOP]:  # operands are wrong: a check or a kernel ended early
                return
            cut = [_part(x, own) for x, own in zip(arrays[:given], sizes[:given], strict=True)]
            with one_blas_thread():  # the other cores belong to the pool of the step
                values = op(self.run, *cut)
            for (target, own), value in zip(made, values, strict=True):
                shape = np.shape(value)
                found = {axis: shape[axis] for axis in own} if len(shape) == target.ndim else {}
                if each.check and any(n > target.shape[axis] for axis, n in found.items()):
                    _clear(made)
                    self._control[ERROR] = each.check
                    return
                target = _part(target, found)
                if shape != target.shape:
                    message = f"the result has the shape {list(np.shape(value))}, not {list(target.shape)} as declared"
                    raise ExecutionError(message, "shape_mismatch", location=op.block.ops[0].location)
                target[...] = value
                for axis, n in found.items():
                    own[axis][...] = n
        except BaseException as error:  # an exception cannot pass through machine code
            self.raised = error
            self._control[ERROR] = RAISED

    def check(self) -> None:
        """Raise the error of an op, if there was one."""
        error, self.raised = self.raised, None
        if error is not None:
            raise error


def _part(array: np.ndarray, sizes: Mapping[int, Any]) -> np.ndarray:
    """The part of an array with these sizes along some axes."""
    if not sizes:
        return array
    return array[tuple(slice(int(sizes[i])) if i in sizes else slice(None) for i in range(array.ndim))]


def _clear(made: Sequence[tuple[np.ndarray, Mapping[int, np.ndarray]]]) -> None:
    """Make the results of open sizes empty, because the rest of a run that fails reads their lengths.

    Integers beyond a length are 0, a valid position (`core.plan.sizes`).
    """
    for target, sizes in made:
        for size in sizes.values():
            size[...] = 0
        if sizes and target.dtype.kind in "iu":
            target[...] = 0


def _array(address: int | None, view: View) -> np.ndarray:
    """The memory at `address` as the dense array that `view` describes."""
    if 0 in view.shape:
        return np.empty(view.shape, as_dtype(view.dtype))
    if address is None:
        raise InternalError(f"compiled code passed no address for an array {view.dtype}{list(view.shape)}")
    memory = (ctypes.c_char * bytes_of(view.shape, view.dtype)).from_address(address)
    return np.frombuffer(memoryview(memory), as_dtype(view.dtype)).reshape(view.shape)
