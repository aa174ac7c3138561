"""Predictions of steps on a GPU count the work of a plan, and the page keeps its other sections."""

from __future__ import annotations

import pytest

from bench.report import page
from bench.roofline import H200, TITLE, Tally, predicted, section, tally_of, with_section
from bench.workloads import mlp, rnn_while
from core.plan.work import Work


def products(tally: Tally) -> float:
    return tally.sum(lambda each: each.flops if each.kernel.startswith("product") else 0)


def test_the_products_of_a_network_have_the_operations_of_the_textbook():
    batch, inputs, hidden, classes = 32, 64, 48, 10

    tally = tally_of(mlp("", batch, (inputs, hidden, classes)))

    forward_and_weights = 2 * 2 * batch * (inputs * hidden + hidden * classes)
    inner_cotangent = 2 * batch * hidden * classes
    assert products(tally) == forward_and_weights + inner_cotangent
    assert tally.ops == 0


@pytest.mark.parametrize("trips", [4, 32])
def test_a_loop_counts_for_each_of_its_trips(trips):
    batch, inputs, hidden = 8, 16, 24

    tally = tally_of(rnn_while(trips, batch, inputs, hidden))

    each = 2 * batch * hidden * (2 * inputs + 3 * hidden)  # forward, the weights' gradients, and the state's cotangent
    assert products(tally) == trips * each
    assert tally.barriers >= 2 * trips


def test_a_prediction_is_no_shorter_than_the_work_at_published_rates():
    product = Work("product 1", flops=67_000_000, nbytes=48, dtype="float32")
    rows = Work("rows 1", flops=1, nbytes=4_800_000, dtype="float32")

    found = predicted(Tally([(product, 3), (rows, 2)], barriers=4, ops=1), H200)

    assert found["work"] == pytest.approx(3 * 1e-6 + 2 * 1e-6)
    assert found["step"] == pytest.approx(5e-6 + 4 * 1.25e-6 + 1.3e-6 + 15e-6)
    assert found["as"] == "one kernel"
    assert found["tf32"] < found["step"]


def test_little_work_between_many_barriers_runs_in_one_block():
    tiny = Work("rows 1", flops=100, nbytes=100, dtype="float32")

    assert predicted(Tally([(tiny, 50)], barriers=49), H200)["as"] == "one block"


def test_the_section_is_replaced_and_others_are_kept():
    report = {"workloads": {"one": predicted(Tally([(Work("rows", 10, 10, "float32"), 1)]), H200)}}
    own = section(report)

    once = with_section("# Performance\n\n## Memory\n\n1 MiB\n", own)
    again = with_section(once.replace("| one |", "| old |"), own)
    between = with_section(once + "\n## Last\n\nend\n", own)

    assert once == again
    assert once.startswith("# Performance\n\n## Memory\n\n1 MiB\n") and once.count(TITLE) == 1
    assert between.endswith("\n## Last\n\nend\n") and between.count(TITLE) == 1


def test_the_report_contains_the_prediction_and_says_that_it_is_one():
    machine = {"processor": "Some CPU", "vector": "avx2", "cores": 4, "load": 0.5, "python": "3.12.1"}
    report = {"machine": machine, "workloads": {}}

    text = page({"roofline": report})

    assert TITLE in text and "These numbers are predictions" in text
