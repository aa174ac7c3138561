"""The performance report shows the measurements."""

from __future__ import annotations

from bench.report import page

MACHINE = {"processor": "Some CPU", "vector": "avx2", "cores": 4, "load": 0.5, "python": "3.12.1"}


def timed(**medians):
    return {name: {"median": median, "least": median, "first": 1.0} for name, median in medians.items()}


def test_the_report_compares_with_the_fastest_peer_and_shows_the_geometric_mean():
    workloads = {
        "one": timed(backpass=0.001, torch_eager=0.004, jax_jit=0.002),
        "two": timed(backpass=0.004, torch_eager=0.002),
    }
    report = {"machine": MACHINE, "rounds": 5, "versions": {"torch": "2.0"}, "threads": {"1": workloads}}

    lines = page({"steps": report}).splitlines()

    assert "| 1 thread | Backpass | torch eager | jax.jit | ratio |" in lines
    assert "| one | 1 | 4 | 2 | 0.50 |" in lines
    assert "| two | 4 | 2 | - | 2.00 |" in lines
    assert "| geometric mean |  |  |  | 1.00 |" in lines
    assert "* Python 3.12.1, torch 2.0." in lines


def test_the_report_omits_sections_without_measurements():
    report = {"machine": MACHINE, "rounds": 3, "workloads": {"one": {"backpass": 0.5}}}

    text = page({"first_gradient": report})

    assert "| one | 0.500 |" in text
    assert "## Training steps" not in text
    assert "## Memory" not in text


def test_a_section_stays_until_it_is_measured_again_and_names_its_machine():
    older, newer = (
        {"machine": {**MACHINE, "processor": name}, "rounds": 3, "workloads": {}} for name in ("Old", "New")
    )
    threads = {"1": {"one": timed(backpass=0.001, torch_eager=0.004)}}
    once = page({"steps": {**older, "threads": threads}, "first_gradient": older})

    again = page({"steps": {**newer, "threads": threads}}, once)

    assert again.count("## Training steps") == again.count("## First gradient") == again.count("# Performance") == 1
    steps, gradient = again.split("## First gradient")
    assert "* Processor: New, avx2, 4 cores." in steps and "* Processor: Old, avx2, 4 cores." in gradient


def test_the_report_of_memory_has_a_row_for_each_workload():
    size = lambda peak, rise: {"peak": peak * 2**20, "rise": rise * 2**20}
    resident = {
        "one": {"backpass": size(150, 2), "torch_eager": size(300, 1), "jax_jit": size(250, 20)},
        "two": {"backpass": size(160, 12), "torch_eager": size(200, 9)},
        "three": {"backpass": size(170, 3)},
    }
    predicted = {"one": {"predicted": 2**20, "used": 2**20, "touched": 2**19, "elsewhere": 0}}

    lines = page({"memory": {"machine": MACHINE, "resident": resident, "predicted": predicted}}).splitlines()

    assert "|  | Backpass | torch eager | jax.jit | ratio |" in lines
    assert "| one | 150 (+2) | 300 (+1) | 250 (+20) | 0.60 |" in lines
    assert "| two | 160 (+12) | 200 (+9) | - | 0.80 |" in lines
    assert "| three | 170 (+3) | - | - | - |" in lines
    assert "| one | 1.000 | 1.000 | 0.500 | 1.00 |" in lines
