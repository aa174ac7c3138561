"""Sessions with 16-bit floats."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from tests.programs import Sketch
from tests.service.wire import array, opened, tensors

SGD = {"type": "sgd", "learning_rate": 1.0}


def product(dtype: str) -> Sketch:
    """loss = sum(w * x), so that the gradient is x."""
    s = Sketch()
    s.param("w", [1000.0], dtype)
    s.feed("x", [0.1], dtype)
    s.total(s.op("mul", "w", "x"))
    return s


def weight(client: httpx.Client, path: str) -> float:
    return float(array(client.get(f"{path}/parameters").json()["parameters"]["w"])[0])


def stepped(client: httpx.Client, path: str, dtype: str, x: float) -> None:
    answer = client.post(f"{path}/steps", json={"feeds": tensors({"x": np.array([x], np.dtype(dtype))})})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_steps_add_up(client, dtype):
    with opened(client, product(dtype), optimizer=SGD) as path:
        for _ in range(64):
            stepped(client, path, dtype, 0.125)  # the spacing of float16 at 1000 is 0.5, that of bfloat16 is 4

        assert weight(client, path) == 992.0


def test_what_was_rounded_off_goes_with_the_parameter_that_is_replaced(client):
    with opened(client, product("float16"), optimizer=SGD) as path:
        stepped(client, path, "float16", 0.2)  # 999.8 is kept as 1000 and -0.2
        new = {"parameters": tensors({"w": np.array([0.5], "float16")})}
        assert client.put(f"{path}/parameters", json=new, headers={"if-match": "*"}).status_code == 200
        stepped(client, path, "float16", 0.0)

        assert weight(client, path) == 0.5
