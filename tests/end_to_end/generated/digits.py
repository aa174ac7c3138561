"""Train on digits over the Python client that openapi-python-client generates, imported as `generated`.

    python digits.py URL DATA      DATA: JSON with program, optimizer, batches and test (feeds each)

Prints the losses of the steps and the accuracy on the test feeds as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TypeVar

from generated import Client
from generated.api.programs import create_program
from generated.api.sessions import create_session, delete_session, evaluate_session, train_step
from generated.models import (
    CreateSession,
    EvaluationAnswer,
    EvaluationRequest,
    Init,
    Optimizer,
    Problem,
    Program,
    ProgramSummary,
    Registration,
    SessionView,
    StepAnswer,
    StepRequest,
    Tensors,
)

T = TypeVar("T")


def only(kind: type[T], answer: object) -> T:
    """`answer`, which must be of this type."""
    assert isinstance(answer, kind), answer
    return answer


def main(url: str, path: str) -> None:
    data = json.loads(Path(path).read_text())
    client = Client(base_url=url, timeout=60.0)
    program = only(
        ProgramSummary, create_program.sync(client=client, body=Registration(Program.from_dict(data["program"])))
    )
    opened = CreateSession(
        program_id=program.id, loss="loss", optimizer=Optimizer.from_dict(data["optimizer"]), init=Init(seed=0)
    )
    session = only(SessionView, create_session.sync(client=client, body=opened)).id
    losses = []
    for feeds in data["batches"]:
        step = StepRequest(feeds=Tensors.from_dict(feeds), seq=len(losses) + 1)
        answer = only(StepAnswer, train_step.sync(session, client=client, body=step))
        losses.append(answer.loss.data[0])
    asked = EvaluationRequest(feeds=Tensors.from_dict(data["test"]), fetch=["accuracy"])
    accuracy = only(EvaluationAnswer, evaluate_session.sync(session, client=client, body=asked)).fetched["accuracy"]
    repeated = train_step.sync(session, client=client, body=StepRequest(seq=len(losses) + 2))
    assert only(Problem, repeated).code == "sequence-gap"
    assert delete_session.sync_detailed(session, client=client).status_code == 204
    print(json.dumps({"losses": losses, "accuracy": accuracy.data[0]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
