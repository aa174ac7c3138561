"""Log lines as JSON, one object per line. JSON escapes control characters, so a value cannot forge a second line."""

from __future__ import annotations

import json
import logging
import time

__all__ = ["configure"]

FIELD_CHARACTERS = 4096
TRACE_CHARACTERS = 32_768


class JsonFormatter(logging.Formatter):
    """Formats time (UTC), level, logger, message, the traceback if there is one, and the constant `context`."""

    def __init__(self, context: dict[str, str]) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:FIELD_CHARACTERS],
            **self._context,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)[-TRACE_CHARACTERS:]
        return json.dumps(line)


def configure(level: str, **context: str) -> None:
    """Send every log line of this process to standard error as JSON. context: members to add to each line."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(context))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
