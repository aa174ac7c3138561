"""Errors as RFC 9457 problem documents.

Code below a route raises `HttpProblem`, or an error of the engine, the core, pydantic or Starlette; `install` registers
the handlers that turn each into a document. Documents never contain input values.

types      all kinds of problems: codes, statuses, remedies
translate  problems for exceptions of the engine, the core, pydantic and Starlette
words      the mistakes that pydantic finds, in the words of JSON
unions     one sentence for a mistake in a value that may have several forms
resources  the methods of a path, for requests that match no route
"""

from service.problems.document import (
    FieldError,
    HttpProblem,
    new_request_id,
    problem_body,
    problem_response,
    wrong_member,
    wrong_parameter,
)
from service.problems.install import EXPECTED, answer, components, install, responses
from service.problems.translate import OF_QUERY, from_exception, from_remote, from_validation, stopped_document
from service.problems.types import CODES, ProblemType

__all__ = [
    "CODES",
    "EXPECTED",
    "OF_QUERY",
    "FieldError",
    "HttpProblem",
    "ProblemType",
    "answer",
    "components",
    "from_exception",
    "from_remote",
    "from_validation",
    "install",
    "new_request_id",
    "problem_body",
    "problem_response",
    "responses",
    "stopped_document",
    "wrong_member",
    "wrong_parameter",
]
