"""Routes: the translation between HTTP and the engine. A route decides nothing else.

Programs:

registration, programs     register programs; list, read and delete them
program_values             their initial values, as a file
graph, onnx_models         their drawings; programs and trained models as ONNX files
gradients, evaluations     gradients and forward passes of one call
at_values                  calls of a program at the values in a request
insight                    analysis, profile, and the numeric check
ops                        the catalogue of ops

Sessions and tapes:

sessions, new_sessions     sessions, and the settings of a new one
training                   their computations
parameters, optimizer      their parameters and states; their optimiser state
live                       the curves of a session, and histograms of its parameters
session_checkpoints        checkpoints of one session, and copies of it
checkpoints, checkpoint_content  all checkpoints; the content of one, as a file
tapes, on_tape             tapes, and the operations on them
in_session                 helpers of the routes of one session
preconditions              resources with an ETag: If-Match and If-None-Match

Stored data, and calls that go on:

datasets, dataset_creation stored tables; the table that a request describes
uploads                    uploads in parts
jobs, job_submission       jobs, and the submission of one
operations                 calls that go on after their client got 202

The service:

keys, tenants              API keys; tenants, their limits, usage and audit log
health, system             health; version, limits, workers, metrics, documentation
console, guide             the pages of the console and of the documentation site

samples, sample_checkpoint, sample_data, sample_job  the sample resources of the documentation
state                      the parts of the application that routes call
named_programs             the program of a request, and its initial values
common, documented         helpers of several routes; OpenAPI entries of bodies that FastAPI does not read
"""
