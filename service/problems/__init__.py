"""Errors as RFC 9457 problem documents.

Code below a route raises `HttpProblem`, or an error of the engine, the core, pydantic or Starlette; `install` registers
the handlers that turn each into a document. Documents never contain input values.

document   the problem document: its members and their limits
types      all kinds of problems: codes, statuses, remedies
install    exception handlers of an application, and the page of each code
described  problems in the OpenAPI document
translate  problems for exceptions of the engine, the core, pydantic and Starlette
words      the mistakes that pydantic finds, in the words of JSON
unions     one sentence for a mistake in a value that may have several forms
resources  the methods of a path, for requests that match no route
"""

from service.problems.described import components, is_problem, responses, show
from service.problems.document import (
    FieldError,
    HttpProblem,
    new_request_id,
    problem_body,
    problem_response,
    wrong_member,
    wrong_parameter,
)
from service.problems.install import EXPECTED, answer, install
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
    "is_problem",
    "new_request_id",
    "problem_body",
    "problem_response",
    "responses",
    "show",
    "stopped_document",
    "wrong_member",
    "wrong_parameter",
]
