"""`backpass keys`: make, list, revoke and rotate API keys, and set limits of tenants, also while a service runs."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from service.cli.output import say
from service.cli.refusal import refused
from service.settings import Settings

__all__ = ["add_keys", "run_keys"]

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "y": 31_557_600.0}
DURATION = "such as 90d, 12h or 3600s"


USE = (
    "Keep the key: it cannot be shown again. Send it with each request as `Authorization: Bearer <key>`, or give it to "
    "the Python client in BACKPASS_API_KEY."
)
IN_FILE = "Add the line to the file that BACKPASS_API_KEYS_FILE names. The part after the last colon is the key."


def add_keys(commands: Any) -> None:
    """Add the command `keys` to the subparsers of the command line."""
    keys = commands.add_parser(
        "keys",
        help="make, list, revoke and rotate API keys",
        description="API keys and tenants, in the store of BACKPASS_DATA_DIR or BACKPASS_DATABASE_URL. A running "
        "service follows each change within seconds. As soon as one key exists, every request needs one.",
    )
    of_service = "directory of the service (default: BACKPASS_DATA_DIR)"
    keys.add_argument("--data-dir", metavar="DATA_DIR", help=of_service)
    actions = keys.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a key and print it", description="Make a key and print it, once.")
    create.add_argument(
        "--tenant", type=_tenant, default="local", help="tenant whose things the key opens (default: local)"
    )
    create.add_argument("--name", default="key", help="what the key is for, to recognise it")
    create.add_argument(
        "--scopes", type=_scopes, default="read,write", help="what it allows: read, write, admin (default: read,write)"
    )
    create.add_argument("--expires", type=_seconds, metavar="TIME", help=f"time until it ends, {DURATION}")
    create.add_argument(
        "--line", action="store_true", help="store nothing: print a line for a file of keys (BACKPASS_API_KEYS_FILE)"
    )
    listing = actions.add_parser("list", help="list keys", description="List keys, without their text.")
    listing.add_argument("--tenant", help="keys of this tenant only")
    revoke = actions.add_parser("revoke", help="end a key", description="End a key now.")
    revoke.add_argument("id", help="id of the key, key_...")
    rotate = actions.add_parser(
        "rotate",
        help="replace a key",
        description="Make a key with the same rights, print it, and end the old one.",
    )
    rotate.add_argument("id", help="id of the key, key_...")
    rotate.add_argument(
        "--overlap", type=_seconds, default=86_400.0, metavar="TIME", help="time for which both are valid (default: 1d)"
    )
    tenants = actions.add_parser(
        "tenants",
        help="list tenants; set limits of one, suspend it, delete it",
        description="List tenants; set limits of one, suspend it, or delete it.",
    )
    inner = tenants.add_subparsers(dest="of_tenants", metavar="ACTION")
    listed = inner.add_parser("list", help="list tenants with keys, own limits or a state")
    setting = inner.add_parser(
        "set",
        help="set limits of a tenant",
        description="Set limits of a tenant, such as jobs=4 compute_seconds=3600; 0 for no limit, `default` for that "
        "of the settings. GET /v1/me lists the names.",
    )
    setting.add_argument("tenant", type=_tenant)
    setting.add_argument("limits", nargs="+", type=_limit, metavar="NAME=NUMBER")
    suspend = inner.add_parser(
        "suspend", help="refuse all calls of a tenant", description="Refuse all calls of a tenant until it is resumed."
    )
    suspend.add_argument("tenant", type=_tenant)
    suspend.add_argument("--reason", required=True, help="the tenant reads it in the answers to its refused calls")
    resume = inner.add_parser("resume", help="lift the suspension of a tenant")
    resume.add_argument("tenant", type=_tenant)
    delete = inner.add_parser(
        "delete",
        help="revoke all keys of a tenant and erase all that it has",
        description="Revoke all keys of a tenant, and erase its data. There is no way back. A service erases it "
        "while it runs, or after its next start.",
    )
    delete.add_argument("tenant", type=_tenant)
    delete.add_argument("--yes", action="store_true", required=True, help="do it: there is no way back")
    for parser in (create, listing, revoke, rotate, tenants, listed, setting, suspend, resume, delete):
        parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
        parser.add_argument("--data-dir", metavar="DATA_DIR", default=argparse.SUPPRESS, help=of_service)


def run_keys(chosen: argparse.Namespace, settings: Settings) -> int:
    """Run the chosen action; returns the exit status."""
    from service.store.admin import AdminError, act
    from service.tenants.actions import ACTIONS

    try:
        name, arguments, show = _chosen(chosen)
        answer = _line(arguments) if getattr(chosen, "line", False) else act(settings, name, ACTIONS[name], arguments)
    except (AdminError, ValueError) as error:
        return refused(str(error))
    if getattr(chosen, "json", False):
        say(json.dumps(answer, indent=2))
        return 0
    say(show(answer))
    if "key" in answer:  # a script that takes the key from the output does not read this
        print(IN_FILE if getattr(chosen, "line", False) else f"{USE} {_where(settings)}", file=sys.stderr)
    return 0


def _where(settings: Settings) -> str:
    """The store that has the key: a service with another directory does not know it."""
    place = "the database of BACKPASS_DATABASE_URL" if settings.database_url else str(settings.data_dir.absolute())
    return f"Services that store in {place} know it."


def _chosen(chosen: argparse.Namespace) -> tuple[str, dict[str, Any], Callable[[Any], str]]:
    """(action, arguments, text of the answer). Raises ValueError."""
    match chosen.action:
        case "create":
            given = {name: getattr(chosen, name) for name in ("tenant", "name", "scopes")}
            given["expires_in"] = chosen.expires
            return "keys.create", given, _new
        case "list":
            return "keys.list", {"tenant": chosen.tenant}, _keys
        case "revoke":
            return "keys.revoke", {"id": chosen.id}, lambda key: f"{key['id']} of {key['tenant']} is revoked"
        case "rotate":
            return "keys.rotate", {"id": chosen.id, "overlap": chosen.overlap}, _rotated
    match chosen.of_tenants:
        case "set":
            return "tenants.set", {"tenant": chosen.tenant, "limits": dict(chosen.limits)}, _own_limits
        case "suspend":
            return "tenants.suspend", {"tenant": chosen.tenant, "reason": chosen.reason}, _state
        case "resume" | "delete":
            return f"tenants.{chosen.of_tenants}", {"tenant": chosen.tenant}, _state
    return "tenants.list", {}, _tenants


def _line(arguments: dict[str, Any]) -> dict[str, Any]:
    """A new key that is not stored. Raises ValueError."""
    from service.tenants.actions import shown
    from service.tenants.key import new_key

    scopes = frozenset(arguments["scopes"])
    if arguments["expires_in"] is not None:
        raise ValueError("--expires: a key of a file does not expire: delete its line")
    secret, key = new_key(arguments["tenant"], arguments["name"], scopes, time.time(), None)
    return {**shown(key), "key": f"{key.tenant}:{','.join(shown(key)['scopes'])}:{secret}"}


def _new(key: dict[str, Any]) -> str:
    return str(key["key"])


def _rotated(key: dict[str, Any]) -> str:
    return str(key["key"])


def _keys(found: Sequence[dict[str, Any]]) -> str:
    head = ("ID", "TENANT", "NAME", "BEGINS", "SCOPES", "STATE", "CREATED", "EXPIRES", "LAST USED")
    rows = [
        (
            key["id"],
            key["tenant"],
            key["name"],
            key["prefix"],
            ",".join(key["scopes"]),
            key["state"],
            *(_day(key[name]) for name in ("created", "expires", "last_used")),
        )
        for key in found
    ]
    return _table([head, *rows])


def _tenants(found: Sequence[dict[str, Any]]) -> str:
    rows = [(each["tenant"], each["state"], str(each["keys"]), _limits(each)) for each in found]
    return _table([("TENANT", "STATE", "VALID KEYS", "OWN LIMITS"), *rows])


def _state(tenant: dict[str, Any]) -> str:
    reason = "" if tenant["reason"] is None else f": {tenant['reason']}"
    return f"{tenant['tenant']} is {tenant['state']}{reason}"


def _own_limits(tenant: dict[str, Any]) -> str:
    return _table([("TENANT", "OWN LIMITS"), (tenant["tenant"], _limits(tenant))])


def _limits(tenant: dict[str, Any]) -> str:
    return " ".join(f"{name}={value:g}" for name, value in tenant["limits"].items()) or "-"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _day(seconds: float | None) -> str:
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def _tenant(given: str) -> str:
    from service.tenants.key import TENANT, TENANT_RULE

    if not TENANT.fullmatch(given):
        raise argparse.ArgumentTypeError(f"{TENANT_RULE}, got {given!r}")
    return given


def _scopes(given: str) -> list[str]:
    from service.tenants.key import SCOPES

    scopes = [scope.strip() for scope in given.split(",") if scope.strip()]
    if not scopes or not {*scopes} <= {*SCOPES}:
        raise argparse.ArgumentTypeError(f"expected one or more of {', '.join(SCOPES)}, got {given!r}")
    return scopes


def _limit(given: str) -> tuple[str, float | None]:
    from service.tenants.limits import BadLimit, changed

    name, _, value = given.partition("=")
    try:
        limit = None if value == "default" else float(value)
        changed({name: limit})
    except BadLimit as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected NAME=NUMBER or NAME=default, got {given!r}") from None
    return name, limit


def _seconds(given: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdwy])", given)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a time {DURATION}, got {given!r}")
    return float(found[1]) * SECONDS[found[2]]
