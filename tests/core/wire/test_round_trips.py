"""Programs with constructs, written and read back."""

from __future__ import annotations

from core.wire import read, write
from tests.core.wire.constructs import array_in_a_loop, cases, custom, elman, rows


def test_every_answer_reads_back_as_the_same_program():
    for sketch in (elman("all"), cases(1), rows([True, False, True]), array_in_a_loop(), custom(-1.0)):
        program = read(sketch.document)
        assert read(write(program)) == program
