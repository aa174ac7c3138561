"""The progress bar of a job."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from backpass_client.jobs import _bar


class Bar:
    """A bar that keeps what it is told, in place of tqdm's."""

    def __init__(self, **more: Any) -> None:
        self.n, self.total, self.written, self.postfix = 0, None, [], {}

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, steps: int) -> None:
        self.n += steps

    def set_postfix(self, shown: dict[str, str], refresh: bool) -> None:
        self.postfix = shown

    def write(self, line: str) -> None:
        self.written.append(line)


def test_the_bar_shows_steps_validations_and_the_reasons_of_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Bar] = []
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=lambda **more: made.append(Bar(**more)) or made[-1]))

    with _bar(True) as show:
        show("progress", {"step": 3, "steps": 9, "metrics": {"loss": 0.25, "other": None}})
        show("validation", {"step": 3, "metrics": {"loss": 0.5, "accuracy": None}})
        show("waiting", {"reason": "storage", "detail": "the directory of files is not in its place"})
        show("progress", {"step": 9, "steps": 9, "metrics": {}})

    (bar,) = made
    assert (bar.n, bar.total, bar.postfix) == (9, 9, {})
    assert bar.written == ["step 3: loss 0.5", "waits: the directory of files is not in its place"]
