"""A step with room for many sizes of its feeds equals that for known sizes, for every op and its gradient, and whatever
the memory behind the sizes contains.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from core.compiler.compile import Executable, GradientQuery, compile_forward, compile_gradient
from core.compiler.room import room_for
from core.ir import Program, TensorType, Variable
from core.ir.builder import BlockBuilder
from core.ir.errors import CoreError, ExecutionError
from core.ir.registry import as_tuple
from tests.behind import MESSAGE, check_integers_behind_sizes
from tests.core.compiler.test_room_programs import assert_close, poisoned
from tests.laws.agreement import in_dtype
from tests.laws.examples import CASES, OPS, arrays, examples_of, floats
from tests.programs import whole


def openings(values: list[np.ndarray]) -> Iterator[set[int]]:
    """The sizes that are open: all, then each of them alone. Axes of one size are open together."""
    sizes = {n for x in values for n in x.shape}
    yield sizes
    if len(sizes) > 1:
        yield from ({n} for n in sorted(sizes))


def opened(name: str, attrs: Any, values: list[np.ndarray], sizes: set[int]) -> tuple[Program, list[str], str | None]:
    """A program of this one op, the names of its results, and a number that has a gradient, if it has one."""
    b, variables = BlockBuilder(), []
    for k, x in enumerate(values):
        type = TensorType(tuple(-1 if n in sizes else n for n in x.shape), str(x.dtype))
        variables.append(Variable(b.param(type, f"in{k}").name, type, "feed"))
    results = as_tuple(b.emit(name, *(b.value(v.name) for v in variables), **attrs))
    total = None
    for each in results:
        if each.type.is_float and OPS[name].differentiable and floats(values):
            part = b.emit("reduce_sum", b.emit("sin", b.emit("cast", each, dtype="float64")))
            total = part if total is None else total + part
    return Program(b.build([]), tuple(variables)), [each.name for each in results], total.name if total else None


def compiled(program: Program, results: list[str], loss: str | None, wrt: list[str], **sized: Any) -> Executable:
    if loss is None:
        return compile_forward(program, results, **sized)
    query = GradientQuery(targets=(loss,), inputs=tuple(wrt), unconnected="zeros")
    return compile_gradient(program, query, results, **sized)


def ran(executable: Executable, values: dict[str, Any]) -> Any:
    """What a step computes, or the code of its error."""
    try:
        outputs = executable.step(values, seed=3, step=5)
    except ExecutionError as error:
        assert MESSAGE not in str(error), error
        return error.code
    return {**whole(outputs.fetched), **whole(outputs.gradients)}


def cases() -> Iterator[tuple[str, int, str]]:
    """(op, number of its example, dtype), where all operands are arrays, and one of them at least has axes."""
    for name, i in CASES:
        inputs = examples_of(OPS[name])[i].inputs
        if all(x is not None and not isinstance(x, list) for x in inputs) and any(np.ndim(x) for x in inputs):
            yield from ((name, i, dtype) for dtype in ("float64", "float32") if in_dtype(name, i, dtype))


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("name", "i", "dtype"), list(cases()))
def test_an_op_and_its_gradient_with_room_equal_those_of_known_sizes(name, i, dtype, monkeypatch):
    """In float64, a check after each op reads the integers behind sizes. float32 has no such checks: they separate ops
    that otherwise share one pass over memory."""
    example = in_dtype(name, i, dtype)
    assert example is not None
    values = arrays(example)
    feeds = {f"in{k}": x for k, x in enumerate(values)}
    shapes = {feed: x.shape for feed, x in feeds.items()}
    wrt = [f"in{k}" for k in floats(values)]
    if dtype == "float64":
        check_integers_behind_sizes(monkeypatch)
    for sizes in openings(values):
        try:
            made = opened(name, example.attrs, values, sizes)
            exact = compiled(*made, wrt, shapes=shapes)
            room = room_for(made[0], shapes)
            code = compiled(*made, wrt, room=room).compiled()
        except CoreError:  # this size may not be open
            continue
        assert code.packs is not None

        wanted, found = ran(exact, feeds), ran(code, poisoned(room, dict(code.packs(feeds)), feeds))

        if isinstance(wanted, str) or isinstance(found, str):
            assert found == wanted
            continue
        for each, value in wanted.items():
            assert_close(found[each], value, f"{each} with {sizes} open")
