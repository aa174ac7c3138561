"""`backpass backup` and `backpass restore`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from service.cli.output import say
from service.cli.refusal import refused
from service.settings import Settings

__all__ = ["add_commands", "run"]


def add_commands(commands: Any) -> None:
    """Add both commands to the subparsers of the command line."""
    backup = commands.add_parser(
        "backup",
        help="copy everything that is stored",
        description="Write a consistent copy of the database and of all stored files, while the service runs.",
    )
    backup.add_argument("to", type=Path, metavar="TO", help="new or empty directory")
    back = commands.add_parser(
        "restore",
        help="bring a backup into an empty data directory",
        description="Check a backup and bring it into an empty data directory. The service must not run.",
    )
    back.add_argument("where", type=Path, metavar="FROM", help="directory of the backup")
    back.add_argument("--check", action="store_true", help="check the backup, restore nothing")
    for each in (backup, back):
        each.add_argument("--data-dir", help="directory of stored data (default: BACKPASS_DATA_DIR, or data)")


def run(chosen: argparse.Namespace, settings: Settings) -> int:
    """Run one of the commands; the exit status."""
    from service.store.backup import BackupError, back_up, check_backup, restore

    try:
        if chosen.command == "backup":
            back_up(settings, chosen.to, say)
        elif chosen.check:
            check_backup(chosen.where, say)
        else:
            restore(settings, chosen.where, say)
    except BackupError as error:
        return refused(str(error))
    return 0
