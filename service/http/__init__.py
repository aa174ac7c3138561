"""The HTTP layer between the socket and the routes: protocol, middleware, request bodies, answers.

protocol         limits that uvicorn lacks: slow headers, large headers, unread answers, requests without a place
request_head     checks of a head: its version, host and framing
ignored_upgrade  reads on behind a head that offers another protocol
admission        gates: which requests start, wait or are refused, decided before the body is read
pacer            a limited rate for refusals and other work that brings no result
reading          flow control with a second reason to pause
direct_answers   answers of the protocol itself: health and refusals
open_files       file descriptors that connections leave to workers, files and the database
tls              the certificate of the service
auth             the check of API keys, and the account of each answered request
metrics_port     a port of its own for metrics and probes
drain            the end of the service in order
access_log       one line in the log for each request
hosts            the names under which the service may be addressed
codec            calls to the processes that read large bodies and write large answers
pieces           large answers, piece by piece
coalesced_write  the header and the first bytes of an answer in one packet
middleware       request ids, metrics, and the end of work whose client disconnected
fast_path        training steps, gradients and tapes, around FastAPI, which takes longer than a small step
query_params     refuses query parameters that a route does not declare
request_body     size, pace, media type and decoding of a body
spooled_body     bodies that go to a file as they arrive
idempotency      POST requests that take effect once, however often they arrive
deferred         calls that go on after an answer 202, as operations
recorded         answers that are sent again later, for both of these
given_values     tensors of a request, and all mistakes in them
tensor_payloads  tensors of answers, as JSON members or in a safetensors file
ndjson_stream    answers line by line, while the step still runs
sse              numbered server-sent events
file_answer      stored files, whole or in ranges
entity_tags      tags of answers, and the conditions of requests on them
head             HEAD wherever GET answers
worker_calls     every call to a worker: counted once, and with the program only if the worker lacks it
"""
