"""The exit statuses of all commands, which follow from the message.

0          done
1          the command failed, or found something wrong
2          a setting or an option cannot be used: the message begins with its name
128 + n    signal n ended the command
"""

from __future__ import annotations

import re
import sys

__all__ = ["misused", "refused"]

FAILED, MISUSED = 1, 2
NAME = re.compile(r"BACKPASS_[A-Z0-9_]+|--[a-z]")


def refused(*reasons: str, about: object = "backpass") -> int:
    """Print the reasons why a command ends, each on a line of standard error; returns its exit status.

    about: written before a reason that does not begin with the name of a setting or an option.
    """
    if all(map(NAME.match, reasons)):
        return misused(*reasons)
    for each in reasons:
        print(each if NAME.match(each) else f"{about}: {each}", file=sys.stderr)
    return FAILED


def misused(*reasons: str) -> int:
    """As `refused`, for reasons that all name a setting or an option."""
    for each in reasons:
        print(each, file=sys.stderr)
    return MISUSED
