"""The summary at the end of a run: the numbers of ops, of verified ops and of ops compared with PyTorch."""

from __future__ import annotations

import gc
import os
import zlib
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

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
    # A slow machine is no failure. `make test` draws the same examples each time, so that a change fails for its own
    # mistakes alone; `make test-all` draws others each time.
    same = "not slow" in config.getoption("markexpr")
    settings.register_profile("backpass", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=same)
    settings.load_profile("backpass")


THINNER = 16.0
"""Factor of the numbers of `sampled`, so that `make test` stays within its 15 minutes."""


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: Any) -> Any:
    """Make the cases of a test; with `-m "not slow"`, no slow ones, and those that its marker `sampled` chooses.

    To make all of them and to deselect most would take more than half of the time of a collection. The first case
    always stays: a test without cases would run once, without parameters.
    """
    yield
    if "not slow" not in metafunc.config.getoption("markexpr"):
        return
    cases, test = metafunc._calls, metafunc.definition  # no public hook removes cases
    if marker := test.get_closest_marker("sampled"):
        cases[:] = _sample(test.nodeid, cases, *marker.args, **marker.kwargs)
    slow = test.get_closest_marker("slow") is not None
    cases[1:] = [case for case in cases[1:] if not slow and all(mark.name != "slow" for mark in case.marks)]


def _sample(test: str, cases: Any, n: int, each: str | None = None) -> Any:
    """The first case, and about one of `THINNER` n others; with `each`, the first one for each value of that parameter.

    A case is chosen by its identifier, so that a new op changes no other choice.
    """
    seen: set[Any] = set()
    for case in cases:
        value = case.params[each] if each else None
        if value not in seen or not zlib.crc32(f"{test}[{case.id}]".encode()) % round(THINNER * n):
            yield case
        seen.add(value)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: Any) -> Any:
    """Collect tests without garbage collections: nearly all objects that a collection of tests makes stay."""
    gc.disable()
    try:
        result = yield
    finally:
        gc.enable()
    gc.freeze()  # the garbage collections that tests cause leave these objects out
    return result


def pytest_collection_modifyitems(config: Any, items: Any) -> None:
    if hasattr(config, "workerinput"):
        # Checksums mix the modules: those with computations run beside those that wait for a service.
        items.sort(key=lambda item: zlib.crc32(item.path.name.encode()))
    if config.getoption("--native"):
        for item in items:
            if item.get_closest_marker("reference"):
                item.add_marker(pytest.mark.skip(reason="about the reference executor"))


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
