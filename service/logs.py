"""Log lines as JSON, one object per line. JSON escapes control characters, so a value cannot forge a second line.

Each line names the request that it belongs to: `FIELDS` holds the id of the request, its tenant and its session, and
goes with every call to the processes that work for the request. Bodies are never logged.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import orjson

__all__ = ["FIELDS", "JsonFormatter", "configure", "note"]

FIELD_CHARACTERS = 4096
FIRST_CHARACTERS = 512  # of the beginning of a longer message; the rest is its end
GAP = " ... "
TRACE_CHARACTERS = 32_768

FIELDS: ContextVar[dict[str, str]] = ContextVar("log_fields", default={})  # noqa: B039 (`note` never changes this one)
"""Members of every log line of the current request, such as request_id, tenant, session and trace_id."""

_NONE = FIELDS.get()


def note(**fields: str) -> None:
    """Add members to all later log lines of the current request. Outside of a request it does nothing."""
    current = FIELDS.get()
    if current is not _NONE:
        current.update(fields)


class JsonFormatter(logging.Formatter):
    """Formats time (UTC), level, logger, message, the constant `context`, the members of the current request, those in
    the attribute `fields` of the record, and the traceback if there is one."""

    def __init__(self, context: dict[str, str]) -> None:
        super().__init__()
        self._context = context
        self._second, self._moment = -1, ""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{self._second_of(record)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _clipped(record.getMessage()),
            **self._context,
            **FIELDS.get(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)[-TRACE_CHARACTERS:]
        with contextlib.suppress(TypeError):  # a tenth of the time of json, but it refuses lone surrogates
            text = orjson.dumps(line, default=repr)
            if text.isascii():  # it escapes no other characters, and some of them end a line
                return text.decode()
        return json.dumps(line, default=repr)

    def _second_of(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:
            self._moment, self._second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)), second
        return self._moment


def _clipped(message: str) -> str:
    """`message` without its middle if it is long: a traceback names its cause at the end."""
    if len(message) <= FIELD_CHARACTERS:
        return message
    return message[:FIRST_CHARACTERS] + GAP + message[len(message) - FIELD_CHARACTERS + FIRST_CHARACTERS + len(GAP) :]


def configure(level: str, **context: str) -> None:
    """Send every log line of this process to standard error as JSON. context: members to add to each line.

    Exceptions that nothing catches and warnings of Python become log lines as well.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(context))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it lists its plugins at every start
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda args: _uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _uncaught(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    if error is None or issubclass(kind, KeyboardInterrupt | SystemExit):
        return
    logging.getLogger("backpass").critical("an exception ends a thread", exc_info=(kind, error, traceback))
