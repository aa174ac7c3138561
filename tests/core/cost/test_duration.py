"""The predicted time of an op: an upper estimate, from its types or from the arrays of a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from core.cost import duration
from core.cost.duration import seconds_of, seconds_of_call
from core.ir import Op, TensorType
from core.ir.builder import output_types
from core.ir.registry import REGISTRY
from tests.paths import ROOT


def op_on(name: str, *inputs: np.ndarray | None, **attrs) -> Op:
    types = tuple(None if x is None else TensorType(x.shape, str(x.dtype)) for x in inputs)
    attrs = REGISTRY[name].complete(attrs)
    outputs = output_types(REGISTRY[name], types, attrs)
    return Op(name, tuple(f"x{i}" for i in range(len(inputs))), tuple(f"y{i}" for i in range(len(outputs))), attrs)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape, "float32")


KEY = np.asarray(5)
SLOW = {
    "matmul": ((floats(900, 900), floats(900, 900)), {}),
    "svd": ((floats(300, 300),), {}),
    "inverse": ((floats(800, 800),), {}),
    "qr_factor": ((floats(400, 400),), {}),
    "einsum": ((floats(150, 150), floats(150, 150)), {"equation": "ij,ik->ijk"}),
    "uniform_random": ((KEY,), {"shape": (2_000_000,)}),
    "gaussian_random": ((KEY,), {"shape": (1_000_000,)}),
    "truncated_gaussian": ((KEY,), {"shape": (1_000_000,)}),
    "bernoulli": ((floats(1_000_000), KEY), {}),
    "randperm": ((KEY,), {"n": 1_000_000}),
    "multinomial": ((floats(100, 5000), KEY), {"num_samples": 100}),
    "argsort": ((floats(2_000_000),), {}),
    "gather": ((floats(3_000_000), np.random.default_rng(0).integers(0, 3_000_000, 3_000_000)), {}),
    "scatter_add_like": (
        (floats(1_000_000), np.random.default_rng(0).integers(0, 1_000_000, 1_000_000), floats(1_000_000)),
        {},
    ),
    "cumsum": ((floats(2000, 2000),), {"axis": 0}),
    "logcumsumexp": ((floats(1000, 1000),), {"axis": 0}),
    "linear_scan": ((floats(1000, 1000), floats(1000, 1000)), {}),
    "max_pool": ((floats(4, 8, 128, 128),), {"kernel_size": (8, 8)}),
    "tanh": ((floats(3_000_000).astype("float64"),), {}),
    "lgamma": ((floats(1_000_000),), {}),
    "erfinv": ((floats(1_000_000),), {}),
    "add": ((floats(3_000_000), floats(3_000_000)), {}),
    "tile": ((floats(1000, 1000),), {"repeats": (3, 3)}),
}
"""Op -> inputs and attributes for which it takes between 5 and 500 ms."""


def measure() -> dict[str, float]:
    """The time of each op, without that of other processes."""
    found = {}
    for name, (inputs, attrs) in SLOW.items():
        op = op_on(name, *inputs, **attrs)
        taken = []
        for _ in range(3):
            started = time.process_time()
            REGISTRY[name].body(np, *inputs, **op.attrs)
            taken.append(time.process_time() - started)
        found[name] = min(taken)
    return found


@pytest.mark.slow
def test_no_op_takes_longer_than_predicted():
    code = "import json; from tests.core.cost.test_duration import measure; print(json.dumps(measure()))"
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # threads that wait for each other count as busy
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=alone, capture_output=True, check=True)
    taken = json.loads(ran.stdout)

    predicted = {name: seconds_of_call(op_on(name, *inputs, **attrs), inputs) for name, (inputs, attrs) in SLOW.items()}

    assert {name: (taken[name], predicted[name]) for name in SLOW if taken[name] > 1.5 * predicted[name]} == {}


def test_the_tables_name_ops_with_kernels():
    named = duration.FREE | duration.CHEAP | duration.SORTS | duration.LOOPS | duration.COUNTED | set(duration.COSTLY)

    assert all(REGISTRY[name].kind == "primitive" for name in named)


def test_open_sizes_are_predicted_from_the_arrays_of_the_call():
    lengths = np.asarray([3, 5])
    op = op_on("sequence_mask", lengths)

    assert seconds_of(op, [TensorType((2,), "int64")], [TensorType((2, -1), "bool")]) is None
    assert seconds_of_call(op, [lengths]) < 1e-5
    assert seconds_of_call(op, [lengths * 100_000_000]) > 1  # the mask has 10^9 elements


def test_more_elements_and_more_work_take_longer():
    small, large = floats(10, 10), floats(1000, 1000)

    for name, inputs in (("lgamma", 1), ("add", 2), ("matmul", 2), ("svd", 1)):
        least, most = (seconds_of_call(op_on(name, *[x] * inputs), [x] * inputs) for x in (small, large))
        assert most > 9000 * least


def test_a_view_takes_no_time():
    x = floats(1000, 1000)

    assert seconds_of_call(op_on("expand", x, shape=(1000, 1000, 1000)), [x]) == 0.0
