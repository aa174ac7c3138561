"""Points in time that a client gives."""

from __future__ import annotations

import time
from typing import Annotated, Any

from pydantic import AfterValidator, Field

__all__ = ["End", "FormerEnd", "Future", "former"]

MAX_TIME = 253_402_300_800.0  # the year 10000


def _in_future(value: float) -> float:
    """Raises ValueError for a time that has passed, because what expires then is deleted at once."""
    now = time.time()
    if value <= now:
        raise ValueError(f"must be a time in the future in seconds since 1970; the present time is {now:.0f}")
    return value


Future = Annotated[float, Field(gt=0, lt=MAX_TIME), AfterValidator(_in_future)]
"""Seconds since 1970, after the present time."""

End = Annotated[float | None, Field(description="Time of its end, in seconds since 1970; null for never.")]
"""`expires_at` in every answer."""


def former(name: str) -> Any:
    """The description of a member under an earlier name, which stays accepted and answered. name: the present one."""
    return Field(description=f"The earlier name of `{name}`.", json_schema_extra={"deprecated": True})


FormerEnd = Annotated[float | None, former("expires_at")]
