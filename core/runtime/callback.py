"""What machine code calls in the middle of a loop or branch, for ops that have none."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from core.codegen.step import CONTROL
from core.ir.errors import ExecutionError, InternalError
from core.plan.data import Interpreted, View, bytes_of
from core.runtime.reference import Run, plan

__all__ = ["Callback"]

SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p))

ERROR = CONTROL.index("error")

RAISED = -3
"""In the error word: what was called raised an error; all loops end."""


class Callback:
    """A function at `address` that runs op `number` of `ops` on the arrays at `addresses`: (number, addresses).

    run:    the run that these ops belong to; set before machine code is entered.
    raised: the error of an op. Behind it, and behind a check that failed, nothing runs any more.
    """

    def __init__(self, ops: Sequence[Interpreted], control: ctypes.Array[ctypes.c_int64]) -> None:
        self.run = Run()
        self.raised: BaseException | None = None
        self._ops = [(plan(each.block), each.views) for each in ops]
        self._control = control
        self._function = SIGNATURE(self._call)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def _call(self, number: int, addresses: ctypes._Pointer[ctypes.c_void_p]) -> None:
        if self._control[ERROR]:  # what a check refused is not computed with
            return
        try:
            op, views = self._ops[number]
            arrays = [_array(addresses[i], view) for i, view in enumerate(views)]
            given = len(op.block.params)
            for target, value in zip(arrays[given:], op(self.run, *arrays[:given]), strict=True):
                if np.shape(value) != target.shape:
                    message = f"an array of shape {list(np.shape(value))} is not {list(target.shape)}, as declared"
                    raise ExecutionError(message, "shape_mismatch", location=op.block.ops[0].location)
                target[...] = value
        except BaseException as error:  # it cannot pass through machine code
            self.raised = error
            self._control[ERROR] = RAISED

    def check(self) -> None:
        """Raise what an op raised."""
        error, self.raised = self.raised, None
        if error is not None:
            raise error


def _array(address: int | None, view: View) -> np.ndarray:
    """The memory at `address` as the dense array that `view` describes."""
    if address is None:
        raise InternalError(f"compiled code passed no address for an array {view.dtype}{list(view.shape)}")
    memory = (ctypes.c_char * bytes_of(view.shape, view.dtype)).from_address(address)
    return np.frombuffer(memoryview(memory), view.dtype).reshape(view.shape)
