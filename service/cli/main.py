"""The command line: `backpass serve`, `profile`, `openapi`, `catalogue`, `options`, `version`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import ValidationError

from service import __version__, logs
from service.http.protocol import guarded
from service.settings import Settings

__all__ = ["main"]

OPTIONS = {"host": str, "port": int, "device": str, "workers": int, "threads": int, "data_dir": str, "log_level": str}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. arguments: those of the process when None."""
    chosen = _parser().parse_args(arguments)
    match chosen.command:
        case "serve":
            return _serve(chosen)
        case "profile":
            return _profile(chosen)
        case "openapi":
            return _openapi(chosen.output)
        case "catalogue":
            return _catalogue(chosen.output)
        case "options":
            return _options(chosen.output)
    print(__version__)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("backpass", description="Compiles and executes backward passes over HTTP.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser(
        "serve",
        help="start the service",
        description="Starts the service. Every setting is also an environment variable BACKPASS_<NAME>; "
        "an option here wins over it.",
    )
    for name, kind in OPTIONS.items():
        field = Settings.model_fields[name]
        serve.add_argument(f"--{name.replace('_', '-')}", type=kind, help=field.description, metavar=kind.__name__)
    profile = commands.add_parser(
        "profile",
        help="show where the time of a step goes",
        description="Runs some steps of a program and shows its kernels: time, work, share of what the machine can do.",
    )
    profile.add_argument("program", type=Path, help="JSON file: a program, or the body of a request with one")
    profile.add_argument("--loss", help="variable to differentiate; `loss` by default")
    profile.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME:SIZES",
        help="of a feed that leaves sizes open, as x:32,64",
    )
    profile.add_argument("--optimizer", metavar="TYPE", help="profile a training step with sgd, adam, ...")
    profile.add_argument(
        "--steps", type=int, default=10, help="how many are taken the mean of, or, as data, added up; 10 by default"
    )
    profile.add_argument("--threads", type=int, help="BACKPASS_THREADS; one for each core by default")
    profile.add_argument("--interpret", action="store_true", help="without machine code")
    profile.add_argument("--json", action="store_true", help="the profile as data")
    openapi = commands.add_parser("openapi", help="write the OpenAPI document")
    openapi.add_argument("--output", type=Path, help="file to write; standard output by default")
    catalogue = commands.add_parser("catalogue", help="write the pages that describe all ops")
    catalogue.add_argument("--output", type=Path, required=True, help="folder to write them to; no other page stays")
    options = commands.add_parser("options", help="write the page about hooks, clips, budgets and loss scales")
    options.add_argument("--output", type=Path, required=True, help="file to write")
    commands.add_parser("version", help="print the version")
    return parser


def _serve(chosen: argparse.Namespace) -> int:
    given = {name: getattr(chosen, name) for name in OPTIONS if getattr(chosen, name) is not None}
    settings = _settings(given)
    if settings is None:
        return 2
    from service.app import create_app  # not at the top: `version` and a wrong option need no application

    logs.configure(settings.log_level)
    server = uvicorn.Server(
        uvicorn.Config(
            create_app(settings),
            host=settings.host,
            port=settings.port,
            http=guarded(settings),
            ws="none",
            lifespan="on",
            log_config=None,
            log_level=settings.log_level,
            access_log=settings.log_level == "debug",
            server_header=False,
            timeout_graceful_shutdown=round(settings.graceful_shutdown),
        )
    )
    # uvicorn raises the signal that ended it once more; being told to stop, and stopping in good order, is no failure
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server.run()
    return 0 if server.started else 1


def _settings(given: Mapping[str, Any]) -> Settings | None:
    """The settings, of which some are given here. None, with what is wrong with them on standard error."""
    try:
        return Settings(**given)
    except ValidationError as error:
        for mistake in error.errors(include_url=False):
            name = "_".join(str(part) for part in mistake["loc"])
            print(f"BACKPASS_{name.upper()}: {mistake['msg']}", file=sys.stderr)
        return None


def _profile(chosen: argparse.Namespace) -> int:
    from core.analysis.profile import as_text
    from core.ir.errors import CoreError
    from service.cli.profile import profile_file
    from service.problems import HttpProblem

    settings = _settings({} if chosen.threads is None else {"threads": chosen.threads})
    if settings is None:
        return 2
    if settings.threads is not None:
        os.environ["BACKPASS_THREADS"] = str(settings.threads)  # as in a worker
    shapes, steps = {}, max(1, chosen.steps)
    for each in chosen.shape:
        name, _, sizes = each.rpartition(":")
        try:
            shapes[name] = [int(size) for size in sizes.split(",") if size]
        except ValueError:
            name = ""
        if not name:
            print(f"--shape {each}: must be a name, a colon, and sizes, as in x:32,64", file=sys.stderr)
            return 2
    try:
        found = profile_file(chosen.program, chosen.loss, shapes, chosen.optimizer, steps, chosen.interpret)
    except CoreError as error:
        said = [f"{p.location}: {p.message}" if p.location else p.message for p in error.problems]
        print("\n".join(said or [str(error)]), file=sys.stderr)
        return 1
    except (OSError, ValueError, HttpProblem) as error:
        wrong = error.strerror if isinstance(error, OSError) else str(error)
        print(f"{chosen.program}: {wrong}", file=sys.stderr)
        return 2
    print(json.dumps(found, indent=2) if chosen.json else as_text(found, steps))
    return 0


def _openapi(output: Path | None) -> int:
    from service.app import create_app

    # Of the settings only the defaults: the document must not depend on the machine that writes it.
    document = create_app(Settings.model_construct()).openapi()
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if output is None:
        sys.stdout.write(text)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text)
    return 0


def _catalogue(output: Path) -> int:
    from service.cli.catalogue import write_pages

    write_pages(output)
    return 0


def _options(output: Path) -> int:
    from service.cli.options_page import options_page

    output.write_text(options_page())
    return 0
