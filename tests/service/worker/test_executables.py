"""The executables of all programs of a worker share one bound of bytes."""

from __future__ import annotations

from core.compiler.compile import Executable, compile_forward
from core.wire import read
from service.worker.executables import OwnExecutables, executables, nbytes_of
from tests.programs import Sketch


def executable(ops: int) -> Executable:
    s = Sketch()
    name = s.feed("x", [1.0, 2.0])
    for _ in range(ops):
        name = s.op("sin", name)
    return compile_forward(read(s.document), [name])


def test_programs_with_equal_queries_have_executables_of_their_own():
    shared = executables()
    first, second = OwnExecutables(shared), OwnExecutables(shared)
    one, other = executable(1), executable(2)

    first.put("step", one)
    second.put("step", other)

    assert (first.get("step"), second.get("step")) == (one, other)


def test_a_client_that_varies_its_shapes_keeps_no_more_than_the_bound():
    each = executable(3)
    shared = executables(limit=4 * nbytes_of(each))
    own, busy = OwnExecutables(shared), OwnExecutables(shared)

    for size in range(100):
        busy.put(size, each)
        own.put("step", each)

    assert len(shared) == 4
    assert own.get("step") is each
    assert busy.get(99) is each
    assert busy.get(0) is None


def test_machine_code_counts_more_than_the_reference_executor():
    each = executable(30)

    assert nbytes_of(each.compiled()) > 3 * nbytes_of(each)
