"""`backpass import`: an ONNX model becomes a program of a service, or is printed as one."""

from __future__ import annotations

import argparse
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from service.cli.output import say
from service.cli.refusal import refused
from service.settings import Settings

__all__ = ["add_command", "run"]

TIMEOUT_S = 3600.0
LOCAL = "http://127.0.0.1:8080"


def add_command(commands: Any) -> None:
    """Add the command to the subparsers of the command line."""
    command = commands.add_parser(
        "import",
        help="register an ONNX model as a program",
        description="Send an ONNX model to a service, which stores it as a program with its weights. External data of "
        "the model is read from its folder, or from the zip file. A service with keys takes the key from the "
        "environment variable BACKPASS_API_KEY.",
    )
    command.add_argument("model", type=Path, metavar="MODEL", help="file of the model: .onnx, or .zip")
    command.add_argument("--zip", action="store_true", default=None, help="the file is a zip file, whatever its name")
    command.add_argument("--url", help=f"address of the service (default: BACKPASS_URL, or {LOCAL})")
    command.add_argument("--loss", metavar="NAME", help="output to be the loss, or loss to append, such as mse")
    command.add_argument("--of", metavar="NAME", help="output that an appended loss judges (default: the first one)")
    command.add_argument("--label", metavar="NAME", help="feed of the labels of an appended loss (default: label)")
    command.add_argument("--axis", type=int, help="axis of the classes, of cross_entropy and nll (default: 1)")
    command.add_argument(
        "--trainable", action="append", metavar="NAME", help="initializer to train; repeat the option (default: all)"
    )
    command.add_argument("--dry-run", action="store_true", help="send nothing: print the program as JSON")


def run(chosen: argparse.Namespace, settings: Settings) -> int:
    """Run the command; the exit status."""
    from core.ir.errors import ProgramError
    from service.models.losses import BadLoss, loss_of, option_of
    from service.models.model_files import BadModelFile, read_model_file

    names = ("loss", "of", "label", "axis", "trainable")
    asked = {name: value for name in names if (value := getattr(chosen, name)) is not None}
    try:
        loss = loss_of(asked)
    except BadLoss as error:
        return refused(f"--{error.option}: {error}")
    try:
        content = read_model_file(chosen.model, settings.binary_body_bytes, chosen.zip)
        found = _printed(content, loss, chosen.trainable) if chosen.dry_run else _registered(chosen.url, content, asked)
    except ProgramError as error:
        wrong = [_of_option(option_of(each.code, loss), each.message) for each in error.problems]
    except (BadModelFile, OSError, _Refused) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        wrong = reason.split("\n")
    else:
        say(json.dumps(found, indent=1))
        return 0
    return refused(*wrong, about=chosen.model)


def _of_option(option: str | None, reason: str) -> str:
    return reason if option is None else f"--{option}: {reason}"


def _printed(content: bytes, loss: dict[str, Any] | None, trainable: list[str] | None) -> dict[str, Any]:
    """The program of the model. loss: members of a `core.onnx.Loss`. Raises ProgramError."""
    from core.onnx import Loss, read_model

    return read_model(content, loss=None if loss is None else Loss(**loss), parameters=trainable).program


def _registered(url: str | None, content: bytes, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer of the service. Raises _Refused, OSError."""
    base = (url or os.environ.get("BACKPASS_URL") or LOCAL).rstrip("/")
    if urllib.parse.urlsplit(base).scheme not in ("http", "https"):
        name = "--url" if url else "BACKPASS_URL"
        raise _Refused(f"{name}: {base} is not the address of a service, such as {LOCAL}")
    headers = {"Content-Type": "application/x-onnx", "Accept": "application/json"}
    if key := os.environ.get("BACKPASS_API_KEY", "").strip():
        if re.fullmatch("[!-~]+", key) is None:  # the error of the library would show it
            raise _Refused("BACKPASS_API_KEY has a character that no key has, such as a space: copy the key again")
        headers["Authorization"] = f"Bearer {key}"
    query = urllib.parse.urlencode(asked, doseq=True)
    request = urllib.request.Request(f"{base}/v1/programs?{query}", content, headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise _Refused(_reasons(error)) from error
    except urllib.error.URLError as error:
        raise _Refused(f"{base} cannot be reached: {error.reason}") from error
    except ValueError as error:
        raise _Refused(f"{base} does not answer as a service: {error}") from error
    return found


def _reasons(error: urllib.error.HTTPError) -> str:
    """The details of a problem document, one on a line."""
    try:
        problem = json.load(error)
        listed = [
            _of_option(each.get("parameter", "").partition("query: ")[2] or None, each["detail"])
            for each in problem.get("errors", ())
        ] or [problem["detail"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"the service answers {error.code} {error.reason}"
    return "\n".join(map(str, listed))


class _Refused(Exception):
    """The model is not registered. `str` has a reason on each line."""
