"""The peak memory of a step under other memory policies, without compiling the whole step again.

A policy changes the residuals and the recomputation of loops, and no op between the loops. A step is therefore compiled
once, with every loop at "store". Each *nest*, an op of block 0 that contains loops, is then differentiated and
optimised by itself under another policy, and its memory replaces that of the original nest. Nests of equal structure
are compiled once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from core.autodiff.adjoint import RuleCall
from core.cost.memory import lives
from core.cost.nests import Nest, nests_of
from core.cost.variants import Variant, constant, variant_of
from core.ir import HOLE, Block, StackType
from core.ops.control.inner_blocks import LoopMemory

__all__ = ["Step"]

HUGE = 2**48
"""Sizes from which sums may exceed 64 bits."""


class Step:
    """The optimised step of a program with all loops at "store", and its variants under other policies.

    forward, rule_calls: the differentiated block, and the calls of the rules of its control-flow ops.
    trips:               the assumed number of trips of every loop.
    nests:               the nests of the step; None if it cannot be divided into nests.
    exact:               `peak` equals the peak of the whole step compiled under the same policies. If not exact, it
                         differs by the stacks and open sizes that enter and leave nests.
    """

    def __init__(self, forward: Block, rule_calls: Mapping[int, RuleCall], step: Block, trips: int) -> None:
        self.forward, self.step, self.trips = forward, step, trips
        self.nests = nests_of(forward, rule_calls, step)
        # a stack or an open size may have another predicted size outside of a nest than inside
        self.exact = self.nests is not None and not any(
            isinstance(type := forward.types[name], StackType) or not type.is_static
            for nest in self.nests
            for name in (*nest.op.inputs, *nest.op.outputs)
            if name != HOLE
        )
        self._variants: dict[Hashable, Variant] = {}
        nests = self.nests or []
        own = {n.at: {k for k in step.ops[n.at].outputs if k not in n.op.outputs} for n in nests}
        outside = {n.back: own[n.at].union(filter(None, n.inputs), n.op.outputs) for n in nests if n.back is not None}
        self.lives = lives(step, trips, unread=outside)
        self._kept = [self.lives.array[k] for names in own.values() for k in names]
        self._fixed = {constant(op): self.lives.array[op.outputs[0]] for op in step.ops if not op.inputs}
        self._births, self._deaths = np.asarray(self.lives.births), np.asarray(self.lives.deaths)
        self._huge = sum(self.lives.sizes) + max(self.lives.inside, default=0) >= HUGE
        # trips of nested loops multiply: sizes beyond int64 are Python integers
        self._sizes = np.asarray(self.lives.sizes, object if self._huge else np.int64)
        self._sizes[self._kept] = 0
        self._inside = np.asarray(self.lives.inside, self._sizes.dtype)
        for n in nests:
            self._inside[[n.at] if n.back is None else [n.at, n.back]] = 0

    def variant(self, nest: Nest, policies: tuple[LoopMemory, ...]) -> Variant:
        """`nest` with `policies` for its loops, in their order."""
        key = (nest.structure, policies)
        if key not in self._variants:
            self._variants[key] = variant_of(nest, self.forward, self.step, policies, self.trips)
        return self._variants[key]

    def peak(self, variants: Sequence[Variant]) -> int:
        """The peak of the step in bytes, with one variant for each nest."""
        assert self.nests is not None
        huge = self._huge or any(max(v.residuals, v.forward, v.backward) >= HUGE for v in variants)
        dtype = np.dtype(object if huge else np.int64)
        births, deaths = self._births.copy(), self._deaths.copy()
        sizes, inside = self._sizes.astype(dtype), self._inside.astype(dtype)
        change = np.zeros(len(inside) + 1, dtype)
        fixed: dict[Hashable, tuple[int, int, int]] = {}
        for nest, v in zip(self.nests, variants, strict=True):
            inside[nest.at] = v.forward
            outputs = nest.op.outputs
            for i, size in v.outputs:
                if outputs[i] in self.lives.array:
                    sizes[self.lives.array[outputs[i]]] = size
            if nest.back is not None:
                inside[nest.back] = v.backward
                gradients = self.step.ops[nest.back].outputs
                if len(gradients) == len(v.gradients):
                    sizes[[self.lives.array[name] for name in gradients]] = v.gradients
                change[nest.at] += v.residuals
                change[nest.back + 1] -= v.residuals
                for i in v.reads:
                    name = nest.inputs[i] if i < len(nest.inputs) else outputs[i - len(nest.inputs)]
                    if name in self.lives.array:
                        array = self.lives.array[name]
                        deaths[array] = max(deaths[array], nest.back)
            for each, size, late in v.fixed:
                at = nest.back if late and nest.back is not None else nest.at
                _, first, last = fixed.get(each, (size, at, at))
                fixed[each] = size, min(first, at), max(last, at)
        for each, (size, first, last) in fixed.items():
            known = self._fixed.get(each)
            if known is None:
                change[first] += size
                change[last + 1] -= size
            else:
                births[known], deaths[known] = min(births[known], first), max(deaths[known], last)
        np.add.at(change, births, sizes)
        np.subtract.at(change, np.minimum(deaths + 1, len(inside)), sizes)
        return max([0, *(np.cumsum(change[:-1]) + inside).tolist()])
