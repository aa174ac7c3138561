"""Random programs on chosen rows: sizes that only the run tells, with loops, branches, functions and sequences.

A value is a matrix whose rows belong to a *group*: all rows, or rows chosen from those of another group by a mask or as
the first of equal ones. Values of one group have the same rows and can be combined. A result of the chosen rows comes
back to the outer group, to segments, or to a scalar.
"""

from __future__ import annotations

import random

import numpy as np

from tests.chosen.control import Control
from tests.chosen.other_rows import OtherRows
from tests.chosen.parts import SEGMENTS, WIDTHS, Group
from tests.chosen.sequences import Sequences
from tests.chosen.within import WithinGroup
from tests.programs import Sketch

__all__ = ["Chosen"]


class Chosen(WithinGroup, OtherRows, Control, Sequences):
    """One random program. `sketch` has its document and the values of its inputs; its loss is ``loss``."""

    def __init__(self, seed: int, rows: int, share: float, dtype: str = "float64", most: int = 9) -> None:
        self.draw, self.rng, self.rows, self.dtype = random.Random(seed), np.random.default_rng(seed), rows, dtype
        self.sketch, self.inputs = Sketch(), []
        self.depth = 0
        s, rng = self.sketch, self.rng
        self.all = Group()
        for name, value in self.data(rng, share).items():
            s.feed(name, value, str(value.dtype))
        self.all.masks, self.all.labels = ["mask0", "mask1"], ["labels", "others"]
        self.lengths, self.yes, self.trips = "lengths", "yes", "trips"
        self.from_, self.until, self.one = "from", "until", "one"
        for name, columns in (("x", self.pick(WIDTHS)), ("z", 3)):
            self.inputs.append(s.param(name, rng.uniform(-1, 1, (rows, columns)), dtype))
            self.all.values.append((name, columns))
        self.weights: dict[tuple[int, ...], str] = {}
        self.table = self.weight(SEGMENTS, 3)
        self.sum = self.number(0.0)
        self.fill(self.all, self.draw.randint(3, most))
        self.finish(self.all)
        s.op("assign", self.sum, out="loss")

    def data(self, rng: np.random.Generator, share: float) -> dict[str, np.ndarray]:
        """The feeds that choose sizes, positions and branches. share: of the true elements of masks."""
        rows = self.rows
        masks = [rng.random(rows) < share for _ in range(2)]
        cuts = np.sort(rng.integers(0, rows + 1, 2))
        return {
            "mask0": masks[0],
            "mask1": masks[1],
            "labels": rng.integers(0, SEGMENTS, rows),
            "others": rng.integers(-SEGMENTS, SEGMENTS, rows),
            "lengths": np.diff(np.concatenate([[0], cuts, [rows]])),
            "yes": np.asarray(rng.random() < 0.5),
            "from": rng.integers(0, 2, 1),
            "until": rng.integers(0, rows + 2, 1),
            "one": np.ones(1, np.int64),
            "trips": np.asarray(rng.integers(0, 4)),
        }
