"""The file of a program's initial values. Equal values give equal files, so that the digest of the file names them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import orjson

from service.objects.tensor_file import chunks
from service.store.program_values import NewValues

__all__ = ["write_values"]


def write_values(values: Mapping[str, np.ndarray], path: Path) -> NewValues:
    """Write the arrays to a new file, synced. Raises OSError, TypeError for a dtype that files do not have."""
    ordered = {name: values[name] for name in sorted(values)}
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        for part in chunks(ordered, {}):
            digest.update(part)
            size += len(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    tensors = [
        {"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "bytes": array.nbytes}
        for name, array in ordered.items()
    ]
    return NewValues(path, digest.hexdigest(), size, orjson.dumps(tensors))
