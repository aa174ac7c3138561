"""Every op, declared. Importing this package fills the registry."""

from core.ops import (
    arithmetic,
    control,
    conv,
    creation,
    functions,
    index,
    linalg,
    logic,
    loss,
    nn,
    norm,
    pool,
    random,
    reduce,
    shape,
)

__all__ = [
    "arithmetic",
    "control",
    "conv",
    "creation",
    "functions",
    "index",
    "linalg",
    "logic",
    "loss",
    "nn",
    "norm",
    "pool",
    "random",
    "reduce",
    "shape",
]
