"""All that these examples need of a client: plain HTTP and JSON, with the numbers of a tensor as base64.

Nothing here is special to Python. Any language that can send a POST can do the same.
"""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import httpx
import numpy as np

__all__ = ["Backpass", "Session", "arguments", "decode", "encode"]

Program = dict[str, Any]


def arguments(description: str | None, **numbers: int) -> argparse.Namespace:
    """Command line of an example: --url, and one option with a default for each of `numbers`."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="where the service is (default: %(default)s)")
    for name, default in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help="default: %(default)s")
    return parser.parse_args()


def encode(array: Any) -> dict[str, Any]:
    array = np.ascontiguousarray(array) if np.ndim(array) else np.asarray(array)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    b64 = base64.b64encode(little.tobytes()).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "b64": b64}


def decode(tensor: Mapping[str, Any]) -> np.ndarray:
    dtype = np.dtype(tensor["dtype"])
    flat = np.frombuffer(base64.b64decode(tensor["b64"]), dtype) if "b64" in tensor else np.array(tensor["data"], dtype)
    return flat.reshape(tensor["shape"])


def encode_all(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: encode(array) for name, array in arrays.items()}


def decode_all(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: decode(tensor) for name, tensor in tensors.items()}


class Backpass:
    """A connection to one service. `with Backpass(url) as service: ...` closes it."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=120)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON answer. Raises RuntimeError with the service's own explanation if it refuses."""
        answer = self.http.request(method, path, json=body)
        if answer.is_error:
            problem = answer.json()
            raise RuntimeError(f"{method} {path}: {answer.status_code} {problem['title']}: {problem.get('detail', '')}")
        return answer.json() if answer.content else None

    def register(self, program: Program) -> str:
        """The id under which the service keeps `program`; the same program always has the same id."""
        return self.call("POST", "/v1/programs", {"program": program})["id"]

    def gradients(
        self,
        program: str,
        loss: str,
        feeds: Mapping[str, Any],
        parameters: Mapping[str, Any],
        fetch: Iterable[str] = (),
    ) -> tuple[float, dict[str, np.ndarray], dict[str, np.ndarray]]:
        """(loss, gradients, fetched) of the program with that id; nothing is kept by the service."""
        body = {"loss": loss, "feeds": encode_all(feeds), "parameters": encode_all(parameters), "fetch": list(fetch)}
        answer = self.call("POST", f"/v1/programs/{program}/gradients", body)
        return decode(answer["loss"]).item(), decode_all(answer["gradients"]), decode_all(answer["fetched"])

    @staticmethod
    def initial(parameters: Mapping[str, Any]) -> dict[str, Any]:
        """What a session starts from: these parameters."""
        return {"parameters": encode_all(parameters)}

    def session(self, program: str, **settings: Any) -> Session:
        """A session: the service keeps parameters and optimizer state. `with service.session(...)` deletes it."""
        return Session(self, self.call("POST", "/v1/sessions", {"program_id": program, **settings})["id"])


class Session:
    """One model in training. Its calls carry a number each, so that one sent twice is done once."""

    def __init__(self, service: Backpass, id: str) -> None:
        self.service, self.id, self.seq = service, id, 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.service.call("DELETE", f"/v1/sessions/{self.id}")

    def step(self, feeds: Mapping[str, Any], fetch: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """Forward, backward, update. The fetched values, with the loss under "loss"."""
        body = {"seq": self.seq, "feeds": encode_all(feeds), "fetch": list(fetch)}
        answer = self.service.call("POST", f"/v1/sessions/{self.id}/steps", body)
        self.seq = answer["next_seq"]
        return {"loss": decode(answer["loss"]), **decode_all(answer["fetched"])}

    def gradients(self, feeds: Mapping[str, Any]) -> tuple[float, dict[str, np.ndarray]]:
        """(loss, gradients) at the present parameters, which stay as they are."""
        answer = self.service.call("POST", f"/v1/sessions/{self.id}/gradients", {"feeds": encode_all(feeds)})
        return decode(answer["loss"]).item(), decode_all(answer["gradients"])

    def evaluate(self, feeds: Mapping[str, Any], fetch: Sequence[str]) -> dict[str, np.ndarray]:
        """Forward only."""
        body = {"feeds": encode_all(feeds), "fetch": list(fetch)}
        return decode_all(self.service.call("POST", f"/v1/sessions/{self.id}/evaluations", body)["fetched"])

    def parameters(self) -> dict[str, np.ndarray]:
        return decode_all(self.service.call("GET", f"/v1/sessions/{self.id}/parameters")["parameters"])
