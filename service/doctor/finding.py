"""One line of the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "ok", "warning", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    state: ok; warning: the service works, but not as well as it could; wrong: it does not work, or loses data.
    found: a sentence with the values. do: the action that helps; empty if all is well.
    """

    check: str
    state: Literal["ok", "warning", "wrong"]
    found: str
    do: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, "ok", found)


def warning(check: str, found: str, do: str) -> Finding:
    return Finding(check, "warning", found, do)


def wrong(check: str, found: str, do: str) -> Finding:
    return Finding(check, "wrong", found, do)
