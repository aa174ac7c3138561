"""The command line: `backpass serve`, `import`, `doctor`, `keys`, `backup`, `restore`, `profile`, `openapi`,
`catalogue`, `options`, `signatures` and `version`."""

from __future__ import annotations

import argparse
import asyncio
import errno
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from service import __version__, logs
from service.cli import backup, documents, importing
from service.cli.keys import add_keys, run_keys
from service.cli.output import OutputFailed, say
from service.cli.refusal import misused, refused
from service.http.hosts import shares_port
from service.machine import available_cores, available_memory, check_port, place
from service.setting_mistakes import read_settings, unknown_variables
from service.settings import MIB, Settings

__all__ = ["main"]

OPTIONS = {"host": str, "port": int, "device": str, "workers": int, "threads": int, "data_dir": str, "log_level": str}

SWITCH_S = 0.0005  # the most time for which a thread can delay the event loop before the interpreter switches


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. arguments: by default those of the process."""
    try:
        return _run(_parser().parse_args(arguments))
    except _WrongSettings as error:
        return misused(*error.args)
    except OutputFailed as error:
        return 128 + signal.SIGPIPE if error.is_closed else refused(str(error))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(chosen: argparse.Namespace) -> int:
    match chosen.command:
        case "serve":
            return _serve(chosen)
        case "keys":
            return _keys(chosen)
        case "backup" | "restore":
            return backup.run(chosen, _settings({} if chosen.data_dir is None else {"data_dir": chosen.data_dir}))
        case "import":
            return importing.run(chosen, _settings({}))
        case "profile":
            return _profile(chosen)
        case "openapi" | "catalogue" | "options" | "signatures":
            return documents.run(chosen)
        case "doctor":
            return _doctor(chosen)
    say(__version__)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "backpass", description="A REST service that compiles and executes backward passes."
    )
    parser.add_argument("--version", action="version", version=__version__, help="print the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands)
    importing.add_command(commands)
    add_keys(commands)
    backup.add_commands(commands)
    _add_profile(commands)
    documents.add_commands(commands)
    _add_doctor(commands)
    commands.add_parser("version", help="print the version", description="Print the version of Backpass.")
    return parser


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="start the service",
        description="Start the service. Each option overrides the environment variable BACKPASS_<NAME>. "
        "The other settings have environment variables only: see docs/settings.md.",
    )
    for name, kind in OPTIONS.items():
        serve.add_argument(f"--{name.replace('_', '-')}", type=kind, help=_setting_help(name), metavar=name.upper())


def _add_profile(commands: Any) -> None:
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
        type=_count,
        default=10,
        help="steps to measure (default: 10); the table shows means, --json shows sums",
    )
    profile.add_argument(
        "--threads", type=int, help="threads of compiled code (default: BACKPASS_THREADS, or one for each core)"
    )
    profile.add_argument("--interpret", action="store_true", help="run the reference executor instead of machine code")
    profile.add_argument("--json", action="store_true", help="print the profile as JSON")


def _add_doctor(commands: Any) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check settings, machine, disk and store",
        description="Check what the service needs, with the settings that it would have. Each line is ok, a warning, "
        "or wrong, with the remedy. The exit status is 1 if something is wrong. It works beside a running service.",
    )
    for name in ("host", "port", "device", "workers", "data_dir"):
        doctor.add_argument(f"--{name.replace('_', '-')}", type=OPTIONS[name], metavar=name.upper())
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")


def _count(given: str) -> int:
    if not (given.isascii() and given.isdecimal() and int(given)):
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {given!r}")
    return int(given)


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
    if reason := _taken_port(settings):
        return refused(reason)
    gc.disable()  # until the server starts: what the imports make stays
    # imported here, because `version` and an invalid option need no application
    from service.engine import EmbeddedPool, UnusableSettings, worker_memory
    from service.engine.devices import lacking
    from service.objects.errors import UnusableStore

    try:
        missing = lacking(settings)
        if missing is not None:
            return refused(missing)
        if settings.device != "cuda":
            worker_memory(settings)
        engine = EmbeddedPool(settings)
        engine.begin()  # before the other imports, which take as long as those of the workers
        from service.app import create_app
        from service.cli.server import Server
        from service.http.tls import BadCertificate, check_tls
        from service.store.errors import StorageError
        from service.store.file_directory import take_directory
        from service.tenants.key_file import BadKeysFile
        from service.tenants.tenancy import Unsafe

        app = create_app(settings, engine)
    except UnusableSettings as error:
        return refused(f"BACKPASS_{error.setting.upper()}: {error}")
    except UnusableStore as error:
        return refused(f"BACKPASS_OBJECTS_URL: {error}")
    logs.configure(settings.log_level)
    log = logging.getLogger("backpass")
    for name, _ in unknown_variables():  # none of them resembles a setting
        log.warning("%s is not a setting, so it has no effect", name)
    sys.setswitchinterval(SWITCH_S)
    try:  # before the server starts, so that the cause is one line and no traceback
        check_tls(settings.tls_cert, settings.tls_key)
        app.state.store.open_now()
        asyncio.run(take_directory(app.state.store, app.state.objects))
        app.state.tenancy.check_now()
    except (StorageError, Unsafe, BadCertificate) as error:
        return refused(str(error))
    except UnusableStore as error:
        return refused(f"BACKPASS_OBJECTS_URL: {error}")
    except BadKeysFile as error:
        return refused(f"BACKPASS_API_KEYS_FILE: {error}")
    stored = "the database of BACKPASS_DATABASE_URL" if settings.database_url else settings.data_dir.absolute()
    cores, memory = available_cores(), available_memory() // MIB
    log.info("version %s; stored data are in %s; %d cores, %d MiB of memory", __version__, stored, cores, memory)
    server = Server(app, settings)
    for number in (signal.SIGTERM, signal.SIGINT):  # one that comes now ends the server as soon as it runs
        signal.signal(number, server.handle_exit)
    gc.collect()
    gc.freeze()  # the objects of modules and schemas stay; without this, full collections look at all of them
    gc.enable()
    server.run()
    for number in (signal.SIGTERM, signal.SIGINT):  # it has ended: another signal changes nothing
        signal.signal(number, signal.SIG_IGN)
    return 0 if server.started else 1


class _WrongSettings(Exception):
    """Settings cannot be used. args: the reasons, each of which names a variable."""


def _settings(given: Mapping[str, Any]) -> Settings:
    """The settings, with `given` ones on top of the environment. Raises _WrongSettings.

    A variable whose name resembles that of a setting is refused: the command would work on other data, or with less
    protection, than its user wants.
    """
    wrong = [f"{name} is not a setting: did you mean {near}?" for name, near in unknown_variables() if near]
    found = read_settings(**given)
    if isinstance(found, list):
        raise _WrongSettings(*wrong, *found)
    if wrong:
        raise _WrongSettings(*wrong)
    return found


def _taken_port(settings: Settings) -> str | None:
    """The reason why the service cannot listen; None if it can."""
    places = [("", settings.host, settings.port)]
    if settings.metrics_port:
        places.append(("METRICS_", settings.metrics_host, settings.metrics_port))
    for prefix, host, port in places:
        try:
            check_port(host, port)
        except OSError as error:
            # the address is wrong, not the port, if it has no meaning or is that of another machine
            part = "HOST" if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL else "PORT"
            return f"BACKPASS_{prefix}{part}: cannot listen on {place(host, port)}: {error.strerror}"
    if shares_port(settings):
        return f"BACKPASS_METRICS_PORT: {settings.port} is the port of the service"
    return None


def _keys(chosen: argparse.Namespace) -> int:
    return run_keys(chosen, _settings({} if chosen.data_dir is None else {"data_dir": chosen.data_dir}))


def _profile(chosen: argparse.Namespace) -> int:
    from core.analysis.profile import as_text
    from core.ir.errors import CoreError
    from core.optim.optimizers import OPTIMIZERS
    from service.cli.profile import profile_file
    from service.problems import HttpProblem

    settings = _settings({} if chosen.threads is None else {"threads": chosen.threads})
    os.environ["BACKPASS_THREADS"] = str(settings.threads_per_worker(1))  # as in a worker
    if chosen.optimizer not in (None, *OPTIMIZERS):
        return refused(f"--optimizer: unknown optimizer {chosen.optimizer!r}; known are {', '.join(OPTIMIZERS)}")
    shapes = {}
    for each in chosen.shape:
        name, _, sizes = each.rpartition(":")
        try:
            shapes[name] = [int(size) for size in sizes.split(",") if size]
        except ValueError:
            name = ""
        if not name:
            return refused(f"--shape: expected NAME:SIZES, such as x:32,64, got {each!r}")
    try:
        found = profile_file(chosen.program, chosen.loss, shapes, chosen.optimizer, chosen.steps, chosen.interpret)
    except CoreError as error:
        lines = [f"{p.location}: {p.message}" if p.location else p.message for p in error.problems]
        return refused(*(lines or [str(error)]), about=chosen.program)
    except (OSError, ValueError, HttpProblem) as error:
        return refused(str(error.strerror if isinstance(error, OSError) else error), about=chosen.program)
    say(json.dumps(found, indent=2) if chosen.json else as_text(found, chosen.steps))
    return 0


def _doctor(chosen: argparse.Namespace) -> int:
    from service.cli.doctor import report
    from service.doctor import examine

    names = ("host", "port", "device", "workers", "data_dir")
    given = {name: getattr(chosen, name) for name in names if getattr(chosen, name) is not None}
    return report(examine(**given), chosen.json)
