"""Mistakes in the environment variables of settings: names that are no settings, and values that are invalid."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from service.settings import Settings

__all__ = ["read_settings", "unknown_variables"]

PREFIX = "BACKPASS_"
FOR_OTHERS = re.compile(
    r"API_KEY|URL"  # of the client
    r"|TEST_\w+"  # of the tests
    r"|(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)"  # Kubernetes sets them for its services
)
"""Names behind the prefix that the service itself does not read, and that are no mistakes."""

OF_KUBERNETES = re.compile(r"(tcp|udp|sctp)://")
"""Kubernetes gives BACKPASS_PORT such a value if it has a service of the name `backpass`."""

LIKENESS = 0.75
"""Least likeness of a setting that is suggested: two letters that changed places in a short name have it."""

SHOWN = 60
"""Characters of an invalid value that are shown."""


def unknown_variables() -> Iterator[tuple[str, str | None]]:
    """Each variable, or file of a secret, that looks like a setting and is none, usually by a typing mistake.

    With it the variable of a setting with a similar name, if there is one.
    """
    known = [name.upper() for name in Settings.model_fields]
    for name, shown in sorted([*((name, name) for name in os.environ), *_secrets()]):
        upper = name.upper()
        own = upper.removeprefix(PREFIX)
        if upper.startswith(PREFIX) and own not in known and not FOR_OTHERS.fullmatch(own):
            near = difflib.get_close_matches(own, known, 1, LIKENESS)
            yield shown, PREFIX + near[0] if near else None


def _secrets() -> Iterator[tuple[str, str]]:
    """(name, path) of each file in the directory of secrets."""
    directory = Settings.model_config.get("secrets_dir")
    if isinstance(directory, Path):
        try:
            yield from ((path.name, str(path)) for path in directory.iterdir())
        except OSError:
            return


def read_settings(**given: Any) -> Settings | list[str]:
    """The settings, with `given` ones on top of the environment; or a sentence for each mistake in a value."""
    unreadable = list(_unreadable_secrets(given))
    try:
        return unreadable or Settings(**given)
    except ValidationError as error:
        return list(_invalid_values(error))


def _unreadable_secrets(given: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each file of a secret that sets a value and cannot be read."""
    set_already = {name.upper() for name, value in os.environ.items() if value}
    for name, path in _secrets():
        variable = name.upper()
        setting = variable.removeprefix(PREFIX).lower()
        if setting in given or setting not in Settings.model_fields or variable in set_already:
            continue
        try:
            Path(path).read_bytes()
        except OSError as error:
            yield f"{variable}: {path} cannot be read by user {os.geteuid()}: {error.strerror}"


def _invalid_values(error: ValidationError) -> Iterator[str]:
    """A sentence for each mistake, with the variable and its value."""
    from service.problems.words import said  # here, because commands with valid settings need none of its imports

    for mistake in error.errors(include_url=False):
        name = PREFIX + "_".join(str(part) for part in mistake["loc"]).upper()
        value = repr(mistake["input"])
        found = value if len(value) <= SHOWN else f"{value[:SHOWN]}..."
        hint = ""
        if isinstance(mistake["input"], str) and OF_KUBERNETES.match(mistake["input"]):
            hint = "; Kubernetes sets it for a service of that name: set enableServiceLinks to false in the pod"
        yield f"{name}: {said(mistake)}, found {found}{hint}" if mistake["loc"] else said(mistake)
