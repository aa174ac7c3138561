"""Types of the outputs of ops, inferred in the client, so that a mistake is an error at the Python line that wrote it.

The service infers all types again, and its result counts. A rule here knows less: it gives no type where it would need
values, and no size that is not a number or the name of one open size. Ops without a rule have outputs of unknown type.
A law in the tests compares every rule with that of the service.

Files: rules (the table and its helpers), sizes (arithmetic with open sizes), and the rules of each family:
elementwise, reductions, shapes, indexing, linalg, nn, vision, sequences, signals. pairs warns of losses that compare
every element with every other one.
"""

from __future__ import annotations

from backpass_client.builder.inference import (  # noqa: F401  (they declare the rules)
    elementwise,
    indexing,
    linalg,
    nn,
    reductions,
    sequences,
    shapes,
    signals,
    vision,
)
from backpass_client.builder.inference.pairs import warn_of_stretched
from backpass_client.builder.inference.rules import output_types

__all__ = ["output_types", "warn_of_stretched"]
