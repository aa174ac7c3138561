"""Helpers that write wire programs and compute or check their gradients."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from core.compiler.compile import GradientQuery, Outputs, compile_gradient
from core.ir.registry import lookup
from core.runtime.sparse_rows import RowArray
from core.wire import read

__all__ = [
    "EXECUTOR",
    "Sketch",
    "check",
    "close",
    "complex_step",
    "gradient_of_op",
    "grads",
    "identical",
    "step",
    "traced_peak",
    "whole",
]

EXECUTOR = {"native": False}
"""native: run programs as machine code; set by the option `--native`."""


class Sketch:
    """A program under construction. Every method that writes a variable returns its name."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = [{"idx": 0, "parent_idx": -1, "vars": [], "ops": []}]
        self.at = 0
        self.count = 0
        self.values: dict[str, np.ndarray] = {}
        self.functions: dict[str, Any] = {}

    def _leaf(self, role: str, name: str, value: Any, dtype: str, **more: Any) -> str:
        array = np.asarray(value, dtype=dtype)
        self.values[name] = array
        var = {"name": name, "dtype": dtype, "shape": list(array.shape), "role": role, **more}
        self.blocks[0]["vars"].append(var)
        return name

    def param(self, name: str, value: Any, dtype: str = "float64", **more: Any) -> str:
        return self._leaf("parameter", name, value, dtype, **more)

    def feed(self, name: str, value: Any, dtype: str = "float64", **more: Any) -> str:
        return self._leaf("feed", name, value, dtype, **more)

    def declare(self, name: str, **more: Any) -> None:
        self.blocks[self.at]["vars"].append({"name": name, **more})

    def op(self, type: str, *inputs: str | Sequence[str], out: str | Sequence[str] | None = None, **attrs: Any) -> Any:
        """Append an op; `inputs` in the order of its slots, a list for a variadic one."""
        slots = [s.name for s in lookup(type).inputs]
        self.count += 1
        out = f"t{self.count}" if out is None else out
        names = [out] if isinstance(out, str) else list(out)
        spec = lookup(type)
        assert len(inputs) <= len(slots), f"{type} has the slots {slots}; give a list for a variadic one"
        if spec.variadic_outputs:
            outputs = {spec.outputs[0]: names}
        else:
            outputs = {slot: [name] for slot, name in zip(spec.outputs, names, strict=False)}
        given = {s: [i] if isinstance(i, str) else list(i) for s, i in zip(slots, inputs, strict=False)}
        self.raw({"type": type, "inputs": given, "outputs": outputs, "attrs": attrs})
        return out

    def raw(self, op: dict[str, Any]) -> None:
        self.blocks[self.at]["ops"].append(op)

    def const(self, value: float, shape: Sequence[int] = (), dtype: str = "float64", out: str | None = None) -> str:
        return self.op("fill_constant", out=out, shape=list(shape), value=value, dtype=dtype)

    @contextmanager
    def block(self) -> Iterator[int]:
        """A new inner block for the ops written inside the `with` statement."""
        outer = self.at
        self.blocks.append({"idx": len(self.blocks), "parent_idx": outer, "vars": [], "ops": []})
        self.at = len(self.blocks) - 1
        try:
            yield self.at
        finally:
            self.at = outer

    @contextmanager
    def repeat(self, trips: int | str) -> Iterator[None]:
        """A `while` of `trips` trips; the `with` statement writes its body."""
        self.count += 1
        i, go = f"i{self.count}", f"go{self.count}"
        n = self.const(trips, dtype="int64", out=f"n{self.count}") if isinstance(trips, int) else trips
        self.const(0, dtype="int64", out=i)
        self.op("less_than", i, n, out=go)
        with self.block() as body:
            yield
            self.op("increment", i, out=i, step=1)
            self.op("less_than", i, n, out=go)
        self.raw({"type": "while", "inputs": {"condition": [go]}, "attrs": {"sub_block": body}})

    @contextmanager
    def loop(self, go: str) -> Iterator[None]:
        """A `while` on the condition `go`; the `with` statement writes its body, which must write `go`."""
        with self.block() as body:
            yield
        self.raw({"type": "while", "inputs": {"condition": [go]}, "attrs": {"sub_block": body}})

    def branch(self, condition: str, true_block: int | None, false_block: int | None, **more: Any) -> None:
        attrs = {"true_block": true_block, "false_block": false_block}
        self.raw({"type": "if_else", "inputs": {"condition": [condition]}, "attrs": attrs, **more})

    def construct(self, type: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], /, **attrs: Any) -> None:
        """Append a wire op with its slots by name; a single name is a list of one."""
        self.raw({"type": type, "inputs": dict(inputs), "outputs": dict(outputs), "attrs": attrs})

    def total(self, name: str, out: str = "loss") -> str:
        return self.op("reduce_sum", name, out=out)

    @property
    def document(self) -> dict[str, Any]:
        return {"blocks": self.blocks} | ({"functions": self.functions} if self.functions else {})


def step(sketch: Sketch, fetch: Sequence[str] = (), values: Mapping[str, Any] | None = None, **query: Any) -> Outputs:
    """Run the program of `sketch` once. query: fields of GradientQuery, by default d loss / d every parameter."""
    program = read(sketch.document)
    exe = compile_gradient(program, GradientQuery(**({"loss": "loss"} | query)), fetch)
    return exe.step(sketch.values | dict(values or {}))


def grads(sketch: Sketch, **query: Any) -> dict[str, np.ndarray]:
    return whole(step(sketch, **query).gradients)


def gradient_of_op(type: str, value: object, **attrs: object) -> np.ndarray:
    """The gradient of the sum of the (first) result of one op on the parameter `value`."""
    s = Sketch()
    s.param("w", value)
    out = s.op(type, "w", **attrs)
    s.total(out if isinstance(out, str) else out[0])
    return grads(s)["w"]


def traced_peak(sketch: Sketch, **query: Any) -> int:
    """Peak bytes that Python allocated during a gradient step, after a first one."""
    executable = compile_gradient(read(sketch.document), GradientQuery(loss="loss", **query))
    executable.step(sketch.values)
    tracemalloc.start()
    executable.step(sketch.values)
    top = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return top


def whole(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`values` with row-sparse gradients converted to dense arrays."""
    return {name: value.whole() if isinstance(value, RowArray) else value for name, value in values.items()}


def close(found: Any, wanted: Any, tolerance: float = 5e-8) -> None:
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def complex_step(f: Callable[[dict[str, Any]], Any], at: Mapping[str, Any], name: str) -> np.ndarray:
    """The gradient of f with respect to `name` by a complex step. f must accept complex numpy arrays.

    Im f(x + ih) / h takes no difference, so it is exact to rounding. Squire and Trapp 1998.
    """
    values = {n: np.asarray(v) for n, v in at.items()}
    out = np.zeros(values[name].shape)
    for index in np.ndindex(out.shape):
        moved = values[name].astype(complex)
        moved[index] += 1e-30j
        out[index] = np.imag(f({**values, name: moved})) / 1e-30
    return out


def check(sketch: Sketch, tolerance: float = 1e-6, **options: Any) -> dict[str, np.ndarray]:
    """The gradients of `loss` with respect to all float64 parameters, checked against central differences.

    Checks second order too: the gradient of half their squared norm. options: see `step`.
    """
    from core.backward.append_backward import append_backward
    from core.compiler.compile import compile_forward
    from core.wire import write

    program = read(sketch.document)
    names = [v.name for v in program.parameters]
    run = compile_forward(program, ["loss"])

    def loss(values: Mapping[str, np.ndarray]) -> float:
        return float(run.step(values).fetched["loss"])

    first = grads(sketch, **options)
    for name in names:
        close(first[name], _differences(loss, sketch.values, name), tolerance)
    backward = append_backward(program, "loss")
    again = read(write(backward.program))
    targets = list(backward.gradients.values())
    seeded = compile_gradient(
        again, GradientQuery(targets=tuple(targets), inputs=tuple(names), target_gradients=(True,) * len(targets))
    )
    seeds = {f"target_gradients/{i}": first[n] for i, n in enumerate(backward.gradients)}
    second = whole(seeded.step(sketch.values | seeds).gradients)
    grad = compile_gradient(program, GradientQuery(loss="loss"))

    def half_norm(values: Mapping[str, np.ndarray]) -> float:
        return sum(float(np.sum(g * g)) for g in whole(grad.step(values).gradients).values()) / 2

    for name, value in second.items():
        close(value, _differences(half_norm, sketch.values, name), 10 * tolerance)
    return first


def _differences(f: Any, values: Mapping[str, np.ndarray], name: str, step: float = 1e-6) -> np.ndarray:
    out = np.zeros(values[name].shape)
    for index in np.ndindex(out.shape):
        moved = values[name].copy()
        moved[index] += step
        up = f({**values, name: moved})
        moved[index] -= 2 * step
        out[index] = (up - f({**values, name: moved})) / (2 * step)
    return out


def identical(found: Any, wanted: Any, message: str = "") -> None:
    """Check that two programs with the same arithmetic give the same bits.

    Machine code may differ by rounding: a fused kernel adds in another order.
    """
    if not EXECUTOR["native"]:
        np.testing.assert_array_equal(found, wanted, err_msg=message)
        return
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    unit = 1000 * np.finfo(wanted.dtype).eps if np.issubdtype(wanted.dtype, np.inexact) else 0.0
    scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0) if unit else 0.0
    np.testing.assert_allclose(found, wanted, rtol=unit, atol=unit * scale, err_msg=message)
