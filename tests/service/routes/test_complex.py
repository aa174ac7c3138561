"""Complex numbers are refused wherever a dtype comes in, with the place and the reason."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

import backpass_client as bp
from tests.service.wire import FILE, opened, problem, regression, tensor

SAID = "complex numbers are not supported"
TENSOR = {"dtype": "complex64", "shape": [1], "data": [1.0]}


def program(**changed: Any) -> dict[str, Any]:
    var = {"name": "w", "dtype": "float32", "shape": [1], "role": "parameter"}
    ops = [{"type": "reduce_sum", "inputs": {"x": ["w"]}, "outputs": {"out": ["loss"]}}]
    return {"blocks": [{"idx": 0, "parent_idx": -1, "vars": [var], "ops": ops, **changed}]}


def declared(dtype: str) -> dict[str, Any]:
    return program(vars=[{"name": "w", "dtype": dtype, "shape": [1], "role": "parameter"}])


def cast_to(dtype: str) -> dict[str, Any]:
    return program(
        ops=[{"type": "cast", "inputs": {"x": ["w"]}, "outputs": {"out": ["loss"]}, "attrs": {"dtype": dtype}}]
    )


def filled_with(dtype: str) -> dict[str, Any]:
    attrs = {"shape": [1], "value": 1.0, "dtype": dtype}
    return program(ops=[{"type": "fill_constant", "outputs": {"out": ["loss"]}, "attrs": attrs}])


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("made", [declared, cast_to, filled_with])
def test_programs_with_complex_dtypes_are_refused(client: httpx.Client, made: Any, dtype: str):
    told = problem(client.post("/v1/programs", json={"program": made(dtype)}), 422, "invalid-program")

    (error,) = told["errors"]
    assert SAID in f"{error['detail']}"
    assert error["pointer"].startswith("/program/blocks/0/")


@pytest.mark.parametrize("member", ["feeds", "parameters", "states"])
def test_complex_tensors_are_refused(client: httpx.Client, member: str):
    ask = {"program": program(), "loss": "loss", member: {"w": TENSOR}}

    told = problem(client.post("/v1/gradients", json=ask), 422, "dtype-mismatch")

    assert SAID in told["errors"][0]["detail"]
    assert told["errors"][0]["pointer"] == f"/{member}/w/dtype"


def test_files_with_complex_tensors_are_refused(client: httpx.Client):
    # no writer supports this dtype, so the test writes it into the header: eight bytes an element
    content = save({"w": np.ones(1)}, metadata={"request": "{}"}).replace(b'"F64"', b'"C64"')

    answer = client.post("/v1/gradients", content=content, headers={"content-type": FILE})

    told = problem(answer, 422, "invalid-request")  # the program is missing too
    assert [error["pointer"] for error in told["errors"]] == ["/program", "/w/dtype"]
    assert SAID in str(told)


def test_sessions_refuse_complex_feeds_and_parameters(client: httpx.Client):
    with opened(client, regression()) as path:
        for call, body in (
            ("steps", {"feeds": {"x": TENSOR, "y": tensor(np.ones((4, 1)))}}),
            ("updates", {"gradients": {"w": TENSOR}}),
        ):
            assert SAID in str(problem(client.post(f"{path}/{call}", json=body), 422, "dtype-mismatch"))


def test_tapes_refuse_complex_values(service):
    with bp.Tape(service.url), pytest.raises(TypeError, match=SAID):
        _ = (bp.Variable(np.ones(1, "complex64")) + 1.0).value
