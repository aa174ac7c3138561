"""A minimal client for these examples: HTTP with tensors as safetensors files.

A request with tensors is one file. It contains the feeds and parameters by name, and all other members as JSON text in
its metadata, under `request`. The response is such a file too, with its JSON under `response`. Any language that can
send a POST request can do the same; without a safetensors library, it can send the tensors as JSON.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import httpx
import numpy as np
from safetensors.numpy import load, save

__all__ = ["Backpass", "Refused", "Session", "arguments"]

Program = dict[str, Any]
Arrays = dict[str, np.ndarray]

SAFETENSORS = "application/x-safetensors"


def arguments(description: str | None, **numbers: int) -> argparse.Namespace:
    """The command line of an example: --url, and one integer option with a default for each of `numbers`."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="address of the service (default: %(default)s)")
    for name, default in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help="default: %(default)s")
    return parser.parse_args()


def packed(tensors: Mapping[str, Any], request: Mapping[str, Any]) -> bytes:
    """A safetensors file of `tensors`, with `request` as JSON in its metadata."""
    # order="C", because the file stores arrays row by row; ascontiguousarray would turn a scalar into an array [1]
    arrays = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    return save(arrays, {"request": json.dumps(request)})


def unpacked(content: bytes) -> tuple[dict[str, Any], Arrays]:
    """(JSON members, tensors) of a response. A file begins with the length of its JSON header."""
    (length,) = struct.unpack_from("<Q", content)
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    return json.loads(metadata["response"]), load(content)


def group(tensors: Arrays, prefix: str) -> Arrays:
    """The tensors called `prefix`/<name>, keyed by <name>."""
    start = f"{prefix}/"
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


class Refused(RuntimeError):
    """The service refused a request. The message is its explanation, with the place of each mistake."""


class Backpass:
    """A connection to one service. `with Backpass(url) as service: ...` closes it."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=120)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send JSON; the JSON of the response, None if that is empty. Raises Refused."""
        answer = _accepted(self.http.request(method, path, json=body))
        return answer.json() if answer.content else None

    def exchange(
        self, method: str, path: str, tensors: Mapping[str, Any] | None = None, **request: Any
    ) -> tuple[dict[str, Any], Arrays]:
        """Send tensors and JSON members; (JSON members, tensors) of the response. Raises Refused."""
        headers = {"accept": SAFETENSORS}
        if method == "GET":
            return unpacked(_accepted(self.http.request(method, path, headers=headers)).content)
        headers["content-type"] = SAFETENSORS
        content = packed(tensors or {}, request)
        return unpacked(_accepted(self.http.request(method, path, content=content, headers=headers)).content)

    def register(self, program: Program) -> str:
        """Register `program`; returns its id. The same program always has the same id."""
        return self.call("POST", "/v1/programs", {"program": program})["id"]

    def gradients(
        self,
        program: str,
        loss: str,
        feeds: Mapping[str, Any],
        parameters: Mapping[str, Any],
        fetch: Iterable[str] = (),
    ) -> tuple[float, Arrays, Arrays]:
        """(loss, gradients, fetched) of the program with this id. The service keeps nothing."""
        path = f"/v1/programs/{program}/gradients"
        _, tensors = self.exchange("POST", path, {**feeds, **parameters}, loss=loss, fetch=list(fetch))
        return tensors["loss"].item(), group(tensors, "grad"), group(tensors, "fetch")

    def session(self, program: str, parameters: Mapping[str, Any] | None = None, **settings: Any) -> Session:
        """A session: the service keeps parameters and optimizer state. `with service.session(...)` deletes it.

        parameters: initial values; the service initializes the others.
        settings:   more members of the request, such as loss, optimizer and init.
        """
        content = packed(parameters or {}, {"program_id": program, **settings})
        answer = self.http.post("/v1/sessions", content=content, headers={"content-type": SAFETENSORS})
        return Session(self, _accepted(answer).json()["id"])


class Session:
    """One model in training. Each step carries a sequence number: the service executes a step sent twice once."""

    def __init__(self, service: Backpass, id: str) -> None:
        self.service, self.path, self.seq = service, f"/v1/sessions/{id}", 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.service.call("DELETE", self.path)

    def step(self, feeds: Mapping[str, Any], fetch: Sequence[str] = ()) -> Arrays:
        """Run forward, backward and update; the fetched values, and the loss as "loss"."""
        said, tensors = self.service.exchange("POST", f"{self.path}/steps", feeds, seq=self.seq, fetch=list(fetch))
        self.seq = said["next_seq"]
        return {"loss": tensors["loss"], **group(tensors, "fetch")}

    def gradients(self, feeds: Mapping[str, Any]) -> tuple[float, Arrays]:
        """(loss, gradients) at the present parameters; changes nothing."""
        _, tensors = self.service.exchange("POST", f"{self.path}/gradients", feeds)
        return tensors["loss"].item(), group(tensors, "grad")

    def evaluate(self, feeds: Mapping[str, Any], fetch: Sequence[str]) -> Arrays:
        """Run forward only; the fetched values."""
        _, tensors = self.service.exchange("POST", f"{self.path}/evaluations", feeds, fetch=list(fetch))
        return group(tensors, "fetch")

    def parameters(self) -> Arrays:
        return self.service.exchange("GET", f"{self.path}/parameters")[1]


def _accepted(answer: httpx.Response) -> httpx.Response:
    """`answer`. Raises Refused with the text of the problem document if it is an error."""
    if not answer.is_error:
        return answer
    request = f"{answer.request.method} {answer.request.url.path}"
    if "json" not in answer.headers.get("content-type", ""):
        raise Refused(f"{request}: {answer.status_code} {answer.reason_phrase}")
    problem = answer.json()
    places = "".join(f"\n  {each['pointer']}: {each['detail']}" for each in problem.get("errors", []))
    raise Refused(f"{request}: {answer.status_code} {problem['title']}: {problem.get('detail', '')}{places}")
