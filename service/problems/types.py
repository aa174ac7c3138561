"""All kinds of problems that the service answers with.

Statuses, titles, the pages under /problems and the error responses of the OpenAPI document come from this table.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CODES", "ProblemType"]


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One kind of problem.

    statuses:  its HTTP statuses, the usual one first.
    retryable: whether the same request may succeed when it is sent again.
    meaning:   the cause, in a sentence. remedy: the action that a client can take.
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
     "The bytes received are not a valid HTTP/1.1 request, or the request does not have exactly one Host header.",
     "Send a well-formed request with exactly one Host header. Check any proxy in between."),
    ("wrong-host", (421,), "Wrong host", False,
     "The name in the Host header does not belong to this service.",
     "Use the name or address of the service. Its operator can allow more names with BACKPASS_ALLOWED_HOSTS."),
    ("unauthenticated", (401,), "No valid API key", False,
     "The request has no API key, or one that is unknown, revoked or expired.",
     "Send `Authorization: Bearer <key>` with a valid key. An administrator makes keys with `backpass keys create`."),
    ("forbidden", (403,), "Not allowed", False,
     "The API key is valid, but it lacks the scope of this request.",
     "Use a key with the scope that the detail names."),
    ("tenant-suspended", (403,), "Tenant is suspended", False,
     "An administrator has suspended the tenant of the API key. Nothing of it is lost, unless it is being deleted.",
     "Ask an administrator about the `reason`. Send the request again when the suspension is lifted."),
    ("not-found", (404,), "Not found", False,
     "Nothing exists under this path or id.",
     "Check the path and the id. The resource may have been deleted."),
    ("method-not-allowed", (405,), "Method not allowed", False,
     "The path exists but does not support this method.",
     "Use one of the methods in the Allow header."),
    ("not-acceptable", (406,), "No acceptable representation", False,
     "None of the media types in the Accept header can be produced.",
     "Accept application/json, or application/x-safetensors for answers with tensors."),
    ("body-timeout", (408,), "Body came too slowly", True,
     "The request body did not arrive completely before its deadline.",
     "Send the request again over a faster connection."),
    ("body-too-large", (413,), "Body too large", False,
     "The request body is larger than the limit for its media type.",
     "Send tensors as application/x-safetensors, which has a higher limit, or send less. GET /v1 lists the limits."),
    ("unsupported-media-type", (415,), "Unsupported media type", False,
     "The Content-Type of the body is missing or not supported by this route.",
     "Use a media type listed in the Accept header of this answer."),
    ("unsupported-encoding", (415,), "Unsupported content encoding", False,
     "The service does not decode bodies with a Content-Encoding.",
     "Send the body without compression."),
    ("range-not-satisfiable", (416,), "Range outside of the file", False,
     "The header Range asks for bytes that the file does not have.",
     "Ask for bytes within the size that Content-Range names."),
    ("headers-too-large", (431,), "Request header too large", False,
     "The request header has too many bytes or too many fields.",
     "Send fewer or shorter header fields."),
    # The body
    ("invalid-json", (400,), "Body is not valid JSON", False,
     "The body is not a JSON object as of RFC 8259: wrong syntax or encoding, a repeated member, NaN or infinity.",
     "Correct the body at the position named in the detail."),
    ("invalid-tensor-file", (400,), "Body is not a valid safetensors file", False,
     "The safetensors body is truncated, or its header is inconsistent.",
     "Write the file with a safetensors library."),
    ("invalid-request", (422,), "Request is not valid", False,
     "A member or parameter of the request is missing, unknown, or has a wrong type or value.",
     "Correct the members and parameters listed under errors."),
    ("limit-exceeded", (422, 400), "A limit is exceeded", False,
     "The request is larger or nested deeper than accepted, or its call needs more memory than a worker has.",
     "Make the request smaller. GET /v1 lists the limits; the analysis of a program predicts its memory."),
    ("shape-mismatch", (422,), "Shapes do not fit", False,
     "The shape of a tensor does not fit its data or the declaration in the program.",
     "Correct the shape or the data."),
    ("dtype-mismatch", (422,), "Dtypes do not fit", False,
     "The dtype of a tensor is unknown, does not fit its values, or differs from the declaration in the program.",
     "Correct the dtype or the values."),
    ("invalid-dataset", (422,), "File is not a valid dataset", False,
     "The uploaded file is damaged, is not a table of equal rows, or has values that cannot be stored.",
     "Correct the rows and columns listed under errors, or set `missing`, `types` or `delimiter`."),
    # The program
    ("invalid-program", (422,), "Program is not valid", False,
     "The program breaks a rule of the format or of an op. All problems are listed under errors.",
     "Correct the program at the JSON pointers listed under errors."),
    ("no-gradient", (422,), "No gradient exists", False,
     "The request asks for a gradient that is not defined.",
     "Leave the variable out, or use differentiable ops between it and the loss."),
    ("iteration-limit", (422,), "A loop ran too long", False,
     "A loop reached the limit of trips, or a step reached the limit of executed ops.",
     "Check the condition of the loop, or split the work into several steps."),
    ("numeric-error", (422,), "A number is not finite", False,
     "A value that had to be finite is NaN or infinite.",
     "Check the inputs, lower the learning rate, or clip gradients."),
    ("execution-failed", (422,), "The step failed", False,
     "The program is valid, but running it on the given values failed, for example because of an index out of range.",
     "Correct the values. reason and location name the cause and the op."),
    # State
    ("in-use", (409,), "Still in use", False,
     "The resource cannot be deleted, or given to a second job, while others use it.",
     "Delete or cancel those that use it first."),
    ("invalid-state", (409,), "Wrong state", False,
     "The operation is not possible in the current state.", "See the detail for the states that allow it."),
    ("sequence-conflict", (409,), "Sequence number reused", False,
     "This sequence number was used before with another body.",
     "Continue with expected_seq, or send the original body to get the stored answer."),
    ("sequence-gap", (409,), "Sequence number skipped", False,
     "The sequence number is not the next one.", "Continue with expected_seq."),
    ("rolled-back", (409,), "Session went back to its checkpoint", False,
     "The worker of a session without a journal ended, and the session goes on from its last checkpoint.",
     "Send again the steps after durable_step, from expected_seq on. This problem is reported once."),
    ("idempotency-conflict", (422,), "Idempotency key reused", False,
     "The Idempotency-Key was used before with another request.", "Use a new key for a new request."),
    ("idempotency-in-flight", (409,), "The first request is still running", True,
     "Another request with this Idempotency-Key has not ended yet.",
     "Send the request again after Retry-After seconds to get the answer of the first one."),
    ("outcome-unknown", (409,), "Outcome of the request is not known", False,
     "The service ended, or its store failed, while it executed the request; or the answer is lost.",
     "Read the resource to see whether the request took effect, and use a new key for the next one."),
    ("precondition-failed", (412,), "Precondition failed", False,
     "The resource has changed since the version in If-Match.",
     "Read the resource again and send its new ETag."),
    ("precondition-required", (428,), "Precondition required", False,
     "The request needs an If-Match header, so that it cannot overwrite another client's change.",
     "Send the ETag of the version to replace."),
    ("gone", (410,), "Gone", False,
     "The resource has been closed, has expired, or was lost with its worker.",
     "Create a new one: from `checkpoint`, if the problem names one, or with the program `program_id`."),
    ("checkpoint-damaged", (409,), "Checkpoint is damaged", False,
     "The stored file of the checkpoint is missing, or its content is not as it was written.",
     "Use another checkpoint, or upload a copy of this one."),
    ("values-damaged", (409,), "Stored values are damaged", False,
     "The stored file with the initial values of the program is missing, or its content is not as it was written.",
     "Send the values in the request, or delete the program and register it again."),
    # Capacity
    ("queue-full", (429,), "Too many calls are waiting", True,
     "The queue of calls is full. No part of the request was executed.",
     "Send the request again after Retry-After seconds."),
    ("rate-limited", (429,), "Too many requests", True,
     "The tenant of the API key sends more requests per second than its limit.",
     "Send the request again after Retry-After seconds. GET /v1/me has the limits."),
    ("quota-exceeded", (429,), "Quota exceeded", False,
     "A quota of the tenant or a limit of the service is reached.",
     "Delete things that are no longer needed; compute seconds return the next day. GET /v1/me has the quotas."),
    ("no-capacity", (503,), "No worker available", True,
     "No worker can take the call at the moment.", "Send the request again after Retry-After seconds."),
    ("recovering", (503,), "Session is being rebuilt", True,
     "The session is being rebuilt in a worker. It was not ready before the deadline of the call.",
     "Send the request again after Retry-After seconds. If it has a seq, it takes effect once."),
    ("device-out-of-memory", (503,), "Out of memory", True,
     "Sessions and tapes take the memory that the call needs. The worker continues to run, and no state has changed.",
     "Send the request again when other calls have ended, or use a smaller batch or model."),
    ("worker-lost", (503,), "The worker was lost", True,
     "The worker process ended during the call and is being replaced. The call may have taken effect.",
     "Send the request again. Sessions and tapes of that worker are lost and must be created again."),
    ("canceled", (503,), "Canceled", True,
     "The call was stopped because its client disconnected or canceled it, or the service is shutting down.",
     "Send the request again."),
    ("draining", (503,), "Shutting down", True,
     "The service is shutting down and accepts no new work.", "Send the request again after Retry-After seconds."),
    ("deadline-exceeded", (504,), "Deadline exceeded", False,
     "The call did not end before its deadline, queueing included.",
     "Request a longer deadline, or make the call smaller. Repeating the request is safe if retryable is true."),
    ("storage-unavailable", (503,), "Storage is not available", True,
     "The data directory of the service is gone, replaced, read-only or damaged. The change was not stored.",
     "Send the request again after Retry-After seconds. /healthz/ready names the check that fails."),
    ("storage-full", (507,), "Storage is full", False,
     "No space is left for stored data.", "Delete resources that are no longer needed."),
    ("internal", (500,), "Internal error", False,
     "The service failed because of a defect. The failure is logged under the request id.",
     "Report the failure with the request id."),
)  # fmt: skip

CODES: dict[str, ProblemType] = {row[0]: ProblemType(*row) for row in _ROWS}
