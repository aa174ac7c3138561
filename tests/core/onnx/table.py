"""Write docs/onnx-operators.md: the results of the `onnx` package's tests by operator.

python -m tests.core.onnx.table
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from tests.core.onnx.backend import cases, gradient_outcome, outcome

__all__ = ["PAGE", "Row", "page", "results"]

COMMAND = "`python -m tests.core.onnx.table` writes this page."
UNTYPED = (
    "have inputs or outputs that no array of a program can be: strings, unsigned integers above 8 bits, complex "
    "numbers, numbers of fewer than 8 bits, sequences as inputs."
)
FIXED = (
    "- *fixed*: tests that pass with some of their integer inputs as constants of the model, because the program needs "
    "their values before it runs."
)
PAGE = Path(__file__).parents[3] / "docs" / "onnx-operators.md"


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one test. gradient: right, wrong, refused, or none where there is nothing to differentiate."""

    name: str
    op: str
    status: str
    reason: str
    fixed: tuple[str, ...]
    gradient: str


@cache
def results() -> tuple[Row, ...]:
    """The results of all tests."""
    rows = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for case in cases():
            found = outcome(case)
            gradient = gradient_outcome(case, found)[0] if found.status == "pass" else "none"
            rows.append(Row(case.name, case.op, found.status, found.reason, found.fixed, gradient))
    return tuple(rows)


def page(rows: Iterable[Row]) -> str:
    """The page of operators."""
    rows = list(rows)
    by_op: dict[str, list[Row]] = defaultdict(list)
    for each in rows:
        by_op[each.op].append(each)
    count = lambda status: sum(each.status == status for each in rows)
    right = sum(each.gradient == "right" for each in rows)
    share = count("pass") / max(count("pass") + count("refused") + count("wrong"), 1)
    lines = [
        "# ONNX operators",
        "",
        f"The tests of the `onnx` package, version {onnx.__version__}, as programs. {COMMAND}",
        "",
        (
            f"Of {len(rows)} tests, {count('pass')} pass, {count('refused')} are refused with a reason, and "
            f"{count('wrong')} fail."
        ),
        f"The other {count('untyped')} {UNTYPED}",
        "",
        f"{share:.1%} of the tests whose types can be said pass. {right} gradients agree with central differences.",
        "",
        FIXED,
        "- *gradients*: tests whose gradients of all float inputs agree with differences in float64.",
        "",
        "| operator | pass | fixed | gradients | refused | other types | first reason |",
        "|---|---|---|---|---|---|---|",
    ]
    for op, of in sorted(by_op.items()):
        number = {s: sum(each.status == s for each in of) for s in ("pass", "refused", "untyped")}
        fixed = sum(bool(each.fixed) and each.status == "pass" for each in of)
        gradients = sum(each.gradient == "right" for each in of)
        reason = next((_short(each.reason) for each in of if each.status == "refused"), "")
        lines.append(
            f"| {op} | {number['pass']} | {fixed or ''} | {gradients} | {number['refused'] or ''} | "
            f"{number['untyped'] or ''} | {reason} |"
        )
    return "\n".join(lines) + "\n"


def _short(reason: str) -> str:
    """A reason without the node's place, on one line."""
    text = re.sub(r"^node .*?\)(?: in .*?\))*: ", "", reason.split(";")[0])
    return text.replace("|", "\\|")[:120]


if __name__ == "__main__":
    PAGE.write_text(page(results()))
