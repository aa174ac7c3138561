"""Messages between the bench and the process of a peer through pipes: JSON and arrays in one safetensors file.

On the pipe each file is preceded by its length, 8 bytes little-endian.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from safetensors.numpy import load, save

__all__ = ["receive", "send"]


def send(pipe: IO[bytes], said: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
    """Write one message."""
    whole = {name: np.asarray(array, order="C") for name, array in (arrays or {}).items()}
    content = save(whole, {"said": json.dumps(said)})
    pipe.write(len(content).to_bytes(8, "little") + content)
    pipe.flush()


def receive(pipe: IO[bytes]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read one message: (its JSON content, its arrays). Raises EOFError when the other end is closed."""
    size = int.from_bytes(_exactly(pipe, 8), "little")
    content = _exactly(pipe, size)
    header = int.from_bytes(content[:8], "little")
    said = json.loads(json.loads(content[8 : 8 + header])["__metadata__"]["said"])
    return said, load(content)


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    content = pipe.read(size)
    if len(content) < size:
        raise EOFError("the other end of the pipe is closed")
    return content
