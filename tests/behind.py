"""The law that integers behind the sizes of a run are 0, as a check after every op that makes such an array."""

from __future__ import annotations

from functools import reduce

import pytest

from core.ir import Op
from core.plan import walk
from core.plan.compose import Maker
from core.plan.lowering import Lowering
from core.plan.sized import within

__all__ = ["check_integers_behind_sizes"]

MESSAGE = "an integer behind the size is not 0"


def check_integers_behind_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of machine code with an integer other than 0 behind a size ends with an error at the op that made it."""
    lower = walk._lower_natively

    def checked(low: Lowering, op: Op) -> None:
        lower(low, op)
        for name in filter(low.is_defined, op.outputs):
            if low.sizes.get(name) and getattr(low.entry(name), "dtype", "").startswith(("int", "uint")):
                _check(low, op, name)

    monkeypatch.setattr(walk, "_lower_natively", checked)


def _check(low: Lowering, op: Op, name: str) -> None:
    of, entry = Maker(low), low.entry(name)
    inside = [
        within(low, tuple(n if i == axis else 1 for i, n in enumerate(entry.shape)), axis, size)
        for axis, size in low.sizes[name].items()
    ]
    zero = of("equal", entry, of.number(0, entry.dtype))
    fine = of("logical_or", zero, reduce(lambda a, b: of("logical_and", a, b), inside))
    of.check(fine, "index_out_of_range", MESSAGE, op.location)
