"""The command line: `backpass serve`, `profile`, `openapi`, `catalogue`, `options`, `version`."""

from __future__ import annotations

import argparse
import gc
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

SWITCH_S = 0.0005  # the most time for which a thread can delay the event loop before the interpreter switches


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. arguments: by default those of the process."""
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
    parser = argparse.ArgumentParser(
        "backpass", description="A REST service that compiles and executes backward passes."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="start the service",
        description="Start the service. Each option overrides the environment variable BACKPASS_<NAME>. "
        "The other settings have environment variables only: see docs/settings.md.",
    )
    for name, kind in OPTIONS.items():
        serve.add_argument(f"--{name.replace('_', '-')}", type=kind, help=_setting_help(name), metavar=name.upper())
    profile = commands.add_parser(
        "profile",
        help="show the time of each kernel of a step",
        description="Run steps of a program and show its kernels: time, work, and share of the machine's peak.",
    )
    profile.add_argument(
        "program", type=Path, help="JSON file with a program, or with the body of a request that contains one"
    )
    profile.add_argument("--loss", help="variable to differentiate (default: the loss of the request body, or `loss`)")
    profile.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME:SIZES",
        help="shape of a feed with open sizes, such as x:32,64; repeat the option for more feeds",
    )
    profile.add_argument(
        "--optimizer",
        metavar="TYPE",
        help="profile a training step with this optimizer, such as sgd or adam (default: gradients only)",
    )
    profile.add_argument(
        "--steps",
        type=int,
        default=10,
        help="steps to measure (default: 10); the table shows means, --json shows sums",
    )
    profile.add_argument(
        "--threads", type=int, help="threads of compiled code (default: BACKPASS_THREADS, or one for each core)"
    )
    profile.add_argument("--interpret", action="store_true", help="run the reference executor instead of machine code")
    profile.add_argument("--json", action="store_true", help="print the profile as JSON")
    openapi = commands.add_parser(
        "openapi", help="write the OpenAPI document", description="Write the OpenAPI document of the HTTP interface."
    )
    openapi.add_argument("--output", type=Path, metavar="FILE", help="file to write (default: standard output)")
    catalogue = commands.add_parser(
        "catalogue", help="write the pages about the ops", description="Write one Markdown page for each family of ops."
    )
    catalogue.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder to write; other *.md files in it are deleted",
    )
    options = commands.add_parser(
        "options",
        help="write the page about hooks, clips, budgets and loss scales",
        description="Write the Markdown page about the options of gradients and training.",
    )
    options.add_argument("--output", type=Path, required=True, metavar="FILE", help="file to write")
    commands.add_parser("version", help="print the version", description="Print the version of Backpass.")
    return parser


def _setting_help(name: str) -> str:
    """The description of a setting in the form of a help text, with its default."""
    field = Settings.model_fields[name]
    text = (field.description or "").rstrip(".")
    if text[1:2].islower():
        text = text[0].lower() + text[1:]
    default = field.get_default(call_default_factory=True)
    return text if default is None else f"{text} (default: {default})"


def _serve(chosen: argparse.Namespace) -> int:
    given = {name: getattr(chosen, name) for name in OPTIONS if getattr(chosen, name) is not None}
    settings = _settings(given)
    if settings is None:
        return 2
    # imported here, because `version` and an invalid option need no application
    from service.app import create_app
    from service.engine import UnusableSettings, worker_memory
    from service.store.errors import StorageError

    try:
        if settings.device != "cuda":
            worker_memory(settings)
    except UnusableSettings as error:
        print(f"BACKPASS_{error.setting.upper()}: {error}", file=sys.stderr)
        return 2
    logs.configure(settings.log_level)
    sys.setswitchinterval(SWITCH_S)
    app = create_app(settings)
    try:
        app.state.programs.open_now()  # before the server starts, so that the cause is one line and no traceback
    except StorageError as error:
        print(f"backpass: {error}", file=sys.stderr)
        return 1
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=guarded(settings, app.state.admission),
            ws="none",
            lifespan="on",
            log_config=None,
            log_level=settings.log_level,
            access_log=settings.log_level == "debug",
            server_header=False,
            timeout_graceful_shutdown=round(settings.graceful_shutdown),
        )
    )
    # uvicorn raises the signal that ended it once more. An orderly stop is no failure, so ignore that signal.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    gc.collect()
    gc.freeze()  # the objects of modules and schemas stay; without this, full collections look at all of them
    server.run()
    return 0 if server.started else 1


def _settings(given: Mapping[str, Any]) -> Settings | None:
    """The settings, with `given` ones on top of the environment. If they are invalid: None, and a message on stderr."""
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
            print(f"--shape {each}: expected NAME:SIZES, such as x:32,64", file=sys.stderr)
            return 2
    try:
        found = profile_file(chosen.program, chosen.loss, shapes, chosen.optimizer, steps, chosen.interpret)
    except CoreError as error:
        lines = [f"{p.location}: {p.message}" if p.location else p.message for p in error.problems]
        print("\n".join(lines or [str(error)]), file=sys.stderr)
        return 1
    except (OSError, ValueError, HttpProblem) as error:
        wrong = error.strerror if isinstance(error, OSError) else str(error)
        print(f"{chosen.program}: {wrong}", file=sys.stderr)
        return 2
    print(json.dumps(found, indent=2) if chosen.json else as_text(found, steps))
    return 0


def _openapi(output: Path | None) -> int:
    from service.app import create_app

    # Default settings only, because the document must not depend on the environment of the writer.
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
