"""Random nests of loops, branches, scans and functions: the built program computes what the same Python computes.

A plan is data. It runs once with numpy and Python's own control flow, and once with the builder and the core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import backpass_client as bp
from tests.backpass_client.builder.running import gradients

ROWS = np.random.default_rng(9).normal(size=(3, 2))
CASES = 60
Plan = list[tuple[Any, ...]]


def plan(random: np.random.Generator, count: int, depth: int, names: int = 0) -> Plan:
    """`count` statements for an environment of `names` values; each statement adds one value, or several."""
    found: Plan = []
    for _ in range(count):
        pick = lambda names=names: int(random.integers(names))
        kind = random.choice(["op", "op", "op", "cond", "while", "scan", "switch", "call"] if depth else ["op"])
        inner = lambda more=0, names=names: plan(random, int(random.integers(1, 4)), depth - 1, names + more)
        results = lambda names=names: [int(random.integers(1, 6)) for _ in range(2)]  # counted from the end
        if kind == "op":
            found.append(("op", str(random.choice(["add", "mul", "tanh", "half"])), pick(), pick()))
            names += 1
        elif kind == "cond":
            found.append(("cond", pick(), inner(), inner(), results(), results()))
            names += 2
        elif kind == "while":
            found.append(("while", int(random.integers(0, 4)), [pick(), pick()], inner(2), results()))
            names += 2
        elif kind == "scan":
            found.append(("scan", bool(random.integers(2)), [pick(), pick()], inner(3), results(), int(pick())))
            names += 3
        elif kind == "switch":
            found.append(("switch", int(random.integers(-1, 4)), [inner(), inner(), inner()], results()))
            names += 2
        else:
            found.append(("call", [pick(), pick()], plan(random, 3, 0, 2), int(random.integers(1, 4))))
            names += 1
    return found


class Numbers:
    """Python's own control flow, on arrays."""

    add = staticmethod(np.add)
    tanh = staticmethod(np.tanh)

    def cond(self, x: Any, true: Callable[[], Any], false: Callable[[], Any]) -> Any:
        return true() if x.sum() > 0.1 else false()

    def loop(self, n: int, body: Callable[..., Any], init: Sequence[Any]) -> Any:
        for _ in range(n):
            init = body(*init)
        return init

    def scan(self, body: Callable[..., Any], init: Any, reverse: bool) -> Any:
        seen: list[Any] = [None] * 3
        for t in range(3)[:: -1 if reverse else 1]:
            init, seen[t] = body(init, ROWS[t])
        return [*init, np.stack(seen).sum(0)]

    def switch(self, i: int, branches: Sequence[Callable[[], Any]]) -> Any:
        return branches[i if 0 <= i < len(branches) else -1]()

    def call(self, f: Callable[..., Any], a: Any, b: Any) -> Any:
        return f(a, b)


class Symbols:
    """The same with the builder. rows: the symbol of the sequence."""

    def __init__(self, rows: bp.Symbol) -> None:
        self.rows = rows

    add = staticmethod(lambda a, b: a + b)
    tanh = staticmethod(lambda a: bp.tanh(a))

    def cond(self, x: Any, true: Callable[[], Any], false: Callable[[], Any]) -> Any:
        return bp.cond(x.sum() > 0.1, true, false)

    def loop(self, n: int, body: Callable[..., Any], init: Sequence[Any]) -> Any:
        step = lambda a, b, i: (*body(a, b), i + 1)
        return bp.while_loop(lambda a, b, i: i < n, step, (*init, 0))[:2]

    def scan(self, body: Callable[..., Any], init: Any, reverse: bool) -> Any:
        last, seen = bp.scan(body, init, self.rows, reverse=reverse)
        return [*last, seen.sum(0)]

    def switch(self, i: int, branches: Sequence[Callable[[], Any]]) -> Any:
        return bp.switch(bp.constant(i), branches)

    def call(self, f: Callable[..., Any], a: Any, b: Any) -> Any:
        return bp.function(f)(a, b)


def perform(api: Any, statements: Plan, env: list[Any]) -> list[Any]:
    """The environment after the statements."""
    env = list(env)
    for statement in statements:
        env += results_of(api, statement, list(env))
    return env


def results_of(api: Any, statement: tuple[Any, ...], env: list[Any]) -> Sequence[Any]:
    def block(inner: Plan, results: Sequence[int], *more: Any) -> tuple[Any, ...]:
        after = perform(api, inner, [*env, *more])
        return tuple(after[-min(i, len(after))] for i in results)

    match statement:
        case "op", op, i, j:
            a, b = env[i], env[j]
            return [
                api.add(a, b) if op == "add" else a * b if op == "mul" else api.tanh(a) if op == "tanh" else a * 0.5
            ]
        case "cond", i, true, false, first, second:
            return api.cond(env[i], lambda: block(true, first), lambda: block(false, second))
        case "while", n, init, body, results:
            return api.loop(n, lambda *x: block(body, results, *x), [env[i] for i in init])
        case "scan", reverse, init, body, results, out:
            step = lambda s, row: (block(body, results, *s, row), [*env, *s, row][-1 - out % (len(env) + 3)])
            return api.scan(step, tuple(env[i] for i in init), reverse)
        case "switch", i, branches, results:
            return api.switch(i, [lambda b=b: block(b, results) for b in branches])
        case "call", (i, j), body, result:
            return [api.call(lambda a, b: perform(api, body, [a, b])[-result], env[i], env[j])]
    raise AssertionError(statement)


@pytest.mark.parametrize("seed", range(CASES))
def test_a_random_program_computes_what_python_computes(seed: int):
    random = np.random.default_rng(seed)
    statements = plan(random, 5, 2, 2)
    w, v = random.normal(size=(2, 2))

    def in_python(w: np.ndarray, v: np.ndarray) -> float:
        return float(sum(np.tanh(x).sum() for x in perform(Numbers(), statements, [w, v])))

    @bp.program
    def built(rows: bp.f64["time", 2]):
        values = perform(Symbols(rows), statements, [bp.parameter("w", bp.f64[2]), bp.parameter("v", bp.f64[2])])
        return {"loss": sum(bp.tanh(x).sum() for x in values)}

    loss, found = gradients(built, {"w": w, "v": v, "rows": ROWS}, unconnected="zeros")

    np.testing.assert_allclose(loss, in_python(w, v), rtol=1e-9)
    h = 1e-6
    for i in range(2):
        e = h * np.eye(2)[i]
        slopes = {
            "w": (in_python(w + e, v) - in_python(w - e, v)) / (2 * h),
            "v": (in_python(w, v + e) - in_python(w, v - e)) / (2 * h),
        }
        for name, slope in slopes.items():
            np.testing.assert_allclose(found[name][i], slope, rtol=1e-4, atol=1e-6, err_msg=f"{name}[{i}]")
