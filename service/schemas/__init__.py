"""Requests and answers as strict pydantic models: the source of the OpenAPI document.

Options that the core declares (queries, hooks, clips, budgets, loss scales) are derived from its dataclasses
(`derived`), so that an option is written once.

derived                                  pydantic models from the core's dataclasses
programs, gradients, sessions, tapes     requests and answers of these routes
profile, stream, tensors                 parts of answers
examples                                 the programs in the examples of the documentation
components                               schemas that the OpenAPI document names once
openapi                                  the OpenAPI document
"""
