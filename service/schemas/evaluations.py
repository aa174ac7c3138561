"""Forward passes of registered programs: requests and answers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.schemas.gradients import Compile, Deadline, Fetch, Seed, Timed
from service.schemas.members import FeedValues, Fetched, ParameterValues, StateValues
from service.schemas.programs import Strict

__all__ = ["ForTest", "ProgramEvaluationAnswer", "ProgramEvaluationRequest"]

ForTest = Annotated[
    bool,
    Field(
        description="Run each op with its behaviour in evaluation: dropout passes its input, and batch normalization "
        "uses its running statistics.",
    ),
]


class ProgramEvaluationRequest(Strict):
    """The variables to compute, and values of all that they depend on.

    In a safetensors body the tensors are named after the variables, and `__metadata__.request` holds these members
    without the tensors.
    """

    feeds: FeedValues = Field({})
    parameters: ParameterValues = Field({})
    states: StateValues = Field({})
    fetch: Fetch = Field(min_length=1)
    for_test: ForTest = False
    seed: Seed = 0
    step: Seed = 0
    compile: Compile = "auto"
    deadline_s: Deadline = None


class ProgramEvaluationAnswer(Timed):
    """The fetched values. In a file: `fetch/<name>`."""

    fetched: Fetched = Field({})
