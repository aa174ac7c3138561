"""A plain service for comparison: FastAPI in front of PyTorch, with a fixed set of models.

POST /sessions takes parameters and the settings of Adam, POST /sessions/<id>/steps a batch; the step is forward,
backward and update, and its answer is the loss. Bodies are safetensors files, with JSON in their metadata under
`request`. One worker, whose event loop runs the step itself: the fastest way for one client.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch
from fastapi import FastAPI, Request, Response
from safetensors.torch import load, save
from torch.nn import functional as F

from bench.peers.torch_losses import Tensors, transformer

__all__ = ["app"]

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

app = FastAPI()
sessions: dict[str, Session] = {}


def digits_mlp(p: Tensors, feeds: Tensors) -> torch.Tensor:
    h = torch.addmm(p["b1"], feeds["x"], p["w1"]).relu()
    return F.cross_entropy(torch.addmm(p["b2"], h, p["w2"]), feeds["y"])


def digits_convnet(p: Tensors, feeds: Tensors) -> torch.Tensor:
    h = F.max_pool2d(F.conv2d(feeds["x"], p["k1"], p["c1"], padding=1).relu(), 2)
    h = F.max_pool2d(F.conv2d(h, p["k2"], p["c2"], padding=1).relu(), 2)
    return F.cross_entropy(torch.addmm(p["b"], h.flatten(1), p["w"]), feeds["y"])


def rnn_text(p: Tensors, feeds: Tensors) -> torch.Tensor:
    text, n = feeds["text"], int(feeds["n"])
    h = p["w_h"].new_zeros(text.shape[1], p["w_h"].shape[0])
    total = h.new_zeros(())
    for i in range(n):
        seen = F.embedding(text[i], p["embedding"])
        h = torch.addmm(torch.addmm(p["b_h"], seen, p["w_in"]), h, p["w_h"]).tanh()
        total = total + F.cross_entropy(torch.addmm(p["b_out"], h, p["w_out"]), text[i + 1])
    return total / n


MODELS: dict[str, Callable[[Tensors, Tensors], torch.Tensor]] = {
    "digits_mlp": digits_mlp,
    "digits_convnet": digits_convnet,
    "rnn_text": rnn_text,
    "transformer": transformer,
}


class Session:
    """A model's parameters and optimizer."""

    def __init__(self, model: str, parameters: Tensors, optimizer: dict[str, Any]) -> None:
        self._loss = MODELS[model]
        self._parameters = {name: value.requires_grad_() for name, value in parameters.items()}
        self._optimizer = torch.optim.Adam(self._parameters.values(), **optimizer)

    def step(self, feeds: Tensors) -> torch.Tensor:
        self._optimizer.zero_grad()
        loss = self._loss(self._parameters, feeds)
        loss.backward()
        self._optimizer.step()
        return loss.detach()


@app.post("/sessions")
async def open_session(request: Request) -> dict[str, str]:
    body = await request.body()
    asked = json.loads(metadata_of(body)["request"])
    id = str(len(sessions))
    sessions[id] = Session(asked["model"], load(body), asked["optimizer"])
    return {"id": id}


@app.post("/sessions/{id}/steps")
async def step(id: str, request: Request) -> Response:
    loss = sessions[id].step(load(await request.body()))
    return Response(save({"loss": loss}), media_type="application/x-safetensors")


def metadata_of(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file; the file begins with the length of its JSON header."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length])["__metadata__"]
