"""The handlers of codec processes. They keep no state."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from service.formats import json_tensors
from service.formats.graph import drawn
from service.formats.packed import PROGRAM, tensors_in
from service.formats.safetensors import Entries, read_header
from service.formats.strict_json import parse_json
from service.problems import HttpProblem
from service.settings import TensorLimits
from service.store.program_text import ProgramText
from service.worker.state import Handler, WorkerState

__all__ = ["HANDLERS"]

Answer = tuple[dict[str, Any], dict[str, Any]]

OPTION_BYTES = 4 * 2**20
"""Limit of a body without its tensors and its program."""


def decode(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """A JSON body: its document, tensors and program. tensors: body."""
    try:
        document = parse_json(tensors["body"].tobytes(), max_depth=state.settings["json_depth"])
        return _parts(document, _limits(state))
    except HttpProblem as problem:
        return _failed(problem)


def header(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """The header of a safetensors body, with the parts of its document. args: size of the data; tensors: header."""
    flaws: dict[str, json_tensors.TensorError] = {}
    try:
        text, depth = tensors["header"].tobytes(), state.settings["json_depth"]
        document, entries = read_header(text, args["size"], limits=_limits(state), max_depth=depth, flaws=flaws)
        found, parts = _parts(document, _limits(state))
    except HttpProblem as problem:
        return _failed(problem)
    wrong = [(name, error.code, error.detail, error.pointer) for name, error in flaws.items()]
    return found | {"entries": _plain(entries), "flaws": wrong}, parts


def encode(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """Each tensor as JSON text. args: base64."""
    texts = {}
    for name in list(tensors):
        array = tensors.pop(name)
        texts[name] = _text(json_tensors.dumps(json_tensors.encode(array, base64=args["base64"])))
    return {}, texts


def draw(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
    """A graph, as of `drawn`. args: form, title, static; tensors: answer."""
    text = drawn(tensors["answer"].data, args["form"], args["title"], args["static"])
    return {}, {"text": _text(text)}


HANDLERS: dict[str, Handler] = {"decode": decode, "header": header, "encode": encode, "draw": draw}


def _parts(document: dict[str, Any], limits: TensorLimits) -> Answer:
    """The document without its tensors and its program, their places, and the parts."""
    arrays: dict[str, np.ndarray] = {}
    places: list[Any] = []
    for place, found in tensors_in(document, limits):
        if isinstance(found, json_tensors.TensorError):
            places.append((place, found.code, found.detail, found.pointer))
        else:
            arrays[str(len(places))] = found
            places.append((place,))
    result: dict[str, Any] = {"document": document, "places": places}
    if isinstance(document.get(PROGRAM), dict):
        program = ProgramText.of(document[PROGRAM])
        document[PROGRAM] = None
        result["program_id"], result["program_values"] = program.id, program.values
        arrays[PROGRAM] = _text(program.text)
    if len(orjson.dumps(document)) > OPTION_BYTES:
        raise HttpProblem(
            "limit-exceeded", f"the body without its tensors and its program exceeds the limit of {OPTION_BYTES} bytes"
        )
    return result, arrays


def _limits(state: WorkerState) -> TensorLimits:
    s = state.settings
    return TensorLimits(rank=s["tensor_rank"], elements=s["tensor_elements"], bytes=s["tensor_bytes"])


def _plain(entries: Entries) -> list[Any]:
    return [(name, dtype.name, shape, begin, end) for name, (dtype, shape, begin, end) in entries.items()]


def _text(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


def _failed(problem: HttpProblem) -> Answer:
    errors = [(e.pointer, e.code, e.detail) for e in problem.errors]
    return {
        "problem": (problem.code, problem.detail, problem.status, errors, problem.extensions),
    }, {}
