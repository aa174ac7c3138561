"""Every kind of problem this service answers with: one table.

Statuses, titles, the pages under /problems and the error responses in the OpenAPI document all come from here.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CODES", "ProblemType"]


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One kind of problem.

    statuses:  HTTP statuses it may be answered with, the usual one first.
    retryable: whether the same request, sent again unchanged, may succeed.
    meaning:   what happened. remedy: what the client can do about it.
    """

    code: str
    statuses: tuple[int, ...]
    title: str
    retryable: bool
    meaning: str
    remedy: str

    @property
    def status(self) -> int:
        return self.statuses[0]


_ROWS: tuple[tuple[str, tuple[int, ...], str, bool, str, str], ...] = (
    # The request as HTTP
    ("malformed-request", (400,), "Not valid HTTP", False,
     "The bytes received are not a valid HTTP/1.1 request, or it has no Host header or several.",
     "Send exactly one Host header and a well-formed request; check any proxy in between."),
    ("not-found", (404,), "Not found", False,
     "There is nothing under this path or id.",
     "Check the path and the id; things that were deleted are gone."),
    ("method-not-allowed", (405,), "Method not allowed", False,
     "The path exists but does not support this method.",
     "Use one of the methods in the Allow header."),
    ("not-acceptable", (406,), "No acceptable representation", False,
     "None of the media types in the Accept header can be produced.",
     "Accept application/json, or application/x-safetensors where tensors are answered."),
    ("body-timeout", (408,), "Body came too slowly", True,
     "The request body was not complete before its deadline.",
     "Send the request again over a faster connection."),
    ("body-too-large", (413,), "Body too large", False,
     "The request body is larger than the limit for its media type.",
     "Send tensors as application/x-safetensors, whose limit is higher, or send less. GET /v1 lists the limits."),
    ("unsupported-media-type", (415,), "Unsupported media type", False,
     "The Content-Type of the body is missing or not supported here.",
     "Use a media type of the Accept header of this answer."),
    ("unsupported-encoding", (415,), "Unsupported content encoding", False,
     "Bodies with a Content-Encoding are not decoded.",
     "Send the body without compression."),
    ("headers-too-large", (431,), "Request header too large", False,
     "The request header has too many bytes or too many fields.",
     "Send fewer or shorter header fields."),
    # The body
    ("invalid-json", (400,), "Body is not valid JSON", False,
     "The body is not a JSON object by RFC 8259: syntax, encoding, a repeated member, NaN or an infinite number.",
     "Correct the body at the place named in the detail."),
    ("invalid-tensor-file", (400,), "Body is not a valid safetensors file", False,
     "The safetensors body is cut off or its header is inconsistent.",
     "Write the file with a safetensors library."),
    ("invalid-request", (422,), "Request is not valid", False,
     "The request is well-formed, but a member is missing, unknown, or has a wrong type or value.",
     "Correct the members listed under errors."),
    ("limit-exceeded", (422, 400), "A limit is exceeded", False,
     "Something in the request is larger or deeper than this service accepts.",
     "GET /v1 lists the limits. Make the request smaller."),
    ("shape-mismatch", (422,), "Shapes do not fit", False,
     "A tensor's shape does not fit its data or what the program declares.",
     "Correct the shape or the data."),
    ("dtype-mismatch", (422,), "Dtypes do not fit", False,
     "A tensor's dtype is unknown, its values do not fit it, or it is not what the program declares.",
     "Correct the dtype or the values."),
    # The program
    ("invalid-program", (422,), "Program is not valid", False,
     "The program breaks a rule of the format or of an op. All problems found are listed under errors.",
     "Correct the places listed under errors; each has a JSON pointer."),
    ("no-gradient", (422,), "No gradient exists", False,
     "A gradient was asked for where none is defined.",
     "Leave the variable out, or use a differentiable op on the way to the loss."),
    ("iteration-limit", (422,), "A loop ran too long", False,
     "A loop reached the limit of trips, or a step the limit of executed ops.",
     "Check the loop's condition, or split the work into several steps."),
    ("numeric-error", (422,), "A number is not finite", False,
     "A computation that needs finite numbers met NaN or infinity.",
     "Lower the learning rate, clip gradients, or check the inputs."),
    ("execution-failed", (422,), "The step failed", False,
     "The program is valid, but this run of it failed on the given values, for example on an index out of range.",
     "See reason and location, and correct the fed values."),
    # State
    ("in-use", (409,), "Still in use", False,
     "The thing cannot be deleted while others use it.", "Delete those first."),
    ("invalid-state", (409,), "Wrong state", False,
     "The operation is not possible in the present state.", "See the detail for the states in which it is."),
    ("sequence-conflict", (409,), "Sequence number reused", False,
     "This sequence number was used before with another body.",
     "Continue with expected_seq, or send the original body to get the original answer."),
    ("sequence-gap", (409,), "Sequence number skipped", False,
     "The sequence number is not the next one.", "Continue with expected_seq."),
    ("idempotency-conflict", (422,), "Idempotency key reused", False,
     "The Idempotency-Key was used before with another request.", "Use a new key for a new request."),
    ("precondition-failed", (412,), "Precondition failed", False,
     "The thing has changed since the version named in If-Match.",
     "Read it again, decide again, and send the new ETag."),
    ("precondition-required", (428,), "Precondition required", False,
     "This change needs an If-Match header, so that no one else's change is lost.",
     "Send the ETag of the version that you have seen."),
    ("gone", (410,), "Gone", False,
     "The thing existed, and has been closed or has expired.", "Create a new one."),
    # Capacity
    ("queue-full", (429,), "Too many calls are waiting", True,
     "The bounded queue is full; nothing of this request was done.", "Send it again after Retry-After seconds."),
    ("quota-exceeded", (429,), "Quota exceeded", False,
     "The limit of sessions, programs or other kept things is reached.", "Delete what is not needed any more."),
    ("no-capacity", (503,), "No worker available", True,
     "No worker can take the call now.", "Send it again after Retry-After seconds."),
    ("device-out-of-memory", (503,), "Out of memory", True,
     "The worker had not enough memory for this call. It lives on, and the state is as before.",
     "Try again when other work is done, or make batch or model smaller."),
    ("worker-lost", (503,), "The worker was lost", True,
     "The worker process ended during the call and is being replaced. Whether the call took effect is unknown.",
     "Send it again; sessions of that worker are lost and must be created again."),
    ("canceled", (503,), "Canceled", True,
     "The call was stopped before it ended, because its client had gone or the service was told to.", "Send it again."),
    ("draining", (503,), "Shutting down", True,
     "The service is about to stop and takes no new work.", "Send it again after Retry-After seconds."),
    ("deadline-exceeded", (504,), "Deadline exceeded", False,
     "The call did not end before its deadline, waiting included.",
     "Ask for a longer deadline, or make the call smaller. It is safe to retry when retryable is true."),
    ("storage-full", (507,), "Storage is full", False,
     "There is no room left for durable data.", "Delete what is not needed any more."),
    ("internal", (500,), "Internal error", False,
     "A mistake of this service. It is logged under the request id.",
     "Report it with the request id."),
)  # fmt: skip

CODES: dict[str, ProblemType] = {row[0]: ProblemType(*row) for row in _ROWS}
