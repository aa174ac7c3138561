"""The installed cupy, to read names and signatures from, imported without the CUDA libraries that it would call."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import cupy
import cupy_backends.cuda.libs

__all__ = ["cupy", "cupyx_linalg", "cupyx_special"]

LIBRARIES = ("cublas", "cusolver", "cusparse")


@contextmanager
def _placeholders() -> Iterator[None]:
    """Empty modules in the place of the bindings whose library is not installed."""
    package, before = cupy_backends.cuda.libs, dict(sys.modules)
    placed = []
    for name in LIBRARIES:
        try:
            getattr(package, name)
        except (AttributeError, ImportError):
            module: Any = MagicMock(spec=ModuleType(name))
            setattr(package, name, module)
            sys.modules[f"{package.__name__}.{name}"] = module
            placed.append(name)
    try:
        yield
    finally:
        for name in placed:
            delattr(package, name)
            sys.modules.pop(f"{package.__name__}.{name}", None)
        if placed:  # modules that hold a placeholder must not be found by others
            for name in set(sys.modules) - set(before):
                if name.split(".")[0] in ("cupy", "cupyx", "cupy_backends"):
                    del sys.modules[name]


with _placeholders():
    import cupyx.scipy.linalg as cupyx_linalg
    import cupyx.scipy.special as cupyx_special
