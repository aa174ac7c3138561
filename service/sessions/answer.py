"""The answers to calls that change a session, written when the call ends or when it is repeated from the journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.engine import Reply
from service.http.ndjson_stream import whole_stream
from service.http.tensor_payloads import Answer, render
from service.problems import stopped_document
from service.sessions.entry import Form
from service.sessions.session import FIRST_LINE, etag_text, version_text

__all__ = ["etag_of", "shown", "written"]


def shown(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a worker, with the version and the codes in the form that clients see."""
    plain = {name: value for name, value in result.items() if name not in ("version", "seq", "line")}
    if plain.get("stopped") is not None:
        plain["stopped"] = stopped_document(plain["stopped"])
    return {**plain, "weights_version": version_text(result["version"], _line(result))}


def etag_of(reply: Reply) -> str:
    """The ETag of the session, or tape, after the call."""
    result = reply.result
    return etag_text(result["version"], result.get("accumulated", 0), result["seq"], _line(result))


def _line(result: Mapping[str, Any]) -> int:
    return result.get("line", FIRST_LINE)  # type: ignore[no-any-return]


async def written(reply: Reply, form: Form) -> Answer:
    """The answer to a numbered call."""
    document = {**shown(reply.result), "seq": reply.result["seq"], "next_seq": reply.result["seq"] + 1}
    headers = {"ETag": etag_of(reply)}
    if form.get("stream"):
        return await whole_stream(reply, document, form["members"], headers)
    return await render(reply, document, as_file=form["as_file"], headers=headers, members=form["members"])
