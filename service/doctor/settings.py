"""Settings: variables that nothing reads, and values that do not fit each other."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from service.doctor.finding import Finding, ok, warning, wrong
from service.engine import UnusableSettings, worker_memory
from service.http.hosts import shares_port
from service.setting_mistakes import unknown_variables
from service.settings import Settings

__all__ = ["conflicts", "unknown"]

PREFIX = "BACKPASS_"


def unknown() -> Iterator[Finding]:
    """A finding for each variable that looks like a setting and is none: no command works while one resembles it."""
    for name, near in unknown_variables():
        if near:
            yield wrong("settings", f"{name} is not a setting, and the service refuses it", f"Set {near} instead.")
        else:
            do = "Remove the variable: docs/settings.md lists all settings."
            yield warning("settings", f"{name} is not a setting, so it has no effect", do)


def conflicts(settings: Settings) -> Iterator[Finding]:
    """Pairs of settings that contradict each other."""
    found = list(_conflicts(settings))
    yield from found
    if not any(each.state == "wrong" for each in found):
        given = len(settings.model_fields_set)
        yield ok("settings", f"{given} {'is' if given == 1 else 'are'} given, and all fit each other")


def _conflicts(s: Settings) -> Iterator[Finding]:
    if s.drain_delay > s.graceful_shutdown / 2:
        text = (
            f"BACKPASS_DRAIN_DELAY is {s.drain_delay:g}, but of the {s.graceful_shutdown:g} s of "
            "BACKPASS_GRACEFUL_SHUTDOWN half are kept for running calls"
        )
        yield wrong("settings", text, "Raise BACKPASS_GRACEFUL_SHUTDOWN to at least twice the delay.")
    if s.device != "cuda":
        try:
            worker_memory(s)
        except UnusableSettings as error:
            yield wrong("settings", f"{_name(error.setting)}: {error}", "Set fewer workers, or give them more memory.")
    if shares_port(s):
        yield wrong("settings", f"BACKPASS_METRICS_PORT is {s.port}, the port of the service", "Choose another port.")
    if s.tracing != "off" and importlib.util.find_spec("opentelemetry.sdk") is None:
        yield wrong("settings", "BACKPASS_TRACING needs packages that are missing", "Install backpass[telemetry].")
    if s.database_url.startswith("postgresql") and importlib.util.find_spec("psycopg") is None:
        yield wrong("settings", "BACKPASS_DATABASE_URL needs psycopg, which is missing", "Install backpass[postgres].")
    if (s.tls_cert is None) != (s.tls_key is None):
        yield wrong("settings", "only one of BACKPASS_TLS_CERT and BACKPASS_TLS_KEY is set", "Set both, or none.")


def _name(setting: str) -> str:
    return PREFIX + setting.upper()
