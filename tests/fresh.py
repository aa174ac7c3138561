"""Results from processes that have compiled no other program.

`Fresh` starts one process that imports the compiler, compiles nothing itself, and forks for every question. A fork
takes some milliseconds, a new interpreter most of a second.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any, BinaryIO

from core.backward.append_backward import Options, gradients
from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.errors import CoreError
from core.wire import read
from tests.sign_of_zero import Question

__all__ = ["Fresh", "answer"]

Answer = tuple[Any, ...]


def answer(question: Question) -> Answer:
    """The bytes of the loss, its gradients and, for second order, the gradients of their sum; or the error."""
    try:
        return _answer(question)
    except CoreError as error:
        return (type(error).__name__, str(error))


def _answer(question: Question) -> Answer:
    values, inputs = question.values(), tuple(question.inputs)
    program = read(question.document)
    query = {"inputs": inputs, "unconnected": "zeros"}
    steps = [compile_gradient(program, GradientQuery(targets=("loss",), **query), ["loss"])]
    if question.second_order:
        backward = gradients(program, ["loss"], list(inputs), options=Options(unconnected="zeros"))
        targets = tuple(backward.gradients.values())
        steps.append(compile_gradient(backward.program, GradientQuery(targets=targets, **query)))
    found: list[bytes] = []
    for each in steps:
        out = (each.compiled() if question.native else each).step(values)
        found += [array.tobytes() for array in (*out.fetched.values(), *(out.gradients[n] for n in inputs))]
    return tuple(found)


class Fresh:
    """A process that answers each question in a separate fork."""

    def __init__(self) -> None:
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # a process that forks must have no other threads
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fresh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    def ask(self, question: Question) -> None:
        """Send a question. Answers come in the same order."""
        assert self._process.stdin is not None
        pickle.dump(question, self._process.stdin)
        self._process.stdin.flush()

    def answer(self) -> Answer:
        """The next answer, in the order of the questions."""
        assert self._process.stdout is not None
        return tuple(pickle.load(self._process.stdout))  # noqa: S301  (of our own process)

    def close(self) -> None:
        self._process.communicate()


def _serve(questions: BinaryIO, answers: BinaryIO) -> None:
    while True:
        try:
            question = pickle.load(questions)  # noqa: S301  (of our own process)
        except EOFError:
            return
        child = os.fork()
        if child == 0:
            pickle.dump(answer(question), answers)
            answers.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"the process of a question ended with the status {status}")


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
