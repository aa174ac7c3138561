"""The summary at the end of a run: the numbers of ops, of verified ops and of ops compared with PyTorch."""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from tests.programs import EXECUTOR

pytest.register_assert_rewrite(
    "tests.laws.agreement", "tests.laws.examples", "tests.core.plan.agreement", "tests.device.agreement"
)

LAW = "test_first_and_second_gradients_agree_with_finite_differences["
COMPARED = "test_an_op_and_its_gradients_equal_pytorchs["


def pytest_addoption(parser: Any) -> None:
    parser.addoption("--native", action="store_true", help="run programs as machine code where possible")


def pytest_configure(config: Any) -> None:
    EXECUTOR["native"] = config.getoption("--native")
    if EXECUTOR["native"]:
        os.environ.setdefault("BACKPASS_COMPILE", "always")  # for the services that tests start


THINNER = 3.0
"""Factor of the numbers of `sampled`, so that `make test` stays within its 15 minutes."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: Any, items: Any) -> None:
    _sample(items)
    if config.getoption("--native"):
        for item in items:
            if item.get_closest_marker("reference"):
                item.add_marker(pytest.mark.skip(reason="about the reference executor"))


def _sample(items: Any) -> None:
    """Mark cases of tests with the marker `sampled` as slow: all but the first one and about one of so many others.

    The number is multiplied by `THINNER`.

    With `each`, the first case for each value of that parameter stays. A case is chosen by its identifier, so that a
    new op changes no other choice.
    """
    seen: set[tuple[str, Any]] = set()
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is None:
            continue
        each = marker.kwargs.get("each")
        case = item.nodeid.partition("[")[0], item.callspec.params[each] if each else None
        first = case not in seen
        seen.add(case)
        if not first and zlib.crc32(item.nodeid.encode()) % round(THINNER * marker.args[0]):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _executor(request: Any, monkeypatch: Any) -> None:
    """With --native, compile an executable to machine code at its first step, as sessions do."""
    if not request.config.getoption("--native"):
        return
    from core.runtime.executable import Executable

    interpreted, machines = Executable.step, {}

    def step(self: Executable, *args: Any, **more: Any) -> Any:
        if self.machine is None and more.get("times") is None:
            if id(self.interpreter) not in machines:
                machines[id(self.interpreter)] = self.compiled()  # keeps the interpreter, and so its id, alive
            self = replace(self, machine=machines[id(self.interpreter)].machine)
        return interpreted(self, *args, **more)

    monkeypatch.setattr(Executable, "step", step)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write the summary lines of the tests that ran."""
    _by_differences(terminalreporter)
    _compared_with_pytorch(terminalreporter)


def _by_differences(terminalreporter: Any) -> None:
    outcomes: dict[str, set[str]] = defaultdict(set)
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            if LAW in report.nodeid and report.when == "call":
                outcomes[report.nodeid.partition(LAW)[2].rpartition("-")[0]].add(outcome)
    if not outcomes:
        return
    import core.compiler.compile  # noqa: F401  (declares every op)
    from core.ir.registry import CONSTRUCTS, REGISTRY

    differentiable = {name for name, spec in REGISTRY.items() if spec.differentiable}
    control = {name for name in differentiable if REGISTRY[name].kind == "control"}
    verified = {name for name, seen in outcomes.items() if seen == {"passed"}}
    rest = sorted(differentiable - control - verified)
    terminalreporter.write_line(
        f"{len(REGISTRY | CONSTRUCTS)} ops in the catalogue, {len(REGISTRY)} of them in the core, where "
        f"{len(differentiable)} are differentiable: {len(verified)} verified in first and second order by differences, "
        f"{len(control)} of control flow by programs" + (f"; not verified: {', '.join(rest)}" if rest else "")
    )


def _compared_with_pytorch(terminalreporter: Any) -> None:
    cases = {
        outcome: [r.nodeid.partition(COMPARED)[2].partition("-")[0] for r in reports if COMPARED in r.nodeid]
        for outcome, reports in terminalreporter.stats.items()
        if outcome in ("passed", "failed", "skipped", "error")
    }
    failed = len(cases.get("failed", [])) + len(cases.get("error", []))
    ran = [*cases.get("passed", []), *cases.get("failed", [])]
    if ran:
        line = f"compared with PyTorch: {len(set(ran))} ops on {len(ran)} samples, {failed} failures"
        terminalreporter.write_line(line, red=bool(failed), green=not failed)
    elif cases.get("skipped"):
        terminalreporter.write_line("not compared with PyTorch: torch is not installed", yellow=True)
