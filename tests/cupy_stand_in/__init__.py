"""A cupy without a GPU that refuses what cupy refuses: NumPy computes, and the installed cupy says what exists.

The names, signatures and tables of dtypes come from the installed cupy by reflection: it can be imported without a
driver. Where cupy differs from NumPy without an error, the stand-in does as cupy does (indices out of range wrap
around, loops have the dtypes of its tables), or raises `Refused` where the result on a GPU is undefined (writes to one
element in an open order, a cast of NaN to an integer). Arrays never become NumPy arrays by themselves.

`installed()` puts the stand-in in the place of cupy and cupyx; nothing may keep the module after that.
`arrays` has the arrays, `ufuncs` the element by element functions, `namespaces` the modules.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cupy_stand_in.arrays import Array, Refused
from tests.cupy_stand_in.namespaces import CUPY, cupyx_modules

__all__ = ["Array", "Refused", "installed", "to_host"]


@contextmanager
def installed() -> Iterator[Any]:
    """The stand-in as the modules cupy, cupyx, cupyx.scipy.linalg and cupyx.scipy.special, until the end."""
    modules = {"cupy": CUPY, **cupyx_modules()}
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield CUPY
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def to_host(x: Any) -> Any:
    """The NumPy arrays of stand-in arrays, in lists too. Raises TypeError for an array that is not on the device."""
    if isinstance(x, list | tuple):
        return [to_host(each) for each in x]
    if not isinstance(x, Array):
        raise TypeError(f"a result is a {type(x).__name__} on the host, not an array on the device")
    return x.array
