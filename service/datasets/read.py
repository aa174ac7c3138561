"""The result of reading an uploaded file."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

__all__ = ["Read"]


@dataclass(frozen=True, slots=True)
class Read:
    """Columns by name, in the order of the file: arrays [rows, ...] in files or views of one.

    vocabularies: the texts of columns of codes.
    """

    columns: dict[str, np.ndarray]
    vocabularies: dict[str, list[str]] = field(default_factory=dict)
