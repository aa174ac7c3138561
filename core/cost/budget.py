"""Memory budgets: choose the memory plan with the least work whose predicted peak fits.

A memory plan lists the loops and segments that recompute their residuals. The list of candidates does not depend on the
budget, so a larger budget never recomputes more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, Protocol, get_args

from core.autodiff.adjoint import RuleCall
from core.cost.memory import predict_memory
from core.cost.nests import loops_of
from core.cost.step import Step
from core.cost.variants import Variant
from core.cost.work import count_work
from core.ir import Block
from core.ir.errors import Place, ProgramError
from core.ir.members import Member, check_members, read_members
from core.ops.control.inner_blocks import LoopMemory
from core.passes.recompute import even_cuts

__all__ = ["Budget", "Choice", "Policies", "choose"]

Policies = tuple[tuple[Place, LoopMemory], ...]
POLICIES: tuple[LoopMemory, ...] = get_args(LoopMemory)
ASSIGNMENTS = 1024
"""Compare all combinations of policies up to this number; above it, only those of the steepest descent."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on the predicted peak memory of a step. Loops that run longer than `trips` need more.

    Of the ways to recompute values instead of storing them, the one with the least extra work that fits is chosen and
    reported. A budget that nothing fits is refused with the smallest possible peak.
    """

    bytes: Annotated[int, Member("Peak bytes a step may allocate, not counting its inputs.", ge=1, le=2**63 - 1)]
    trips: Annotated[int, Member("Number of trips that the prediction assumes for every loop.", ge=0, le=10**6)] = 100

    def __post_init__(self) -> None:
        check_members(self, "a budget", "bad_query")

    @classmethod
    def read(cls, raw: Any) -> Budget:
        """A budget from its JSON form ``{"bytes": 1000000, "trips": 50}``; `trips` may be left out."""
        return read_members(cls, raw, "a budget", "bad_query")


@dataclass(frozen=True, slots=True)
class Choice:
    """The memory plan chosen for a budget.

    policies:    policies of the loops that have no policy of their own.
    cuts:        positions in block 0 after which a recomputed segment of the forward part ends.
    peak:        predicted peak in bytes.
    extra:       floating-point operations beyond those of keeping all residuals.
    checkpoints: forward variables that cross a cut.
    """

    budget: Budget
    policies: Policies
    cuts: tuple[int, ...]
    peak: int
    extra: int
    checkpoints: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Policies, tuple[int, ...]]:
        """The arguments of its compilation: policies other than "store", and cuts."""
        return tuple(each for each in self.policies if each[1] != "store"), self.cuts

    def as_document(self) -> dict[str, Any]:
        return {
            "bytes": self.budget.bytes,
            "trips": self.budget.trips,
            "predicted_peak": self.peak,
            "extra_flops": self.extra,
            "loops": [_where(place) | {"memory": policy} for place, policy in self.policies],
            "checkpoints": list(self.checkpoints),
        }


def _where(place: Place) -> dict[str, Any]:
    function, block, op = place
    return {"block": block, "op": op} | ({"function": function} if function is not None else {})


class Differentiated(Protocol):
    """The fields of core.backward.backward_program.Backward that a budget reads."""

    @property
    def forward(self) -> Block: ...
    @property
    def rule_calls(self) -> Mapping[int, RuleCall]: ...
    @property
    def checkpoints(self) -> tuple[str, ...]: ...


Compile = Callable[[Policies, tuple[int, ...]], tuple[Differentiated, Block]]
"""A function from policies and cuts to the backward pass and its optimised step."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    policies: Policies
    work: int
    estimate: int


def choose(budget: Budget, compile: Compile, loops: bool, cuts: bool, apart: bool) -> Choice:
    """The memory plan with the least work whose predicted peak is within `budget`.

    loops: loops may get other memory policies. These are tried before cuts.
    cuts:  block 0 may be cut into recomputed segments.
    apart: nests may get policies of their own; otherwise all loops get the same policy.
    Raises ProgramError (budget_too_small) with the smallest peak of all memory plans.
    """
    found: dict[Hashable, tuple[Differentiated, Block, int]] = {}

    def compiled(policies: Policies, cuts: tuple[int, ...] = ()) -> tuple[Differentiated, Block, int]:
        key = tuple(each for each in policies if each[1] != "store"), cuts
        if key not in found:
            backward, step = compile(*key)
            found[key] = backward, step, predict_memory(step, budget.trips).peak
        return found[key]

    def chosen(policies: Policies, cuts: tuple[int, ...] = ()) -> Choice:
        backward, step, peak = compiled(policies, cuts)
        extra = _work(step, budget.trips) - _work(compiled(())[1], budget.trips)
        return Choice(budget, policies, cuts, peak, extra, backward.checkpoints if cuts else ())

    backward, step, peak = compiled(())
    if peak <= budget.bytes and not loops:
        return chosen(())
    candidates = [_Candidate((), 0, peak)]
    if loops:
        nested = Step(backward.forward, backward.rule_calls, step, budget.trips)
        candidates = list(_by_nest(nested)) if apart and nested.nests is not None else []
        if not candidates or _shared(candidates[0].policies):
            candidates = [
                _Candidate(p, _work(compiled(p)[1], budget.trips), compiled(p)[2]) for p in _uniform(backward.forward)
            ]
    candidates.sort(key=lambda each: (each.work, each.estimate, sum(policy != "store" for _, policy in each.policies)))
    beyond = 0  # the largest excess of a compiled step over its estimate; 0 if estimates are exact
    for candidate in candidates:
        if candidate.estimate + beyond <= budget.bytes:
            if (real := compiled(candidate.policies)[2]) <= budget.bytes:
                return chosen(candidate.policies)
            beyond = max(beyond, real - candidate.estimate)
    least = min(candidates, key=lambda candidate: (candidate.estimate, candidate.work)).policies
    if compiled(least)[2] <= budget.bytes:
        return chosen(least)
    for each in _cuts(compiled(least)[0].forward, budget.trips) if cuts else ():
        if compiled(least, each)[2] <= budget.bytes:
            return chosen(least, each)
    smallest = min(each[2] for each in found.values())
    raise ProgramError(
        f"no memory plan fits {budget.bytes} bytes: the smallest predicted peak is {smallest} bytes",
        "budget_too_small",
        suggestion=f"allow {smallest} bytes, or reduce the size of the feeds",
    )


def _work(step: Block, trips: int) -> int:
    return sum(count_work(step, trips).values())


def _shared(policies: Policies) -> bool:
    return len({place for place, _ in policies}) < len(policies)


def _uniform(forward: Block) -> list[Policies]:
    """For each policy, the assignment of it to all loops without a policy of their own."""
    loops = [each for op in forward.ops if op.attrs for each in loops_of(op) if each.attrs["memory"] == "store"]
    places = dict.fromkeys(each.location.place for each in loops if each.location)
    return [tuple((place, policy) for place in places) for policy in POLICIES]


def _by_nest(step: Step) -> Iterator[_Candidate]:
    """Candidates with separate policies for each nest. A nest without a gradient has one variant, without residuals."""
    assert step.nests is not None
    each_nest: list[list[Variant]] = []
    for nest in step.nests:
        n = len(nest.loops)
        several: list[tuple[LoopMemory, ...]] = [(policy,) * n for policy in POLICIES]
        if n == 2:
            several = list(product(POLICIES, repeat=n))
        tried = [step.variant(nest, each) for each in several] if nest.back is not None else []
        each_nest.append(_useful(tried) or [step.variant(nest, several[0])])
    if math.prod(map(len, each_nest)) <= ASSIGNMENTS:
        assignments: Iterator[Sequence[Variant]] = product(*each_nest)
    else:
        assignments = _steepest(each_nest)
    for assignment in assignments:
        policies = tuple(
            each
            for nest, v in zip(step.nests, assignment, strict=True)
            for each in zip(nest.loops, v.policies, strict=True)
        )
        yield _Candidate(policies, sum(v.work for v in assignment), step.peak(assignment))


def _useful(variants: Sequence[Variant]) -> list[Variant]:
    """The Pareto-optimal variants by work and memory, the first of equal ones, in the order of increasing work."""

    def costs(v: Variant) -> tuple[int, ...]:
        return v.work, v.residuals, v.forward, v.backward

    useful: list[Variant] = []
    for v in sorted(variants, key=costs):
        if not any(all(a <= b for a, b in zip(costs(u), costs(v), strict=True)) for u in useful):
            useful.append(v)
    return useful


def _steepest(each_nest: Sequence[Sequence[Variant]]) -> Iterator[list[Variant]]:
    """Assignments from the least work to the least memory; each step saves the most bytes for its extra work."""
    moves = []
    for number, variants in enumerate(each_nest):
        at, taken = variants[0], _taken(variants[0])
        while better := [v for v in variants if _taken(v) < taken]:
            chosen = max(better, key=lambda v: ((taken - _taken(v)) / max(v.work - at.work, 1), -v.work))
            moves.append(((_taken(chosen) - taken) / max(chosen.work - at.work, 1), number, chosen))
            at, taken = chosen, _taken(chosen)
    current = [variants[0] for variants in each_nest]
    yield list(current)
    for _, number, variant in sorted(moves, key=lambda move: move[:2]):
        current[number] = variant
        yield list(current)


def _taken(v: Variant) -> int:
    return v.residuals + max(v.forward, v.backward)


def _cuts(block: Block, trips: int) -> list[tuple[int, ...]]:
    """Cuts of a front part of block 0 into segments of three lengths, in the order of recomputed work."""
    n = len(block.ops)
    found = {}
    for segments in (round(math.sqrt(n) * factor) for factor in (0.5, 1, 2)):
        every = even_cuts(block, segments) if segments > 1 else []
        for eighth in range(1, 9):
            some = tuple(every[: math.ceil(len(every) * eighth / 8)])
            if some:
                front = replace(block, ops=block.ops[: some[-1] + 1])
                found[some] = _work(front, trips), some[-1], len(some)
    return sorted(found, key=lambda cuts: found[cuts])
