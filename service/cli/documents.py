"""`backpass openapi`, `catalogue`, `options` and `signatures`: documents that follow from the code."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from service.cli.output import say
from service.cli.refusal import refused
from service.settings import Settings

__all__ = ["add_commands", "run"]


def add_commands(commands: Any) -> None:
    """Add the commands to the subparsers of the command line."""
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
    signatures = commands.add_parser(
        "signatures",
        help="write the signatures of the ops for the Python client",
        description="Write the slots and attributes of all ops, from which the Python client builds programs.",
    )
    signatures.add_argument("--output", type=Path, required=True, metavar="FILE", help="file to write")
    signatures.add_argument("--stub", action="store_true", help="write Python's types of the ops in place of JSON")


def run(chosen: argparse.Namespace) -> int:
    """Write the document; returns the exit status."""
    output: Path | None = chosen.output
    try:
        if chosen.command == "catalogue":
            from service.cli.catalogue import write_pages

            write_pages(chosen.output)
        elif output is None:
            say(_text(chosen).removesuffix("\n"))
        else:
            text = _text(chosen)
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(text)
    except OSError as error:
        return refused(f"--output {output}: {error.strerror}")
    return 0


def _text(chosen: argparse.Namespace) -> str:
    match chosen.command:
        case "openapi":
            from service.app import create_app
            from service.schemas.openapi import openapi_text

            # Default settings only, because the document must not depend on the environment of the writer.
            return openapi_text(create_app(Settings.model_construct()).openapi()) + "\n"
        case "options":
            from service.cli.options_page import options_page

            return options_page()
    if chosen.stub:
        from service.cli.stubs import stub

        return stub()
    from service.cli.signatures import signatures

    return signatures()
