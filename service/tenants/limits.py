"""The limits of a tenant: those of the settings, or its own ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from service.settings import Settings

__all__ = ["NAMES", "BadLimit", "Limits", "changed", "default_limits", "limits_of"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one tenant may have or use; infinity for no limit, which settings and clients write as 0.

    The setting of each has its name (the first three) or is ``BACKPASS_TENANT_<NAME>``.
    """

    programs: float = math.inf
    sessions: float = math.inf
    session_bytes: float = math.inf
    tapes: float = math.inf
    checkpoint_bytes: float = math.inf
    program_bytes: float = math.inf
    dataset_bytes: float = math.inf
    jobs: float = math.inf
    compute_seconds: float = math.inf
    requests_per_second: float = math.inf
    burst: float = math.inf

    def as_document(self) -> dict[str, float | None]:
        """Name -> limit, None for no limit. Limits of counts are whole numbers."""
        return {
            name: None if limit == math.inf else limit if name in RATES else int(limit)
            for name, limit in asdict(self).items()
        }


RATES = ("compute_seconds", "requests_per_second")
"""Limits that may have a fraction."""
PLAIN = {name: name for name in ("programs", "sessions", "session_bytes")}
NAMES = tuple(field.name for field in fields(Limits))


def default_limits(settings: Settings) -> Limits:
    """The limits of a tenant without own ones."""
    return Limits(**{name: getattr(settings, PLAIN.get(name, f"tenant_{name}")) or math.inf for name in NAMES})


class BadLimit(ValueError):
    """A limit that cannot be set. name: the name that was given."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def limits_of(default: Limits, own: Mapping[str, float]) -> Limits:
    """The limits of a tenant with `own` limits. Names that this version does not know have no effect."""
    return replace(default, **{name: own[name] or math.inf for name in NAMES if name in own}) if own else default


def changed(asked: Mapping[str, Any]) -> Callable[[dict[str, float]], dict[str, float]]:
    """The change that sets the limits in `asked` by name; None removes an own limit.

    Raises BadLimit for an unknown name, or a value that is no finite number of at least 0.
    """
    for name, value in asked.items():
        if name not in NAMES:
            raise BadLimit(name, f"unknown limit {name!r}; known are {', '.join(NAMES)}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and math.isfinite(value) and 0 <= value <= 2**53):
            raise BadLimit(name, f"{name} must be a number from 0 (no limit) to 2^53")

    def change(own: dict[str, float]) -> dict[str, float]:
        wanted = {name: value for name, value in (own | dict(asked)).items() if value is not None}
        return {name: int(value) if value == int(value) else value for name, value in wanted.items()}

    return change
