"""Results never depend on earlier compilations.

One process compiles and runs random programs in random order, each in variants that are equal by Python's ==. Their
results have the bits of the results from processes that have compiled nothing else.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator

import pytest

from core.ir.derived import REMEMBERED
from tests.fresh import Answer, Fresh, answer
from tests.sign_of_zero import Question, variants

PROGRAMS = int(os.environ.get("BACKPASS_TEST_PROGRAMS", "200")) * 4 // 5
PARTS = 10
SEEDS = -(-PROGRAMS // (4 * PARTS))
"""Of one part. A seed gives four programs."""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


@pytest.fixture(scope="module")
def fresh() -> Iterator[Fresh]:
    started = Fresh()
    yield started
    started.close()


def both(fresh: Fresh, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer, Answer]]:
    """Each question with two answers: of this process, after all earlier questions, and of a fresh process."""
    for each in questions:
        fresh.ask(each)  # it answers at the same time as this process
        here = answer(each)
        yield each, here, fresh.answer()


def compare(question: Question, found: Answer, wanted: Answer) -> None:
    assert found == wanted, f"{question.name} gives other results after other programs"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("part", range(PARTS))
def test_results_do_not_depend_on_earlier_compilations(fresh, part):
    seeds = range(part * SEEDS, (part + 1) * SEEDS)
    questions = [each for seed in seeds for each in variants(seed, second_order=seed % 3 == 0)]
    random.Random(part).shuffle(questions)

    for question, here, wanted in both(fresh, questions):
        compare(question, here, wanted)


@pytest.mark.parametrize("seed", range(SEEDS // 4 or 1))
def test_machine_code_does_not_depend_on_earlier_compilations(fresh, seed):
    questions = variants(10**6 + seed, native=True)
    random.Random(seed).shuffle(questions)

    for question, here, wanted in both(fresh, questions):
        compare(question, here, wanted)


@pytest.mark.parametrize("part", range(2))
def test_concurrent_compilations_do_not_depend_on_each_other(fresh, part):
    seeds = range(2 * 10**6 + part * SEEDS, 2 * 10**6 + part * SEEDS + (SEEDS // 2 or 1))
    questions = [each for seed in seeds for each in variants(seed)]
    order = random.Random(part).sample(range(len(questions)), len(questions))

    REMEMBERED.clear()  # both threads fill it again
    forward, backward = concurrently(
        lambda: {i: answer(questions[i]) for i in order},
        lambda: {i: answer(questions[i]) for i in reversed(order)},
    )

    for i, question in enumerate(questions):
        fresh.ask(question)
        wanted = fresh.answer()
        compare(question, forward[i], wanted)
        compare(question, backward[i], wanted)


def concurrently(*work: Callable[[], dict[int, Answer]]) -> list[dict[int, Answer]]:
    """The results of the functions, which run in threads that take turns as often as possible."""
    found: dict[int, dict[int, Answer]] = {}
    threads = [threading.Thread(target=lambda i=i, do=do: found.update({i: do()})) for i, do in enumerate(work)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(before)
    return [found[i] for i in range(len(work))]


def test_variants_of_a_program_differ_in_their_results():
    """If they did not differ, the law above would prove nothing."""
    apart = 0
    for seed in range(8):
        plus, minus, *_ = variants(seed)
        assert plus.document == minus.document  # 0.0 == -0.0 in Python
        apart += answer(plus) != answer(minus)
    assert apart >= 4
