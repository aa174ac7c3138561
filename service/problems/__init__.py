"""Errors as RFC 9457 problem documents, all of them, whoever notices them first.

Below a route anyone may raise `HttpProblem`, or let an error of the engine, the core, pydantic or Starlette fly:
`install` registers the handlers that turn each into a document. Input values never appear in one.
"""

from service.problems.document import FieldError, HttpProblem, new_request_id, problem_body, problem_response
from service.problems.install import EXPECTED, answer, install, responses
from service.problems.translate import from_exception, from_remote, from_validation
from service.problems.types import CODES, ProblemType

__all__ = [
    "CODES",
    "EXPECTED",
    "FieldError",
    "HttpProblem",
    "ProblemType",
    "answer",
    "from_exception",
    "from_remote",
    "from_validation",
    "install",
    "new_request_id",
    "problem_body",
    "problem_response",
    "responses",
]
