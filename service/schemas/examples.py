"""Samples of the documentation: programs, a session and a tape, with constant ids.

The service makes each of them when it is missing, so that all examples can be sent as they are.
"""

from __future__ import annotations

from typing import Any

from service.store.program_text import program_id

__all__ = [
    "EXAMPLES",
    "FITTED",
    "FITTED_ID",
    "REGRESSION",
    "REGRESSION_FEEDS",
    "REGRESSION_ID",
    "REGRESSION_PARAMETERS",
    "SAMPLE_CHECKPOINT",
    "SAMPLE_COLUMNS",
    "SAMPLE_CSV",
    "SAMPLE_DATASET",
    "SAMPLE_JOB",
    "SAMPLE_JOB_SETTINGS",
    "SAMPLE_LINE",
    "SAMPLE_OPERATION",
    "SAMPLE_SESSION",
    "SAMPLE_SETTINGS",
    "SAMPLE_TAPE",
    "SAMPLE_UPLOAD",
    "WHILE",
    "WHILE_ID",
]


def _op(type: str, out: str, attrs: dict[str, Any] | None = None, **inputs: str) -> dict[str, Any]:
    op: dict[str, Any] = {"type": type, "inputs": {k: [v] for k, v in inputs.items()}, "outputs": {"out": [out]}}
    return op | ({"attrs": attrs} if attrs else {})


REGRESSION: dict[str, Any] = {
    "blocks": [
        {
            "idx": 0,
            "parent_idx": -1,
            "vars": [
                {"name": "x", "dtype": "float32", "shape": [-1, 2], "role": "feed"},
                {"name": "y", "dtype": "float32", "shape": [-1, 1], "role": "feed"},
                {"name": "w", "dtype": "float32", "shape": [2, 1], "role": "parameter"},
                {"name": "b", "dtype": "float32", "shape": [1], "role": "parameter"},
            ],
            "ops": [
                _op("matmul", "xw", x="x", y="w"),
                _op("add", "prediction", x="xw", y="b"),
                _op("mse_loss", "loss", x="prediction", y="y"),
            ],
        }
    ]
}
"""Linear regression on a batch of any size."""

WHILE: dict[str, Any] = {
    "blocks": [
        {
            "idx": 0,
            "parent_idx": -1,
            "vars": [
                {"name": "w", "dtype": "float64", "shape": [2], "role": "parameter"},
                {"name": "n", "dtype": "int64", "shape": [], "role": "feed"},
            ],
            "ops": [
                _op("fill_constant", "h", {"shape": [2], "value": 1.0, "dtype": "float64"}),
                _op("fill_constant", "i", {"shape": [], "value": 0, "dtype": "int64"}),
                _op("less_than", "go", x="i", y="n"),
                {"type": "while", "inputs": {"condition": ["go"]}, "attrs": {"sub_block": 1}},
                _op("reduce_sum", "loss", x="h"),
            ],
        },
        {
            "idx": 1,
            "parent_idx": 0,
            "vars": [],
            "ops": [
                _op("mul", "hw", x="h", y="w"),
                _op("tanh", "h", x="hw"),
                _op("increment", "i", {"step": 1}, x="i"),
                _op("less_than", "go", x="i", y="n"),
            ],
        },
    ]
}
"""A loop whose trip count is a feed."""

SAMPLE_SESSION = "ses_samplesessionofregression2"
SAMPLE_TAPE = "tap_sampletapewithtwoops222222"
SAMPLE_OPERATION = "opn_sampleoperation22222222222"
SAMPLE_CHECKPOINT = "ckp_samplecheckpointofsession2"
SAMPLE_UPLOAD = "upl_sampleuploadofatable222222"
"""Ids of the sample session, tape, operation, checkpoint and upload, which exist whenever a request names them."""

REGRESSION_ID = program_id(REGRESSION)
WHILE_ID = program_id(WHILE)
EXAMPLES = {REGRESSION_ID: REGRESSION, WHILE_ID: WHILE}

REGRESSION_FEEDS: dict[str, Any] = {
    "x": {"dtype": "float32", "shape": [3, 2], "data": [1, 2, 3, 4, 5, 6]},
    "y": {"dtype": "float32", "shape": [3, 1], "data": [1, 0, 1]},
}
REGRESSION_PARAMETERS: dict[str, Any] = {
    "w": {"dtype": "float32", "shape": [2, 1], "data": [0.1, -0.2]},
    "b": {"dtype": "float32", "shape": [1], "data": [0]},
}

FITTED = {**REGRESSION, "values": "6b910ba153d1bf9f6891b0e954e65df55e29757e30bfa3335b7b77c35b2cbfbd"}
"""The regression with initial values; the digest is that of the file with its parameters."""
FITTED_ID = program_id(FITTED)

SAMPLE_SETTINGS: dict[str, Any] = {
    "program_id": REGRESSION_ID,
    "loss": "loss",
    "optimizer": {"type": "adam", "learning_rate": 0.01},
    "init": {"seed": 0},
}
"""A session of the regression."""

SAMPLE_LINE: dict[str, Any] = {
    "renew": True,
    "parameters": {"w": {"dtype": "float32", "shape": [2], "data": [0.5, -1]}},
    "constants": {"x": {"dtype": "float32", "shape": [2], "data": [3, 4]}},
    "ops": [
        {"type": "mul", "inputs": {"x": ["w"], "y": ["x"]}, "outputs": {"out": ["wx"]}},
        {"type": "reduce_sum", "inputs": {"x": ["wx"]}, "outputs": {"out": ["loss"]}},
    ],
}
"""Leaves and ops of a tape. `renew` lets a reader send them again."""

SAMPLE_COLUMNS: dict[str, Any] = {
    "x": {"dtype": "float32", "shape": [8, 2], "data": [0, 0, 0, 1, 1, 0, 1, 1, 2, 0, 0, 2, 2, 1, 2, 2]},
    "y": {"dtype": "float32", "shape": [8, 1], "data": [1, 0, 3, 2, 5, -1, 4, 3]},
}
"""The sample dataset: y = 1 + 2 a - b for the two features a and b in x, the feeds of the regression."""

SAMPLE_DATASET = "dst_h7opdnqiatxfd32fvtrv63cr5y"
"""The id of the sample dataset, which comes from its content."""

SAMPLE_CSV = "a,b,y\n0,0,1\n0,1,0\n1,0,3\n1,1,2\n2,0,5\n0,2,-1\n2,1,4\n2,2,3\n"
"""The content of the sample upload: the same table."""
SAMPLE_JOB = "job_samplejobofregression22222"

SAMPLE_JOB_SETTINGS: dict[str, Any] = {
    "program_id": REGRESSION_ID,
    "loss": "loss",
    "optimizer": {"type": "adam", "learning_rate": 0.01},
    "dataset_id": SAMPLE_DATASET,
    "epochs": 3,
    "batch_size": 2,
    "name": "line",
}
"""A job of a few steps on the sample dataset."""
