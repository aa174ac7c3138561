"""`backpass doctor`: the report of the examination, for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from service.cli.output import say
from service.doctor import Finding

__all__ = ["report"]

WORST = ("ok", "warning", "wrong")


def report(findings: Iterable[Finding], as_json: bool) -> int:
    """Print the findings; returns the exit status: 1 if something is wrong. Text appears line by line."""
    seen: list[Finding] = []
    for each in findings:
        seen.append(each)
        if not as_json:
            say(f"{each.state:8} {each.check}: {each.found}" + (f"\n{'':8} -> {each.do}" if each.do else ""))
    state = max((each.state for each in seen), key=WORST.index, default="ok")
    if as_json:
        say(json.dumps({"state": state, "findings": [asdict(each) for each in seen]}, indent=2))
    else:
        counts = ", ".join(f"{sum(each.state == kind for each in seen)} {kind}" for kind in WORST)
        say(f"\n{counts}")
    return 1 if state == "wrong" else 0
