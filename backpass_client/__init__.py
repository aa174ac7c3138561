"""A client of Backpass for Python: a tape to write programs on by computing, and sessions to train them in.

    import backpass_client as bp

    with bp.Tape("http://127.0.0.1:8080") as tape:
        x = bp.Variable([1.0, 2.0, 3.0])
        y = (bp.tanh(x) * x).sum()
        y.backward()
        print(y.value, x.grad)

Every op of the catalogue (`GET /v1/ops`) is a function of this package under its name: ``bp.softmax(x, axis=0)``.
Needs httpx and numpy.
"""

from __future__ import annotations

from typing import Any

from backpass_client.answers import Gradients, Playback
from backpass_client.connection import Service
from backpass_client.differentiate import grad, value_and_grad
from backpass_client.errors import BackpassError, Refused, Unreachable
from backpass_client.expression import Expression
from backpass_client.functions import function
from backpass_client.optimizers import SGD
from backpass_client.programs import Program
from backpass_client.rows import Rows
from backpass_client.sessions import Session, Step
from backpass_client.tape import Tape, immediate, lazy
from backpass_client.variable import Variable

__all__ = [
    "SGD",
    "BackpassError",
    "Expression",
    "Gradients",
    "Playback",
    "Program",
    "Refused",
    "Rows",
    "Service",
    "Session",
    "Step",
    "Tape",
    "Unreachable",
    "Variable",
    "function",
    "grad",
    "immediate",
    "lazy",
    "value_and_grad",
]


def __getattr__(name: str) -> Any:
    """Every op of the catalogue as a function. Which ops there are, only a service knows: it is asked at the call."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return function(name)
