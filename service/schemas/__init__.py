"""Requests and answers as strict pydantic models: the source of the OpenAPI document.

Options that the core declares (queries, hooks, clips, budgets, loss scales) are derived from its dataclasses
(`derived`), so that an option is written once.

derived                                  pydantic models from the core's dataclasses
programs, gradients, evaluations, backward, graph
                                         requests and answers about programs
sessions, session_answers, tapes, checkpoints
                                         about values in training
datasets, jobs, operations               about stored data, and calls that go on
access, tenants                          about keys, tenants, usage and the audit log
profile, stream, tensors, times, headers parts of requests and answers
examples, onnx_example                   the programs and the ONNX model in the examples of the documentation
common_answers                           problems that many operations have
members                                  members that several schemas have
components                               schemas that the OpenAPI document names once
openapi                                  the OpenAPI document
"""
