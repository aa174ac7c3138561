"""Structures: appending the same ops again gives what appending them for the first time gives."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.ir import Block
from core.ir.errors import ExecutionError, ProgramError
from core.runtime.native import native_interpreter
from core.runtime.reference import Interpreter
from core.tape import Steps, Structure, Tape
from core.tape.tape import REPEATS
from tests.core.tape.test_tape import op
from tests.programs import identical

CELL = [
    op("matmul", "h", x="x", y="w"),
    op("tanh", "t", x="h"),
    op("square", "d", x="t"),
    op("mean", "loss", x="d"),
]
"""Ops of one iteration with the parameter w and the constant x."""


def iteration(t: Tape, structure: Structure, rows: int = 2, w: Any = None, **more: Any) -> Any:
    """Renew `t`, append the cell, and play it back from `loss`."""
    x = np.linspace(-1, 1, 3 * rows).reshape(rows, 3)
    return t.extend(
        structure,
        renew=True,
        parameters={} if w is None else {"w": w},
        constants={"x": x},
        backward=("loss", None, None),
        **more,
    )


def by_hand(w: np.ndarray, rows: int = 2) -> np.ndarray:
    """The gradient of mean(tanh(x w)^2)."""
    x = np.linspace(-1, 1, 3 * rows).reshape(rows, 3)
    t = np.tanh(x @ w)
    return x.T @ (2 * t * (1 - t**2)) / t.size


def test_repeated_ops_are_not_read_again_and_have_gradients_of_the_new_values():
    t, structure, w = Tape("lazy"), Structure(CELL), np.eye(3)
    for i in range(3):
        found = iteration(t, structure, w=w)
        assert (found.repeated, found.places) == (i > 0, (0, 1, 2, 3))
        np.testing.assert_allclose(found.gradients.gradients["w"], by_hand(w), rtol=1e-13)
        w = w + 0.25


def test_a_structure_is_read_again_for_other_types_places_or_names():
    t, structure, w = Tape("lazy"), Structure(CELL), np.eye(3)
    assert not iteration(t, structure, w=w).repeated
    other = iteration(t, structure, rows=5)
    assert not other.repeated
    np.testing.assert_allclose(other.gradients.gradients["w"], by_hand(w, 5), rtol=1e-13)
    assert iteration(t, structure, rows=5).repeated

    t.extend(Structure([op("neg", "n", x="w")]), renew=True, constants={"x": np.ones((5, 3))})
    later = t.extend(structure)
    assert (later.repeated, later.places) == (False, (1, 2, 3, 4))
    with pytest.raises(ProgramError, match="is on the tape already"):
        t.extend(structure)
    with pytest.raises(ProgramError, match="'x'"):
        t.extend(structure, renew=True)  # without the constant that the ops read


def test_a_repeated_structure_that_fails_leaves_the_tape_unchanged():
    t, structure, w = Tape("lazy"), Structure(CELL), np.eye(3)
    iteration(t, structure, w=w)
    iteration(t, structure, w=w)
    before = t.write()
    for wrong in (("unknown", None, None), ("h", None, None)):
        with pytest.raises(ProgramError):
            t.extend(structure, renew=True, constants={"x": np.ones((2, 3))}, backward=wrong)
        assert t.write() == before
        np.testing.assert_allclose(t.gradients("loss").gradients["w"], by_hand(w), rtol=1e-13)


def test_missing_gradients_follow_the_type_of_a_parameter_that_no_op_reads():
    t, structure = Tape("lazy"), Structure(CELL)
    for extra, reason in ((np.ones(2), "unused"), (np.ones(2, "int64"), "integer_dtype"), (np.ones(2), "unused")):
        found = t.extend(
            structure,
            renew=True,
            parameters={"w": np.eye(3), "extra": extra},
            constants={"x": np.ones((2, 3))},
            backward=("loss", None, None),
        )
        assert found.gradients.missing == {"extra": reason}


def test_a_structure_after_other_ops_is_played_back_with_them():
    """Both first parts have the same names and types, so the second part is not read again."""
    second = Structure([op("square", "q", x="a"), op("reduce_sum", "s", x="q")])
    w = np.linspace(0.1, 1, 3)
    parts = {"tanh": 2 * np.tanh(w) * (1 - np.tanh(w) ** 2), "exp": 2 * np.exp(2 * w), "sin": np.sin(2 * w)}
    t = Tape("lazy")
    for type, wanted in parts.items():
        t.extend(Structure([op(type, "a", x="w")]), renew=True, parameters={"w": w})
        found = t.extend(second, backward=("s", None, None))
        np.testing.assert_allclose(found.gradients.gradients["w"], wanted, rtol=1e-13)
    assert found.repeated


def test_a_value_of_repeated_ops_is_computed_once():
    t, structure = Tape("lazy"), Structure(CELL)
    iteration(t, structure, w=np.eye(3))
    for _ in range(2):
        t.extend(structure, renew=True, constants={"x": np.ones((2, 3))})
        assert t.evaluate(["t"]).ran == (0, 1)
        assert t.gradients("loss").ran == (2, 3)
        assert t.evaluate(["loss", "h"]).ran == ()


def counting(compiled: list[Hashable]) -> Steps:
    def machine(key: Hashable, block: Block) -> Interpreter:
        compiled.append(key)
        return native_interpreter(block, CPU)

    return Steps(machine=machine)


def test_a_plan_becomes_machine_code_after_the_same_number_of_runs_on_every_tape():
    compiled: list[Hashable] = []
    steps, w = counting(compiled), np.eye(3) / 3
    runs = []
    for _ in range(2):
        t, structure = Tape("lazy", steps=steps), Structure(CELL)
        runs.append([iteration(t, structure, w=w).gradients.gradients["w"] for _ in range(REPEATS + 3)])
        assert len(compiled) == 2  # the forward and the backward pass, once for both tapes
    for one, other in zip(*runs, strict=True):
        identical(one, other)
        np.testing.assert_allclose(one, by_hand(w), rtol=1e-12)


def test_an_iteration_runs_again_after_its_compilation_was_not_ready():
    """A worker raises while a compilation runs, and makes the call again."""
    ready: list[bool] = []

    class NotReady(Exception):
        pass

    def machine(key: Hashable, block: Block) -> Interpreter:
        if not ready:
            ready.append(True)
            raise NotReady
        return native_interpreter(block, CPU)

    t, structure, w = Tape("lazy", steps=Steps(machine=machine)), Structure(CELL), np.eye(3) / 3
    for _ in range(REPEATS):
        iteration(t, structure, w=w)
    before = t.renewals, t.write()
    with pytest.raises(NotReady):
        iteration(t, structure, w=w)
    assert (t.renewals, t.write()) == before
    np.testing.assert_allclose(iteration(t, structure, w=w).gradients.gradients["w"], by_hand(w), rtol=1e-12)


def test_a_plan_that_cannot_be_compiled_runs_as_before():
    def machine(key: Hashable, block: Block) -> Interpreter:
        raise ExecutionError("the compiler ended", "compiler_failed")

    t, structure, w = Tape("lazy", steps=Steps(machine=machine)), Structure(CELL), np.eye(3) / 3
    for _ in range(REPEATS + 2):
        np.testing.assert_allclose(iteration(t, structure, w=w).gradients.gradients["w"], by_hand(w), rtol=1e-12)


POOL = [
    [op("tanh", "a", x="w"), op("mul", "b", x="a", y="x"), op("reduce_sum", "s", x="b")],
    [op("exp", "a", x="w"), op("add", "b", x="a", y="a"), op("mean", "s", x="b")],
    [op("matmul", "b", {"transpose_x": True}, x="x", y="w"), op("square", "q", x="b"), op("mean", "s", x="q")],
    [op("uniform_random", "u", {"shape": [2, 3]}), op("mul", "b", x="u", y="w"), op("reduce_sum", "s", x="b")],
    [op("gather", "b", x="w", index="i"), op("reduce_sum", "s", x="b")],
    [op("tanh", x="w"), op("neg", x="w"), op("reduce_sum", "s", x="w")],
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("mode", ["immediate", "lazy"])
def test_any_sequence_of_requests_gives_the_same_with_kept_structures_and_without(mode, seed):
    rng = np.random.default_rng(seed)
    kept, fresh = Tape(mode, seed=3), Tape(mode, seed=3)
    structures = [Structure(ops) for ops in POOL]
    for _ in range(60):
        which = int(rng.integers(len(POOL)))
        dtype = rng.choice(["float64", "float32"], p=[0.8, 0.2])
        leaves: dict[str, Any] = {}
        if rng.random() < 0.7:
            leaves["parameters"] = {"w": rng.normal(size=(2, 3)).astype(dtype)}
        if rng.random() < 0.8:
            index = rng.integers(0, 3, size=rng.integers(1, 3))  # 2 is out of range: the run fails
            leaves["constants"] = {"x": rng.normal(size=(2, 3)).astype(dtype), "i": index}
        more: dict[str, Any] = {"renew": bool(rng.random() < 0.8), **leaves}
        if rng.random() < 0.7:
            more["backward"] = (str(rng.choice(["s", "b"])), [None, ["w"], ["b"]][rng.integers(3)], None)
        release = list(rng.choice(["a", "b", "s", "w"], size=rng.integers(3)))
        results: list[Any] = []
        for t, structure in ((kept, structures[which]), (fresh, Structure(POOL[which]))):
            t.release(release)
            try:
                added = t.extend(structure, **more)
            except (ProgramError, ExecutionError) as error:
                results.append((error.code, error.message, error.location))
                continue
            found = added.gradients
            results.append(
                (
                    added.places,
                    t.appended(added.places),
                    found and (found.value, found.gradients, found.missing, found.played, found.final, found.ran),
                )
            )
        _same(*results)
        assert kept.write() == fresh.write()
        assert (kept.nbytes, kept.computed, kept.types) == (fresh.nbytes, fresh.computed, fresh.types)
    assert any(each.read is not None for each in structures)


def _same(one: Any, other: Any) -> None:
    if isinstance(one, np.ndarray):
        identical(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            _same(one[name], other[name])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            _same(a, b)
    else:
        assert one == other
