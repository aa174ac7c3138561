"""What a run of all tests says at its end about the comparison with PyTorch."""

from __future__ import annotations

from typing import Any

COMPARED = "test_an_op_and_its_gradients_are_those_of_pytorch["


def pytest_terminal_summary(terminalreporter: Any) -> None:
    cases = {
        outcome: [r.nodeid.partition(COMPARED)[2].partition("-")[0] for r in reports if COMPARED in r.nodeid]
        for outcome, reports in terminalreporter.stats.items()
        if outcome in ("passed", "failed", "skipped", "error")
    }
    failed = len(cases.get("failed", [])) + len(cases.get("error", []))
    ran = [*cases.get("passed", []), *cases.get("failed", [])]
    if ran:
        line = f"beside PyTorch: {len(set(ran))} ops compared on {len(ran)} samples, {failed} failures"
        terminalreporter.write_line(line, red=bool(failed), green=not failed)
    elif cases.get("skipped"):
        terminalreporter.write_line("beside PyTorch: nothing compared, torch is not installed", yellow=True)
