"""The names under which this service may be addressed.

A page of another site can let its own name resolve to the address of this service (DNS rebinding). The browser then
treats the service as part of that site, but the Host header still has the name of the site.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache

from service.settings import Settings

__all__ = ["EVERY_ADDRESS", "LOOPBACK", "host_check", "shares_port"]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
EVERY_ADDRESS = ("", "0.0.0.0", "::")


def host_check(settings: Settings) -> Callable[[bytes], bool]:
    """A predicate: whether a Host header names this service. Ports do not count, because a proxy may map them.

    Allowed are loopback names, the address to listen on, and the setting `allowed_hosts`. A service that listens on
    every address also accepts every IP address: rebinding needs a name.
    """
    listed = {name.strip().lower() for name in settings.allowed_hosts.split(",") if name.strip()}
    allowed = {*LOOPBACK, settings.host.lower(), *(name.strip("[]") for name in listed)}
    suffixes = tuple(name[1:] for name in listed if name.startswith("*."))
    everywhere = settings.host in EVERY_ADDRESS

    @lru_cache(1024)
    def check(header: bytes) -> bool:
        name = _name(header.decode("latin-1").lower())
        if "*" in listed or name in allowed or (suffixes and name.endswith(suffixes)):
            return True
        return everywhere and _is_address(name)

    return check


def shares_port(settings: Settings) -> bool:
    """Whether the port for metrics is that of the service, on an address that both listen on."""
    hosts = {settings.host, settings.metrics_host}
    return settings.metrics_port == settings.port != 0 and (len(hosts) == 1 or not hosts.isdisjoint(EVERY_ADDRESS))


def _name(host: str) -> str:
    """The name in `name:port`, `[address]:port` or `name`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
